"""Chat turns: one turn on the stages, beside the sessions, by the real core and a model without weights."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from unit.session.core.fake_models import FakeModel, head_of
from unit.session.shell.shell_rig import FakeLink, registration

from duologue.bus.messages import (
    Append,
    CancelTurn,
    CloseStages,
    OpenStages,
    Output,
    SessionRefused,
    StagesOpened,
    StartTurn,
    TurnEvents,
)
from duologue.model.outputs import ModelOutput, ToolCall, Usage, encode_output
from duologue.model.pipeline import PipelineSpec, StageSpec
from duologue.protocol.duplex import (
    ContentPart,
    CreateItem,
    CreateResponse,
    DuplexCapabilities,
    DuplexCommand,
    encode_command,
    message_item,
)
from duologue.session import chat_turn
from duologue.session.chat_turns import ChatTurns
from duologue.session.core.limits import SessionLimits
from duologue.session.core.machine import DuplexSessionMachine
from duologue.session.offload import OffloadPool
from duologue.session.pipelines import Pipelines, ServedPipeline
from duologue.session.stages import StageHub
from duologue.session.workers import StageWorkers

pytestmark = pytest.mark.unit

SESSION: dict[str, Any] = {
    "model": "fake",
    "output_modalities": ["text"],
    "instructions": "Be brief.",
    "audio": {"input": {"turn_detection": None}},
    "extra_body": {"auto_response": False},
}


class ChatModel(FakeModel):
    def __init__(self, pipeline: PipelineSpec) -> None:
        super().__init__(answers="plan")
        self.pipeline = pipeline

    def capabilities(self, max_sessions: int) -> DuplexCapabilities:
        return DuplexCapabilities(supports_chat_completions=True, supports_text_only_turn=True)


def user(text: str) -> CreateItem:
    return CreateItem(item=message_item("", "user", ContentPart(type="input_text", text=text)))


ASKED: tuple[DuplexCommand, ...] = (user("Who?"), CreateResponse())


class Rig:
    """A shard's chat turns between a gateway and two stage workers."""

    def __init__(self, *, max_chat_turns: int = 2, turn_s: float = 60.0, capable: bool = True) -> None:
        stages = (StageSpec("hear", "x:y", "a", slots=8), StageSpec("talk", "x:y", "b", slots=8))
        self.spec = PipelineSpec("fake", "x:y", stages, max_output_lead_ms=500, max_chat_turns=max_chat_turns)
        model = ChatModel(self.spec)
        capabilities = model.capabilities(1)
        if not capable:
            capabilities = msgspec.structs.replace(capabilities, supports_chat_completions=False)
        self.workers = StageWorkers(lambda name, address: None, lambda name: None)
        self.hub = StageHub(self.workers)
        self.offload = OffloadPool(lambda kind, body: body, threads=1)
        self.accepting = True
        self.turns = ChatTurns(
            pipelines=Pipelines([ServedPipeline(self.spec, model, capabilities)]),
            open_machine=DuplexSessionMachine.open,
            limits=SessionLimits(),
            hub=self.hub,
            offload=self.offload,
            accepting=lambda: self.accepting,
            turn_s=turn_s,
        )
        self.gateway = FakeLink("g1", "gateway")
        self.a, self.b = FakeLink("a1", "worker"), FakeLink("b1", "worker")
        self.workers.update([registration("a1", "a", self.spec), registration("b1", "b", self.spec)])
        for link in (self.a, self.b):
            self.hub.on_ready(link)

    def start(self, turn_id: str = "turn-1", commands: Sequence[DuplexCommand] = ASKED, **session: Any) -> None:
        frames = [msgspec.json.encode(SESSION | session), *map(encode_command, commands)]
        assert self.turns.on_message(self.gateway, StartTurn(turn_id, "fake"), frames)

    def open_stages(self, turn_id: str = "turn-1") -> None:
        for link, stage in ((self.a, 0), (self.b, 1)):
            fence = next(m.fence for m in reversed(link.of(OpenStages)) if m.session_id == turn_id)
            self.hub.on_message(link, StagesOpened(turn_id, fence, (stage,)), [])

    def answer(self, *outputs: ModelOutput, sound: bytes = b"") -> None:
        """The talking stage answers what it was given last."""
        append = self.b.of(Append)[-1]
        for output in outputs:
            last = output is outputs[-1]
            message = Output(append.session_id, append.fence, 1, -1, append.unit, append.turn_id, last)
            frames = [encode_output(output), *([sound] if output.audio_rate_hz else [])]
            self.hub.on_message(self.b, message, frames)

    def told(self) -> list[dict[str, Any]]:
        events = [event for frames in self.gateway.frames_of(TurnEvents) for event in frames]
        return [msgspec.json.decode(event) for event in events]

    @property
    def over(self) -> bool:
        return any(message.last for message in self.gateway.of(TurnEvents))

    def refusals(self) -> list[str]:
        return [message.code for message in self.gateway.of(SessionRefused)]

    def freed(self) -> bool:
        return bool(self.a.of(CloseStages)) and bool(self.b.of(CloseStages)) and not len(self.hub)


async def test_a_turn_is_asked_answered_and_over() -> None:
    rig = Rig()
    rig.start()
    rig.open_stages()
    head = head_of(rig.b.frames_of(Append)[-1][0])
    assert (head.said, head.instructions) == ((("user", "Who?"),), "Be brief.")
    rig.answer(ModelOutput(text="A "), ModelOutput(text="cat.", end_of_turn=True, usage=Usage()))
    assert "".join(event["delta"] for event in rig.told() if event["type"].endswith("text.delta")) == "A cat."
    assert rig.told()[-1]["type"] == "response.done" and rig.told()[-1]["response"]["status"] == "completed"
    assert rig.over and rig.freed() and not len(rig.turns) and not rig.turns.used("fake")
    assert rig.turns.results == {"completed": 1}


async def test_sound_is_told_as_it_is_made_although_a_session_would_pace_it() -> None:
    rig = Rig()
    rig.start(output_modalities=["audio"])
    rig.open_stages()
    second = bytes(2 * 24_000)
    for _ in range(3):
        append = rig.b.of(Append)[-1]
        message = Output(append.session_id, append.fence, 1, -1, append.unit, append.turn_id, False)
        rig.hub.on_message(rig.b, message, [encode_output(ModelOutput(text="La. ", audio_rate_hz=24_000)), second])
    sounds = [event for event in rig.told() if event["type"] == "response.output_audio.delta"]
    assert len(sounds) >= 3, "the third second is far ahead of real time"
    rig.turns.close_all()


async def test_a_long_conversation_fits_through_the_cores_own_output_limit() -> None:
    rig = Rig()
    rig.start(commands=(*(user(f"{n}") for n in range(400)), CreateResponse()))
    rig.open_stages()
    assert len(head_of(rig.b.frames_of(Append)[-1][0]).said) == 400
    rig.answer(ModelOutput(text="Yes.", end_of_turn=True))
    assert rig.over and rig.turns.results == {"completed": 1}


async def test_calls_of_functions_come_with_the_answer_they_belong_to() -> None:
    rig = Rig()
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
    rig.start(tools=tools)
    rig.open_stages()
    call = ToolCall(name="look", arguments='{"at":"it"}', call_id="call_1")
    rig.answer(ModelOutput(tool_calls=(call,), end_of_turn=True))
    done = [event["item"] for event in rig.told() if event["type"] == "response.output_item.done"]
    assert [(item["name"], item["arguments"]) for item in done if item["type"] == "function_call"] == [
        ("look", '{"at":"it"}')
    ]
    assert rig.over and rig.told()[-1]["type"] == "response.done"


async def test_what_the_session_core_refuses_ends_the_turn_with_its_error() -> None:
    rig = Rig()
    rig.start(commands=(CreateResponse(),))
    assert [event["error"]["code"] for event in rig.told()] == ["response_create_without_input"]
    assert rig.over and rig.freed() and rig.turns.results == {"failed": 1}


async def test_a_session_object_that_cannot_be_opened_is_refused_by_name() -> None:
    rig = Rig()
    rig.start(temperature="hot")
    assert rig.refusals() == ["bad_event"] and b"session.temperature" in rig.gateway.frames_of(SessionRefused)[0][0]
    assert not rig.a.of(OpenStages) and not len(rig.hub)


@pytest.mark.parametrize(("turns", "capable"), [(0, True), (2, False)])
async def test_a_model_that_does_not_declare_it_answers_none(turns: int, capable: bool) -> None:
    rig = Rig(max_chat_turns=turns, capable=capable)
    rig.start()
    assert rig.refusals() == ["model_not_supported"]


async def test_beyond_the_bound_a_turn_is_refused_and_counted_and_a_cancelled_one_makes_room() -> None:
    rig = Rig(max_chat_turns=1)
    rig.start("turn-1")
    rig.open_stages()
    rig.start("turn-2")
    assert rig.refusals() == ["resource_exhausted"] and rig.turns.results == {"resource_exhausted": 1}
    assert b"retry_after_ms" in rig.gateway.frames_of(SessionRefused)[0][0]
    rig.turns.on_message(rig.gateway, CancelTurn("turn-1"), [])
    assert rig.freed() and rig.turns.results["cancelled"] == 1
    assert not rig.gateway.of(TurnEvents), "a cancelled turn is not answered"
    rig.start("turn-3")
    assert rig.turns.used("fake") == 1
    rig.turns.close_all()


async def test_no_free_slot_or_a_shard_that_drains_refuses() -> None:
    rig = Rig()
    rig.accepting = False
    rig.start()
    rig.accepting = True
    rig.workers.update([registration("a1", "a", rig.spec, used=8), registration("b1", "b", rig.spec)])
    rig.start()
    assert rig.refusals() == ["resource_exhausted"] * 2


async def test_a_turn_ends_with_its_gateway_and_with_its_shard() -> None:
    rig = Rig()
    rig.start("turn-1")
    other = FakeLink("g2", "gateway")
    rig.turns.on_message(other, CancelTurn("turn-1"), [])
    assert len(rig.turns) == 1, "another gateway's word means nothing"
    rig.turns.gateway_lost(rig.gateway)
    assert not len(rig.turns) and not len(rig.hub)
    rig.start("turn-2")
    rig.turns.close_all()
    assert rig.refusals() == ["server_draining"] and not len(rig.turns)


async def test_a_turn_that_takes_too_long_is_ended() -> None:
    rig = Rig(turn_s=0.0)
    rig.start()
    while not rig.refusals():  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert rig.refusals() == ["timeout"] and rig.freed()


async def test_without_credit_events_wait_in_order_and_the_stages_are_free_at_once() -> None:
    rig = Rig()
    rig.start()
    rig.open_stages()
    rig.gateway.credit = False
    rig.answer(ModelOutput(text="A "), ModelOutput(text="cat.", end_of_turn=True))
    assert not rig.gateway.of(TurnEvents) and rig.a.of(CloseStages) and len(rig.turns) == 1
    rig.gateway.credit = True
    rig.turns.on_credit(rig.gateway)
    assert [event["delta"] for event in rig.told() if event["type"].endswith("text.delta")] == ["A ", "cat."]
    assert rig.over and not len(rig.turns)


async def test_more_than_may_wait_for_credit_ends_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_turn, "MAX_WAITING_BYTES", 1000)
    rig = Rig()
    rig.start()
    rig.open_stages()
    rig.gateway.credit = False
    rig.answer(ModelOutput(text="x" * 2000))
    assert rig.refusals() == ["output_backpressure"] and rig.freed() and not len(rig.turns)
