"""The engine against an HTTP server: what it asks, what it makes of a stream, cancels and faults."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from unit.models.qwen3_omni.chat_stub import ChatStub, Chunk, delta, end, wav, words

from duologue.model.engine import NO_UNIT, Emission, Slot, StageRefused, StageUnit
from duologue.model.outputs import ModelOutput, ToolCall, Usage, decode_output
from duologue.models.qwen3_omni import heads, server
from duologue.models.qwen3_omni.engine import TurnEngine
from duologue.models.qwen3_omni.heads import SlotConfig, UnitHead
from duologue.models.qwen3_omni.options import Options
from duologue.runtime.metric_registry import REGISTRIES

pytestmark = pytest.mark.unit

CONFIG = SlotConfig(instructions="be kind", speaks=True, voice="Chelsie", max_tokens=64)
SLOT = Slot(0, 1)
SAID = b"\1\0" * 2400
TOOL = {"type": "function", "name": "look_up", "parameters": {"type": "object"}}


class Rig:
    def __init__(self, url: str, **more: Any) -> None:
        self.engine = TurnEngine("omni", Options(url=url, **more), 4, "sesame")
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self.engine.wake = self._ring
        self.engine.warm_up()
        self.emissions: list[Emission] = []
        self._units = 0

    def _ring(self) -> None:
        self._loop.call_soon_threadsafe(self._news.set)

    def open(self, config: SlotConfig = CONFIG) -> None:
        self.engine.open(SLOT, heads.encode(config))

    def unit(self, flags: int = 0, *, item: dict[str, Any] | None = None, samples: int = 3200) -> None:
        self._units += 1
        frames = () if item or flags & heads.CONTINUATION else (b"\0\0\x80\x3f" * samples,)
        unit = StageUnit(SLOT, self._units, 7, 0, 0, heads.encode(UnitHead(flags, item)), frames)
        (consumed,) = self.engine.append_batch([unit])
        assert (consumed.unit, consumed.last) == (self._units, True)

    def turn(self) -> None:
        self.unit(heads.FINAL | heads.ASK)

    async def until(self, holds: Callable[[ModelOutput], object]) -> list[ModelOutput]:
        """All results up to the first of which this holds."""
        async with asyncio.timeout(20):
            while True:
                self._news.clear()
                self.emissions += self.engine.read()
                outputs = [decode_output(emission.head) for emission in self.emissions]
                for at, output in enumerate(outputs):
                    if holds(output):
                        taken, self.emissions = self.emissions[: at + 1], self.emissions[at + 1 :]
                        assert {(emission.unit, emission.turn_id) for emission in taken} == {(NO_UNIT, 7)}
                        self.sound = b"".join(frame for emission in taken for frame in emission.frames)
                        return outputs[: at + 1]
                await self._news.wait()

    async def answer(self) -> list[ModelOutput]:
        return await self.until(lambda output: output.end_of_turn or output.error_code)


@contextlib.asynccontextmanager
async def rig(*chunks: Chunk | str, **more: Any) -> AsyncIterator[tuple[Rig, ChatStub]]:
    stub = ChatStub(*chunks, **{key: more.pop(key) for key in ("status", "holds") if key in more})
    async with stub:
        made = Rig(stub.url, **more)
        try:
            yield made, stub
        finally:
            await asyncio.to_thread(made.engine.shut_down)


def counted(name: str, **labels: str) -> float:
    return REGISTRIES["worker"].get_sample_value(f"duologue_worker_{name}", {"pipeline": "omni", **labels}) or 0.0


async def test_a_turn_is_asked_with_its_sound_and_answered_as_it_streams() -> None:
    usage = {"prompt_tokens": 30, "completion_tokens": 9, "prompt_tokens_details": {"audio_tokens": 25}}
    chunks = (words("Good "), words("day."), wav(SAID), end(), {"choices": [], "usage": usage}, "[DONE]")
    async with rig(*chunks, model="m") as (rig_, stub):
        before = counted("turn_requests_total", result="completed")
        rig_.open()
        rig_.unit()
        rig_.turn()
        first, second, sound, last = await rig_.answer()
        assert (first.text, second.text) == ("Good ", "day.")
        assert (sound.audio_rate_hz, rig_.sound) == (24_000, SAID)
        assert last == ModelOutput(end_of_turn=True, usage=Usage(25, 5, 0, 9))
        (request,) = stub.requests
        assert "authorization: bearer sesame" in stub.headers[0].lower()
        assert (request["model"], request["stream"], request["max_tokens"]) == ("m", True, 64)
        assert request["modalities"] == ["text", "audio"]
        assert request["audio"] == {"format": "pcm16", "voice": "Chelsie"}
        system, user = request["messages"]
        assert system == {"role": "system", "content": "be kind"}
        (part,) = user["content"]
        assert part["input_audio"]["format"] == "wav"
        assert base64.b64decode(part["input_audio"]["data"])[44:] == b"\xff\x7f" * 6400
        assert counted("turn_requests_total", result="completed") == before + 1


async def test_openais_way_to_send_sound_is_known_too() -> None:
    data = base64.b64encode(SAID).decode()
    chunks = (delta(audio={"id": "a", "transcript": "Hi"}), delta(audio={"data": data}), end(), "[DONE]")
    async with rig(*chunks) as (rig_, _):
        rig_.open()
        rig_.turn()
        text, sound, _end = await rig_.answer()
        assert (text.text, sound.audio_rate_hz, rig_.sound) == ("Hi", 24_000, SAID)


async def test_a_server_that_only_writes_is_asked_for_text() -> None:
    async with rig(delta(content="Hi"), end(), "[DONE]") as (rig_, stub):
        rig_.open(msgspec.structs.replace(CONFIG, speaks=False))
        rig_.turn()
        assert [output.text for output in await rig_.answer()] == ["Hi", ""]
        assert stub.requests[0]["modalities"] == ["text"]
        assert "audio" not in stub.requests[0]


async def test_the_conversation_goes_with_every_turn() -> None:
    async with rig(words("Hi."), end(), "[DONE]") as (rig_, stub):
        rig_.open()
        rig_.turn()
        await rig_.answer()
        rig_.unit(item={"type": "message", "role": "user", "content": [{"type": "input_text", "text": "and this?"}]})
        rig_.unit(heads.CONTINUATION | heads.ASK)
        await rig_.answer()
        roles = [message["role"] for message in stub.requests[1]["messages"]]
        assert roles == ["system", "user", "assistant", "user"]
        assert stub.requests[1]["messages"][2]["content"] == "Hi."
        assert stub.requests[1]["messages"][3]["content"] == [{"type": "text", "text": "and this?"}]


async def test_a_call_is_put_together_and_answered_after_its_result() -> None:
    parts = (
        delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "look_up", "arguments": '{"q"'}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": ': "sky"}'}}]),
    )
    async with rig(*parts, end("tool_calls"), "[DONE]") as (rig_, stub):
        rig_.open(msgspec.structs.replace(CONFIG, tools=(TOOL,), tool_choice="auto"))
        rig_.turn()
        (called,) = await rig_.answer()
        assert called == ModelOutput(tool_calls=(ToolCall("look_up", '{"q": "sky"}', "c1"),), end_of_turn=True)
        assert stub.requests[0]["tools"] == [
            {"type": "function", "function": {k: TOOL[k] for k in ("name", "parameters")}}
        ]
        rig_.unit(item={"type": "function_call_output", "call_id": "c1", "output": "blue"})
        stub.chunks = (words("Blue."), end(), "[DONE]")
        rig_.unit(heads.CONTINUATION | heads.ASK)
        await rig_.answer()
        assistant, result = stub.requests[1]["messages"][-2:]
        assert assistant["tool_calls"][0]["function"] == {"name": "look_up", "arguments": '{"q": "sky"}'}
        assert result == {"role": "tool", "tool_call_id": "c1", "content": "blue"}


async def test_a_call_without_an_id_gets_one_that_its_result_can_name() -> None:
    parts = delta(tool_calls=[{"index": 0, "function": {"name": "look_up", "arguments": "{}"}}])
    async with rig(parts, end("tool_calls"), "[DONE]") as (rig_, _):
        rig_.open(msgspec.structs.replace(CONFIG, tools=(TOOL,)))
        rig_.turn()
        (called,) = await rig_.answer()
        assert called.tool_calls[0].call_id == "call_7_0"


async def test_a_call_that_nobody_can_carry_out_fails_and_is_shown() -> None:
    parts = delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "unknown", "arguments": "{}"}}])
    async with rig(parts, end("tool_calls"), "[DONE]") as (rig_, _):
        rig_.open()
        rig_.turn()
        shown, failed = await rig_.answer()
        assert shown.tool_calls[0].name == ""
        assert failed.error_code == "malformed_function_call"


async def test_a_slot_too_many_and_a_bad_configuration_are_refused_by_name() -> None:
    async with rig() as (rig_, _):
        for index in range(4):
            rig_.engine.open(Slot(index, 1), heads.encode(CONFIG))
        for slot, config, code in (
            (Slot(4, 1), heads.encode(CONFIG), "resource_exhausted"),
            (SLOT, b"", "invalid_duplex_runtime_config"),
        ):
            with pytest.raises(StageRefused) as refused:
                rig_.engine.open(slot, config)
            assert refused.value.code == code
            rig_.engine.close(SLOT)


# -- cancels ----------------------------------------------------------------------------------------------


async def test_a_cancel_closes_the_response_and_keeps_what_was_heard() -> None:
    async with rig(words("one two three four"), wav(b"\0\0" * 24_000 * 2), holds=True) as (rig_, stub):
        before = counted("turn_requests_total", result="cancelled")
        rig_.open()
        rig_.turn()
        await rig_.until(lambda output: output.audio_rate_hz)
        rig_.engine.control(SLOT, heads.HEARD, heads.encode(1000))
        rig_.engine.cancel(SLOT, 1)
        await stub.until(lambda: stub.gone == 1)
        assert counted("turn_requests_total", result="cancelled") == before + 1
        stub.holds, stub.chunks = False, (words("ok"), end(), "[DONE]")
        rig_.turn()
        assert [output.text for output in await rig_.answer()] == ["ok", ""]
        assert [message["role"] for message in stub.requests[1]["messages"]] == ["system", "user", "assistant", "user"]
        assert stub.requests[1]["messages"][2]["content"] == "one two"


async def test_nothing_of_a_cancelled_answer_is_told() -> None:
    async with rig(words("one"), holds=True) as (rig_, stub):
        rig_.open()
        rig_.turn()
        await stub.until(lambda: stub.requests)
        rig_.engine.cancel(SLOT, 1)
        await stub.until(lambda: stub.gone)
        assert rig_.engine.read() == []


async def test_sound_of_a_turn_that_was_cancelled_halfway_is_forgotten() -> None:
    async with rig(words("ok"), end(), "[DONE]") as (rig_, stub):
        rig_.open()
        rig_.unit()
        rig_.engine.cancel(SLOT, 1)
        rig_.turn()
        await rig_.answer()
        (part,) = stub.requests[0]["messages"][1]["content"]
        assert len(base64.b64decode(part["input_audio"]["data"])) == 44 + 6400


async def test_an_answer_that_was_cut_after_its_end_is_kept_as_far_as_it_was_heard() -> None:
    async with rig(words("one two three four"), wav(b"\0\0" * 24_000 * 2), end(), "[DONE]") as (rig_, stub):
        rig_.open()
        rig_.turn()
        await rig_.answer()
        rig_.engine.control(SLOT, heads.HEARD, heads.encode(1000))
        rig_.turn()
        await rig_.answer()
        assert stub.requests[1]["messages"][2]["content"] == "one two"


async def test_closing_a_slot_closes_its_response() -> None:
    async with rig(words("one"), holds=True) as (rig_, stub):
        rig_.open()
        rig_.turn()
        await stub.until(lambda: stub.requests)
        rig_.engine.close(SLOT)
        rig_.engine.close(SLOT)
        await stub.until(lambda: stub.gone)
        assert rig_.engine.usage().slots_used == 0


async def test_an_update_holds_from_the_next_answer_on() -> None:
    async with rig(words("ok"), end(), "[DONE]") as (rig_, stub):
        rig_.open()
        changed = msgspec.structs.replace(CONFIG, instructions="be brief", temperature=0.5)
        rig_.engine.control(SLOT, "update", heads.encode(changed))
        rig_.turn()
        await rig_.answer()
        assert stub.requests[0]["messages"][0]["content"] == "be brief"
        assert stub.requests[0]["temperature"] == 0.5


# -- faults -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunks", "status", "code"),
    [
        ((), 500, "thinker_unavailable"),
        ((), 400, "thinker_failed"),
        ((words("one"),), 200, "thinker_failed"),
        ((end(), "[DONE]"), 200, "empty_answer"),
        (("{", "[DONE]"), 200, "thinker_failed"),
        (({"error": {"message": "x"}}, "[DONE]"), 200, "thinker_failed"),
        ((delta("audio", content="%%"), "[DONE]"), 200, "thinker_failed"),
    ],
    ids=["500", "400", "broken off", "empty", "no JSON", "error", "no base64"],
)
async def test_a_fault_of_the_server_has_a_name(chunks: tuple[Chunk, ...], status: int, code: str) -> None:
    async with rig(*chunks, status=status) as (rig_, _):
        before = counted("turn_requests_total", result="failed")
        rig_.open()
        rig_.turn()
        assert (await rig_.answer())[-1].error_code == code
        assert counted("turn_requests_total", result="failed") == before + 1


async def test_a_server_that_is_not_there_or_says_nothing_has_a_name() -> None:
    async with rig(holds=True, timeout_s=0.1) as (rig_, stub):
        rig_.open()
        rig_.turn()
        assert (await rig_.answer())[-1].error_code == "thinker_timeout"
        url = stub.url
    gone = Rig(url)
    gone.open()
    gone.turn()
    assert (await gone.answer())[-1].error_code == "thinker_unavailable"
    await asyncio.to_thread(gone.engine.shut_down)


async def test_an_answer_that_is_not_taken_is_not_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_WAITING", 8)
    monkeypatch.setattr("duologue.models.qwen3_omni.engine.MAX_WAITING", 8)
    async with rig(*[words("a")] * 200, end(), "[DONE]") as (rig_, _):
        before, waits = counted("turn_waits_total"), threading.Event()
        count = rig_.engine.count_wait

        def count_wait() -> None:
            count()
            waits.set()

        monkeypatch.setattr(rig_.engine, "count_wait", count_wait)
        rig_.open()
        rig_.turn()
        assert await asyncio.to_thread(waits.wait, 20)
        assert counted("turn_waits_total") > before
        assert len(rig_.engine._events) <= 10
        outputs = await rig_.answer()
        assert sum(len(output.text) for output in outputs) == 200
