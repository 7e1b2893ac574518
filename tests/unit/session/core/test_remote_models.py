"""A model that keeps the conversation itself, elsewhere: it is told what was written and heard, and may give up."""

from __future__ import annotations

from typing import Any

import pytest
from unit.session.core.fake_models import FakeModel, FakeState, planning
from unit.session.core.session_world import World, error_codes, pick, spoken, types

from duologue.model.outputs import ModelOutput
from duologue.model.plugin import AppendPlan, StageControl
from duologue.protocol.duplex import (
    AckPlayback,
    CancelResponse,
    ClearOutput,
    ContentPart,
    CreateItem,
    Dialect,
    Item,
    TruncateItem,
    message_item,
)
from duologue.session.core import Abort, CloseStages, ControlStage

pytestmark = pytest.mark.unit


class Remote(FakeModel):
    """Passes everything on."""

    def on_item(self, state: FakeState, item: Item) -> AppendPlan | None:
        return AppendPlan(item.text.encode(), stage=1)

    def on_heard(self, state: FakeState, heard_ms: int) -> StageControl | None:
        return StageControl(1, "heard", b"%d" % heard_ms)


def speaking(plugin: FakeModel) -> World:
    world = World(plugin, auto=True)
    world.say(320)
    world.answer(spoken("one "))
    world.answer(spoken("two "))
    world.effects.clear()
    return world


def heard(world: World) -> list[bytes]:
    return [effect.body for effect in world.effects if isinstance(effect, ControlStage) and effect.kind == "heard"]


def test_what_was_heard_is_told_ahead_of_the_cancel() -> None:
    world = speaking(Remote())
    world.send(AckPlayback(played_ms=100))
    world.send(CancelResponse())
    assert heard(world) == [b"100"]
    kinds = [type(effect) for effect in world.effects]
    assert kinds.index(ControlStage) < kinds.index(Abort)
    control = next(effect for effect in world.effects if isinstance(effect, ControlStage))
    assert (control.fence.epoch, control.stage) == (0, 1)


def test_a_cancel_with_nothing_acknowledged_says_that_nothing_was_heard() -> None:
    world = speaking(Remote())
    world.send(CancelResponse())
    assert heard(world) == [b"0"]


@pytest.mark.parametrize("how", ["clear", "truncate"])
def test_a_finished_answer_that_is_cut_is_told(how: str) -> None:
    world = speaking(Remote())
    done = pick(world.answer(spoken("three", end_of_turn=True)), "response.done")[0]
    world.send(AckPlayback(played_ms=90))
    item_id = f"item_{done['response_id']}"
    world.send(ClearOutput() if how == "clear" else TruncateItem(item_id=item_id, content_index=0, audio_end_ms=50))
    assert heard(world) == [b"90" if how == "clear" else b"50"]


def test_a_model_that_does_not_care_is_told_nothing() -> None:
    world = speaking(FakeModel())
    world.send(CancelResponse())
    assert heard(world) == []


def test_a_written_item_is_given_to_the_model() -> None:
    world = World(Remote(), auto=True)
    world.send(CreateItem(item=message_item("item_1", "user", ContentPart(type="input_text", text="hello"))))
    (submit,) = world.submits
    assert (submit.head, submit.stage) == (b"hello", 1)


def test_a_model_that_plans_is_given_the_conversation_instead() -> None:
    plugin = planning()
    plugin.on_item = lambda state, item: pytest.fail("asked")  # type: ignore[method-assign]
    world = World(plugin, auto=True)
    world.send(CreateItem(item=message_item("item_1", "user", ContentPart(type="input_text", text="hello"))))
    assert world.submits == []


@pytest.mark.parametrize(("code", "close"), [("upstream_refused", 1011), ("resource_exhausted", 1013)])
def test_a_fatal_failure_is_told_and_closes_the_session(code: str, close: int) -> None:
    world = speaking(Remote())
    seen = world.answer(ModelOutput(error_code=code, error="no more", fatal=True))
    assert error_codes(seen) == [code]
    assert types(seen)[-1] == "session.closed"
    assert pick(seen, "response.done")[0]["response"]["status"] == "cancelled"
    assert any(isinstance(effect, CloseStages) for effect in world.effects)
    assert world.machine.closed


@pytest.mark.parametrize(
    ("dialect", "session", "silence_ms"),
    [
        (Dialect.duplex, {}, 800),
        (Dialect.duplex, {"turn_detection": None}, None),
        (Dialect.duplex, {"audio": {"input": {"turn_detection": None}}}, None),
        (Dialect.duplex, {"turn_detection": {"type": "server_vad"}}, 500),
        (Dialect.openai, {}, 500),
    ],
)
def test_a_model_may_have_a_turn_detection_of_its_own(
    dialect: Dialect, session: dict[str, Any], silence_ms: int | None
) -> None:
    """It holds where a client of the duplex dialect says nothing; the OpenAI dialects have a default of theirs."""
    own = {"type": "server_vad", "silence_duration_ms": 800}
    world = World(FakeModel(turn_detection=own), dialect=dialect, **session)
    told = world.events[0]["session"]
    detection = told["turn_detection"] if dialect is Dialect.duplex else told["audio"]["input"]["turn_detection"]
    assert (detection and detection["silence_duration_ms"]) == silence_ms
