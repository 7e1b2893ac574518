"""Random commands, legal or not, at random times: what must hold holds, and a restored session does the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from unit.session.core.event_rules import violations
from unit.session.core.fake_models import UNIT_BYTES, FakeModel
from unit.session.core.session_world import World, pick, spoken
from unit.session.core.test_rebuild import Remembering

from duologue.model.outputs import ModelOutput, ToolCall, UserTurn
from duologue.protocol.duplex import (
    AckPlayback,
    BargeIn,
    CancelInput,
    CancelResponse,
    ClearInput,
    ClearOutput,
    Commit,
    ContentPart,
    CreateItem,
    CreateResponse,
    DeleteItem,
    Dialect,
    DuplexCommand,
    Item,
    RetrieveItem,
    SessionHeartbeat,
    SessionUpdate,
    TruncateItem,
    TurnSignal,
    message_item,
)
from duologue.session.core import (
    Attached,
    Checkpoint,
    Covered,
    Detached,
    SessionLimits,
    StageFailed,
    StagesLost,
    UnitsAborted,
)

pytestmark = pytest.mark.unit

STEPS = 160


class Chaos:
    """One seeded session. `restarts`: it goes on from a snapshot now and then."""

    def __init__(self, seed: int, restarts: bool) -> None:
        self.r = random.Random(seed)
        self.restarts = random.Random(seed + 1) if restarts else None
        plans, auto = self.r.random() < 0.3, self.r.random() < 0.5
        dialect = self.r.choice([Dialect.duplex, Dialect.duplex, Dialect.openai, Dialect.openai_beta])
        limits = SessionLimits(max_output_events=self.r.choice([512, 60]), idle_ttl_s=1000)
        policy = self.r.choice(["listen_only", "barge_in_on_speech", "barge_in_on_sustained_speech"])
        session: dict[str, Any] = {"overflow_policy": self.r.choice(["close", "fail_response"]), "turn_detection": None}
        if policy == "barge_in_on_speech":
            session["turn_detection"] = {"type": "server_vad"}
        else:
            session["overlap_policy"] = policy if policy != "listen_only" else "listen_only"
        model = self.model("plan" if plans else "units", self.r.choice([2, 8]))
        self.world = World(model, auto=auto, dialect=dialect, limits=limits, **session)
        self.epoch = 0

    def model(self, answers: str, max_in_flight: int) -> FakeModel:
        return FakeModel(answers=answers, max_in_flight=max_in_flight)

    def run(self) -> World:
        for _ in range(STEPS):
            self.r.choice(self.choices())()
            if self.restarts is not None and self.restarts.random() < 0.2:
                self.world.restart()
            self.check()
        return self.world

    def check(self) -> None:
        world = self.world
        state = world.machine._ctx.state
        assert "internal_error" not in [event["error"]["code"] for event in pick(world.events, "error")]
        assert state.epoch >= self.epoch
        self.epoch = state.epoch
        outbox, sound = state.outbox, state.sound
        assert outbox.size_bytes == sum(len(entry.body) for entry in (*outbox.sent, *outbox.held))
        assert outbox.events <= world.limits.max_output_events + world.limits.reserve_output_events + 1
        assert sound.flight_bytes == sum(len(flight.pcm) for flight in sound.flights.values())
        assert sound.in_window == sum(flight.is_input for flight in sound.flights.values())
        for buffer in (sound.feed, sound.buffer, sound.retained):
            assert sum(segment.size for segment in buffer.segments) == len(buffer.pcm)
        if world.machine.closed:
            assert world.machine.pending_input_bytes == 0
        assert len(sound.feed.pcm) < UNIT_BYTES or len(sound.flights) > 0 or not state.ready or state.aborting.units

    def choices(self) -> list[Callable[[], object]]:
        w, r = self.world, self.r
        items = [event["item"]["id"] for event in pick(w.events, "conversation.item.done")] or ["none"]
        some = r.choice(items)
        say = lambda: w.say(r.choice([20, 80, 200, 500]), r.random() < 0.7, **r.choice(HINTS))  # noqa: E731
        answer = lambda: w.answer(self.output(), last=r.random() < 0.9) if w.waiting else None  # noqa: E731
        return [
            *[say] * 6,
            *[answer] * 10,
            *[lambda: w.advance(r.choice([0.01, 0.08, 0.4]))] * 4,
            *[lambda: w.send(Commit(response_create=r.choice([None, True, False])))] * 3,
            lambda: w.send(CreateResponse()),
            lambda: w.send(CancelResponse()),
            lambda: w.send(one_of(r, CancelInput(), BargeIn(), ClearInput(), ClearOutput())),
            lambda: w.send(AckPlayback(played_ms=r.randint(-5, 900), truncate=r.random() < 0.1)),
            lambda: w.send(AckPlayback(played_ms=r.randint(0, 400), item_id=some)),
            lambda: w.send(TruncateItem(item_id=some, audio_end_ms=r.randint(0, 500))),
            lambda: w.send(
                CreateItem(item=typed(r.choice(["", "m1", "m2"])), previous_item_id=r.choice([None, some, "root"]))
            ),
            lambda: w.send(one_of(r, RetrieveItem(item_id=some), DeleteItem(item_id=some))),
            lambda: w.send(result(r.choice(["c1", "c2", "c3"]))),
            lambda: w.send(SessionUpdate(session=r.choice(UPDATES))),
            lambda: w.send(one_of(r, SessionHeartbeat(), TurnSignal(event="user_started"))),
            lambda: self.toggle(),
            lambda: self.fail(),
            lambda: w.fact(Attached(r.randint(0, 3)) if r.random() < 0.5 else Detached(r.randint(0, 3))),
        ]

    def output(self) -> ModelOutput:
        r = self.r
        return r.choice(
            [
                spoken("word ", end_of_turn=False),
                spoken("word ", end_of_turn=False),
                spoken("end", end_of_turn=True),
                ModelOutput(listen=True),
                ModelOutput(text="text only"),
                ModelOutput(),
                ModelOutput(undecided=True),
                ModelOutput(end_of_turn=True),
                ModelOutput(speech_started_ms=r.randint(0, 900)),
                ModelOutput(speech_stopped_ms=r.randint(0, 900)),
                ModelOutput(user_turn=UserTurn(r.choice(["hello", ""]), 0, 80, answer=r.random() < 0.7)),
                ModelOutput(interrupt="turn_detected"),
                ModelOutput(tool_calls=(ToolCall("f", "{}", r.choice(["c1", "c2"])), ToolCall(raw="?"))),
                ModelOutput(error_code="recognition_overloaded", error="late"),
            ]
        )

    def toggle(self) -> None:
        """A part of the world stops, or catches up."""
        world = self.world
        part = self.r.choice(["covers", "delivers", "aborts"])
        if part not in world.holds:
            world.holds.add(part)
            return
        world.holds.discard(part)
        if part == "covers" and world.checkpoints:
            world.fact(Covered(world.checkpoints[-1].number))
        if part == "aborts":
            world.fact(UnitsAborted(world.fences[-1], tuple(range(0, 500, 2)), tuple(range(1, 500, 2))))

    def fail(self) -> None:
        world = self.world
        if world.waiting and self.r.random() < 0.5:
            unit = world.waiting[0]
            world.fact(StageFailed(unit.fence, 0, unit.unit, "engine_error", "broke"))
        elif self.r.random() < 0.3:
            world.fact(StagesLost(world.fences[-1], "worker_lost", "gone"))


def one_of(r: random.Random, *commands: DuplexCommand) -> DuplexCommand:
    return r.choice(commands)


HINTS: list[dict[str, object]] = [
    {},
    {},
    {},
    {"force_barge_in": True},
    {"overlap_action": "drop"},
    {"overlap_action": "listen"},
    {"transcript": "yeah"},
    {"force_listen": True},
]
UPDATES: list[dict[str, object]] = [
    {"temperature": 0.5},
    {"instructions": "Hm."},
    {"voice": "alto"},
    {"modalities": ["text"]},
    {"modalities": ["text", "audio"]},
    {"output_audio_format": {"type": "pcm16", "rate": 16_000}},
    {"input_audio_format": "g711_ulaw", "sample_rate_hz": 8000},
    {"input_audio_format": "pcm16", "sample_rate_hz": 16_000},
]


def typed(item_id: str) -> Item:
    return message_item(item_id, "user", ContentPart(type="input_text", text="hi"))


def result(call_id: str) -> CreateItem:
    return CreateItem(item=Item(id="", type="function_call_output", call_id=call_id, output="{}"))


@pytest.mark.parametrize("seed", range(60))
def test_what_must_hold_holds_and_a_restored_session_does_the_same(seed: int) -> None:
    plain = Chaos(seed, restarts=False).run()
    assert list(violations(plain.events)) == []
    restored = Chaos(seed, restarts=True).run()
    assert seen(restored) == seen(plain)


class Forgetful(Chaos):
    """The same with a pipeline that rebuilds contexts, and more of what loses them."""

    def model(self, answers: str, max_in_flight: int) -> FakeModel:
        r = self.r
        return Remembering(
            r.choice(["input", "input", "history"]),
            pipelined=r.random() < 0.8,
            answers=answers,
            max_in_flight=max_in_flight,
            cancel_keeps_context=r.random() < 0.7,
        )

    def choices(self) -> list[Callable[[], object]]:
        lose = lambda: self.world.fact(StagesLost(self.world.fences[-1], "worker_lost", "gone"))  # noqa: E731
        return [*super().choices(), lose, lambda: self.world.waiting and self.world.answer(self.output())]

    def output(self) -> ModelOutput:
        output = super().output()
        return msgspec.structs.replace(output, rebind="context_rollover") if self.r.random() < 0.02 else output

    def check(self) -> None:
        super().check()
        state = self.world.machine._ctx.state
        rebuild, sound = state.rebuild, state.sound
        assert rebuild.opened is None or not state.ready, "nothing live goes before the context is there"
        if rebuild.opened is None:
            assert not sound.replays and not sound.replaying
        elif "recalls" not in self.world.holds and not state.life.closing:
            assert sound.replaying, "a rebuild goes on until it is over"


@pytest.mark.parametrize("seed", range(25))
def test_contexts_that_are_rebuilt_change_nothing_of_it(seed: int) -> None:
    plain = Forgetful(seed, restarts=False).run()
    assert list(violations(plain.events)) == []
    restored = Forgetful(seed, restarts=True).run()
    assert seen(restored) == seen(plain)


def seen(world: World) -> list[object]:
    """The effects, checkpoints by their content."""
    return [
        (effect.number, effect.applied, msgspec.msgpack.decode(effect.body))
        if isinstance(effect, Checkpoint)
        else effect
        for effect in world.effects
    ]
