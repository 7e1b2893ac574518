"""`POST /v1/chat/completions` at a gateway: who may ask, what is bounded, what becomes of a turn that ends badly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import msgspec
import pytest
from unit.gateway.fake_shard import FakeShard, pipeline
from unit.gateway.running import WAIT_S, System

from duologue.bus.link import Link
from duologue.bus.messages import AnyMessage, CancelTurn, SessionRefused, StartTurn, TurnEvents
from duologue.gateway.chat import answer, turn, turns
from duologue.gateway.router import Router
from duologue.gateway.service import GatewayService

pytestmark = pytest.mark.unit

ASKED = {"model": "loopback", "messages": [{"role": "user", "content": "Hi"}]}
PATH = "/v1/chat/completions"


def delta(text: str) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "delta": text}


def done(status: str = "completed", **more: Any) -> dict[str, Any]:
    return {"type": "response.done", "response": {"status": status, **more}}


USAGE = {
    "total_tokens": 7,
    "input_tokens": 5,
    "output_tokens": 2,
    "input_token_details": {"text_tokens": 5, "audio_tokens": 0, "cached_tokens": 1},
}


class ChatShard(FakeShard):
    """Takes turns and leaves the rest to the test."""

    turns: list[tuple[Link, StartTurn]]
    cancelled: list[str]

    def on_message(self, link: Link, message: AnyMessage, frames: Sequence[bytes]) -> None:
        if isinstance(message, StartTurn):
            self.turns.append((link, message))
            self.heard.set()
        elif isinstance(message, CancelTurn):
            self.cancelled.append(message.session_id)
            self.heard.set()
        else:
            super().on_message(link, message, frames)

    async def turn(self) -> str:
        """The id of the newest turn, when it is there."""
        async with asyncio.timeout(WAIT_S):
            while not self.turns:
                self.heard.clear()
                await self.heard.wait()
        return self.turns[-1][1].session_id

    async def hears_cancel(self) -> list[str]:
        async with asyncio.timeout(WAIT_S):
            while not self.cancelled:
                self.heard.clear()
                await self.heard.wait()
        return self.cancelled

    def tell(self, *events: dict[str, Any], last: bool = False) -> None:
        link, start = self.turns[-1]
        link.send(TurnEvents(start.session_id, last), [msgspec.json.encode(event) for event in events])

    def refuse_turn(self, code: str) -> None:
        link, start = self.turns[-1]
        body = {"type": "error", "error": {"code": code, "message": "no", "param": "session.max_output_tokens"}}
        link.send(SessionRefused(start.session_id, code, 1008), [msgspec.json.encode(body)])


class Rig:
    def __init__(self, system: System, gateway: GatewayService, client: httpx.AsyncClient) -> None:
        self.system, self.gateway, self.client = system, gateway, client
        shard = system.shard
        assert isinstance(shard, ChatShard)
        self.shard = shard

    def post(self, **more: Any) -> asyncio.Task[httpx.Response]:
        return asyncio.create_task(self.client.post(PATH, json={**ASKED, **more}))

    def counted(self, result: str) -> float:
        name = f'duologue_gateway_chat_turns_total{{result="{result}"}} '
        lines = self.gateway.metrics().decode().splitlines()
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


CONFIG: dict[str, Any] = {"max_chat_turns": 2}


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async for made in _rig():
        yield made


async def _rig(**config: Any) -> AsyncIterator[Rig]:
    system = System()
    shard = system.shard
    shard.__class__ = ChatShard
    assert isinstance(shard, ChatShard)
    shard.turns, shard.cancelled = [], []
    async with system:
        shard.register(pipeline("loopback", max_chat_turns=2), pipeline("mute"))
        gateway = await system.gateway(**(CONFIG | config))
        async with httpx.AsyncClient(base_url=f"http://{system.urls[0]}", trust_env=False, timeout=WAIT_S) as client:
            yield Rig(system, gateway, client)


async def test_a_whole_answer_with_what_the_engine_tells_of_usage(rig: Rig) -> None:
    asking = rig.post()
    await rig.shard.turn()
    rig.shard.tell(delta("A "))
    rig.shard.tell(delta("cat."), done(usage=USAGE), last=True)
    told = (await asking).json()
    assert told["choices"][0]["message"]["content"] == "A cat." and told["choices"][0]["finish_reason"] == "stop"
    assert told["usage"]["total_tokens"] == 7 and told["usage"]["prompt_tokens_details"]["cached_tokens"] == 1
    assert not len(rig.gateway.chat) and not rig.gateway.chat.inside and not rig.shard.cancelled


async def test_a_shard_on_standby_answers_what_no_active_one_does(rig: Rig) -> None:
    served = pipeline("loopback", max_chat_turns=2, chat_turns=1)
    other = FakeShard(rig.system.hub, rig.system.store, "shard-2")
    router = Router()
    for name, active in (("shard-1", rig.shard), ("shard-2", other)):
        members = [
            rig.shard.registration(served, standby=active is other),
            other.registration(pipeline("loopback", max_chat_turns=2), standby=active is rig.shard),
        ]
        router.update(members)
        assert [shard.id for shard in turns._candidates(router, "loopback")][0] == name, "however many turns it has"
    router.update([rig.shard.registration(served, accepting=False), other.registration(served, standby=True)])
    assert [shard.id for shard in turns._candidates(router, "loopback")] == ["shard-2"]


async def test_usage_that_nobody_told_is_not_made_up(rig: Rig) -> None:
    asking = rig.post()
    await rig.shard.turn()
    rig.shard.tell(done(usage={"total_tokens": 0}), last=True)
    assert "usage" not in (await asking).json()


async def test_a_call_of_a_function_is_a_finish_reason(rig: Rig) -> None:
    asking = rig.post()
    await rig.shard.turn()
    item = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    rig.shard.tell(done(), {"type": "response.output_item.done", "item": item}, done(), last=True)
    choice = (await asking).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert choice["message"]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ]


async def test_a_refused_turn_is_an_http_error_in_a_stream_too(rig: Rig) -> None:
    for stream in (False, True):
        rig.shard.turns.clear()
        asking = rig.post(stream=stream)
        await rig.shard.turn()
        rig.shard.refuse_turn("bad_event")
        refused = await asking
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "max_completion_tokens"


async def test_a_stream_that_fails_in_its_middle_ends_with_the_error(rig: Rig) -> None:
    asking = rig.post(stream=True)
    await rig.shard.turn()
    rig.shard.tell(delta("A "))
    failed = {"type": "error", "error": {"code": "worker_lost", "message": "gone", "retryable": True}}
    rig.shard.tell(failed, done("failed"), last=True)
    lines = [line.removeprefix("data: ") for line in (await asking).text.split("\n\n") if line]
    assert json.loads(lines[0])["choices"][0]["delta"] == {"role": "assistant", "content": "A "}
    assert json.loads(lines[-1])["error"]["code"] == "worker_lost" and "[DONE]" not in lines
    assert rig.counted("worker_lost") >= 1


async def test_a_whole_answer_that_fails_is_retryable_where_the_error_is(rig: Rig) -> None:
    asking = rig.post()
    await rig.shard.turn()
    failed = {"type": "error", "error": {"code": "worker_lost", "message": "gone", "retryable": True}}
    rig.shard.tell(delta("A "), failed, done("failed"), last=True)
    answered = await asking
    assert answered.status_code == 503 and answered.headers["retry-after"] == "1"


async def test_beyond_the_bound_a_request_is_refused_and_counted(rig: Rig) -> None:
    before = rig.counted("resource_exhausted")
    asking = [rig.post(), rig.post()]
    async with asyncio.timeout(WAIT_S):
        while len(rig.shard.turns) < 2:
            rig.shard.heard.clear()
            await rig.shard.heard.wait()
    refused = await rig.client.post(PATH, json=ASKED)
    assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["code"] == "resource_exhausted"
    assert rig.counted("resource_exhausted") == before + 1
    for link, start in rig.shard.turns:
        link.send(TurnEvents(start.session_id, True), [])
    assert [(await one).status_code for one in asking] == [200, 200]


async def test_a_full_shard_is_told_with_retry_after(rig: Rig) -> None:
    asking = rig.post()
    await rig.shard.turn()
    rig.shard.refuse_turn("resource_exhausted")
    refused = await asking
    assert refused.status_code == 503 and "retry-after" in refused.headers


async def test_models_that_do_not_declare_it_and_models_that_are_not_there(rig: Rig) -> None:
    mute = await rig.client.post(PATH, json=ASKED | {"model": "mute"})
    assert (mute.status_code, mute.json()["error"]["code"]) == (400, "model_not_supported")
    nobody = await rig.client.post(PATH, json=ASKED | {"model": "nobody"})
    assert (nobody.status_code, nobody.json()["error"]["param"]) == (404, "model")


async def test_a_client_that_goes_away_cancels_its_turn(rig: Rig) -> None:
    before = rig.counted("cancelled")
    for stream in (False, True):
        rig.shard.turns.clear()
        rig.shard.cancelled.clear()
        asking = rig.post(stream=stream)
        turn_id = await rig.shard.turn()
        asking.cancel()
        assert await rig.shard.hears_cancel() == [turn_id]
    async with asyncio.timeout(WAIT_S):
        while rig.gateway.chat.inside:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert rig.counted("cancelled") == before + 2


async def test_a_lost_shard_ends_the_turn(rig: Rig) -> None:
    asking = rig.post()
    await rig.shard.turn()
    rig.shard.turns[-1][0].drop("closed")
    answered = await asking
    assert (answered.status_code, answered.json()["error"]["code"]) == (503, "shard_lost")


async def test_events_that_nobody_reads_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "MAX_QUEUED_BYTES", 1000)
    asking = rig.post()
    turn_id = await rig.shard.turn()
    rig.shard.tell(delta("x" * 2000))
    answered = await asking
    assert answered.json()["error"]["code"] == "output_backpressure" and rig.shard.cancelled == [turn_id]


async def test_a_whole_answer_is_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "MAX_WHOLE_BYTES", 1000)
    asking = rig.post()
    turn_id = await rig.shard.turn()
    rig.shard.tell(delta("x" * 2000))
    answered = await asking
    assert answered.json()["error"]["code"] == "output_backpressure"
    assert await rig.shard.hears_cancel() == [turn_id]


async def test_a_turn_may_take_longer_than_the_front_doors_patience() -> None:
    async for rig in _rig(first_message_timeout_s=0.2):
        asking = rig.post()
        await rig.shard.turn()
        await asyncio.sleep(0.4)  # the door's own timer is what is tested
        rig.shard.tell(delta("late"), done(), last=True)
        assert (await asking).json()["choices"][0]["message"]["content"] == "late"


async def test_keys_bodies_and_methods() -> None:
    async for rig in _rig(api_keys=("secret",), max_frame_bytes=1000):
        assert (await rig.client.post(PATH, json=ASKED)).status_code == 401
        rig.client.headers["authorization"] = "Bearer secret"
        big = await rig.client.post(PATH, content=b"x" * 2000)
        assert (big.status_code, big.json()["error"]["code"]) == (413, "request_too_large")
        broken = await rig.client.post(PATH, content=b"{")
        assert (broken.status_code, broken.json()["error"]["code"]) == (400, "invalid_json")
        wrong = await rig.client.get(PATH)
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/embeddings", 404, "not_available"),
        ("/v1/audio/speech", 404, "not_available"),
        ("/v1/realtime/sessions", 404, "not_available"),
        ("/v1/nonsense", 404, "unknown_url"),
        ("/", 404, "unknown_url"),
        ("/v1/realtime", 426, "upgrade_required"),
        ("/v1/models/nobody", 404, "model_not_found"),
    ],
)
async def test_what_is_not_served_is_a_coded_answer(rig: Rig, path: str, status: int, code: str) -> None:
    answered = await rig.client.get(path)
    assert (answered.status_code, answered.json()["error"]["code"]) == (status, code)


async def test_a_bad_query_is_named(rig: Rig) -> None:
    answered = await rig.client.post("/drain?deadline_s=-1")
    assert (answered.status_code, answered.json()["error"]["param"]) == (400, "deadline_s")


async def test_models_are_listed_with_their_capabilities(rig: Rig) -> None:
    told = (await rig.client.get("/v1/models/loopback")).json()
    listed = (await rig.client.get("/v1/models")).json()["data"]
    assert listed[0] == told and told["max_chat_turns"] == 2 and told["session_mode"] == "duplex"
    assert told["capabilities"]["supports_session_resume"] is True
