"""A session under any sequence of facts, legal or not, that hypothesis can think of and make short.

After each of them: epochs only grow, no response id comes twice and nothing of an old epoch after its end, bytes
balance, what queues is bounded, errors are coded; and a session restored from a snapshot taken just before does
exactly the same and is the same afterwards. What a client sent before changes nothing when it comes again.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from unit.session.core.event_rules import violations
from unit.session.core.fake_models import FakeModel
from unit.session.core.session_world import Event, World, pick, spoken

from duologue.fence import CommandNo, DeliveryId, StageFence
from duologue.model.outputs import ModelOutput, ToolCall, encode_output
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
from duologue.protocol.realtime.errors import ERROR_CODES, openai_code
from duologue.session.core import (
    Attached,
    Checkpoint,
    Covered,
    Delivered,
    Detached,
    DuplexSessionMachine,
    FromClient,
    SessionCommand,
    SessionEffect,
    SessionLimits,
    StageFailed,
    StageOutput,
    StagesLost,
    StagesReady,
    UnitsAborted,
)

pytestmark = pytest.mark.unit

LIMITS = SessionLimits(
    max_output_events=60, max_output_bytes=120_000, max_ledgers=4, max_history_items=24, idle_ttl_s=1000
)
CODES = {*ERROR_CODES, *map(openai_code, ERROR_CODES)}
_FIELDS = ("playback_item_not_found", "item_not_found", "playback_item_mismatch")
NAMED = {*_FIELDS, *map(openai_code, _FIELDS)}
"""Refusals of a field that the client sent: they name it."""
OUTPUTS = (
    spoken("word ", end_of_turn=False),
    spoken("end", end_of_turn=True),
    ModelOutput(listen=True),
    ModelOutput(text="text only"),
    ModelOutput(),
    ModelOutput(undecided=True),
    ModelOutput(end_of_turn=True),
    ModelOutput(interrupt="turn_detected"),
    ModelOutput(tool_calls=(ToolCall("f", "{}", "c1"), ToolCall(raw="?"))),
    ModelOutput(error_code="recognition_overloaded", error="late"),
)
HINTS: tuple[dict[str, Any], ...] = (
    {},
    {"force_barge_in": True},
    {"overlap_action": "drop"},
    {"overlap_action": "listen"},
    {"transcript": "yeah"},
    {"force_listen": True},
)
UPDATES: tuple[dict[str, Any], ...] = (
    {"temperature": 0.5},
    {"temperature": "hot"},
    {"voice": "alto"},
    {"voice": 7},
    {"modalities": ["text"]},
    {"modalities": ["smell"]},
    {"input_audio_format": "g711_ulaw", "sample_rate_hz": 8000},
    {"input_audio_format": "pcm16", "sample_rate_hz": 16_000},
    {"input_audio_format": "mp3"},
)
ITEMS = ("", "m1", "m2", "none", "root")


class Doubled:
    """A machine that is held against its own restored copy at every fact."""

    def __init__(self, machine: DuplexSessionMachine, plugin: FakeModel) -> None:
        self.machine = machine
        self._plugin = plugin

    def handle(self, fact: SessionCommand, now: float) -> list[SessionEffect]:
        machine = self.machine
        copy = DuplexSessionMachine.restore(machine.snapshot(), plugin=self._plugin, owner=1)
        copy._checkpoints.wanted = machine._checkpoints.wanted  # whoever waits would ask the heir again
        effects = machine.handle(fact, now)
        assert plain(copy.handle(fact, now)) == plain(effects), f"a restored session does something else at {fact}"
        assert state_of(copy) == state_of(machine), f"a restored session is another one after {fact}"
        return effects

    def __getattr__(self, name: str) -> Any:
        return getattr(self.machine, name)


class DuplexRules(RuleBasedStateMachine):
    """See the module."""

    @initialize(
        plan=st.booleans(),
        auto=st.booleans(),
        dialect=st.sampled_from((Dialect.duplex, Dialect.duplex, Dialect.openai)),
        policy=st.sampled_from(("listen_only", "barge_in_on_speech", "barge_in_on_sustained_speech")),
        overflow=st.sampled_from(("close", "fail_response")),
    )
    def open(self, plan: bool, auto: bool, dialect: Dialect, policy: str, overflow: str) -> None:
        session: dict[str, Any] = {"overflow_policy": overflow, "turn_detection": None}
        if policy == "barge_in_on_speech":
            session["turn_detection"] = {"type": "server_vad"}
        else:
            session["overlap_policy"] = policy
        model = FakeModel(answers="plan" if plan else "units", max_in_flight=2)
        self.world = World(model, auto=auto, dialect=dialect, limits=LIMITS, **session)
        self.world.machine = Doubled(self.world.machine, model)  # type: ignore[assignment]
        self.epoch = 0
        self.generation = 1
        self.commands: list[FromClient] = []
        self.stale: list[StageOutput] = []

    # -- the client ------------------------------------------------------------------------------------

    def send(self, command: DuplexCommand) -> list[Event]:
        self.commands.append(FromClient(CommandNo(self.generation, self.world.sent + 1), command))
        self.world.sent += 1
        return self.world.fact(self.commands[-1])

    @rule(
        ms=st.sampled_from((20, 80, 200, 500)),
        loud=st.booleans(),
        hints=st.sampled_from(HINTS),
        times=st.integers(1, 3),
    )
    def say(self, ms: int, loud: bool, hints: dict[str, Any], times: int) -> None:
        for _ in range(times):
            before = len(self.world.events)
            self.world.say(ms, loud, **hints)
            assert len(self.world.events) >= before

    @precondition(lambda self: not self.open_id())
    @rule(times=st.integers(1, 3), output=st.sampled_from(OUTPUTS[:2]))
    def converse(self, times: int, output: ModelOutput) -> None:
        """Somebody speaks, and is being answered: what single rules seldom come to."""
        for _ in range(times):
            self.world.say(80)
        self.commit(True)
        if self.world.waiting:
            self.answer(output, last=True)

    @precondition(lambda self: self.open_id())
    @rule(
        command=st.sampled_from((CreateResponse(), CancelResponse(), BargeIn(), ClearOutput(), CancelInput())),
        before=st.sampled_from(("", "speaks", "writes")),
    )
    def interrupt(self, command: DuplexCommand, before: str) -> None:
        """While a response is open; the next turn may wait for its answer by then."""
        if before == "speaks":
            self.world.say(80)
            self.commit(False)
        elif before == "writes":
            self.create_item("", None)
        self.send(command)

    @precondition(lambda self: "delivers" in self.world.holds)
    @rule()
    def flood(self) -> None:
        """More than a client that reads nothing may be told."""
        doubled = self.world.machine
        self.world.machine = doubled.machine  # type: ignore[attr-defined]  # once would do: each is the same
        for _ in range(LIMITS.max_output_events + LIMITS.reserve_output_events + 2):
            self.send(SessionHeartbeat())
        self.world.machine = doubled

    def open_id(self) -> str:
        response = self.world.machine._ctx.state.response if hasattr(self, "world") else None
        return "" if response is None else response.id

    @rule(respond=st.sampled_from((None, True, False)))
    def commit(self, respond: bool | None) -> None:
        state = self.world.machine._ctx.state
        turn, closed = bytes(state.sound.buffer.pcm), self.world.machine.closed
        told = self.send(Commit(response_create=respond))
        if closed or state.intake.queue or not turn:
            return
        committed = pick(told, "input_audio_buffer.committed")
        if any(not event.get("event", {}).get("empty") for event in committed):
            self.kept(turn)

    def kept(self, turn: bytes) -> None:
        """A committed turn waits for its answer, or is with the stages: every sample of it."""
        sound = self.world.machine._ctx.state.sound
        under_way = b"".join(flight.pcm for _, flight in sorted(sound.flights.items()))
        assert turn in bytes(sound.retained.pcm) or turn in under_way + bytes(sound.feed.pcm), "sound was lost"

    @rule(command=st.sampled_from((CreateResponse(), CancelResponse(), CancelInput(), BargeIn(), ClearInput())))
    def steer(self, command: DuplexCommand) -> None:
        self.send(command)

    @rule(command=st.sampled_from((ClearOutput(), SessionHeartbeat(), TurnSignal(event="user_started"))))
    def tell(self, command: DuplexCommand) -> None:
        self.send(command)

    @rule(played=st.integers(-5, 2000), named=st.sampled_from((None, *ITEMS)), cut=st.booleans())
    def acknowledge(self, played: int, named: str | None, cut: bool) -> None:
        told = self.send(AckPlayback(played_ms=played, item_id=named or None, truncate=cut))
        self.refused_by_name(told)

    @rule(item_id=st.sampled_from(ITEMS), what=st.sampled_from((RetrieveItem, DeleteItem)))
    def touch_item(self, item_id: str, what: type[RetrieveItem | DeleteItem]) -> None:
        self.refused_by_name(self.send(what(item_id=item_id)))

    @rule(end=st.integers(0, 900), item_id=st.sampled_from(ITEMS))
    def truncate(self, end: int, item_id: str) -> None:
        self.refused_by_name(self.send(TruncateItem(item_id=item_id, audio_end_ms=end)))

    @rule(item_id=st.sampled_from(ITEMS[:3]), after=st.sampled_from((None, *ITEMS)))
    def create_item(self, item_id: str, after: str | None) -> None:
        text = ContentPart(type="input_text", text="hi")
        self.send(CreateItem(item=message_item(item_id, "user", text), previous_item_id=after or None))

    @rule(call_id=st.sampled_from(("c1", "c2", "nobody")))
    def answer_call(self, call_id: str) -> None:
        self.send(CreateItem(item=Item(id="", type="function_call_output", call_id=call_id, output="{}")))

    @rule(patch=st.sampled_from(UPDATES))
    def update(self, patch: dict[str, Any]) -> None:
        self.send(SessionUpdate(session=patch))

    @precondition(lambda self: self.commands)
    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        """As a gateway does it for an heir: what was applied is not applied again."""
        known = [one for one in self.commands if one.no <= self.world.machine.applied]
        if known:
            again = data.draw(st.sampled_from(known))
            before = len(self.world.effects)
            self.world.fact(again)
            assert self.world.effects[before:] == [], f"{again} was applied twice"

    # -- the stages ------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.waiting)
    @rule(output=st.sampled_from(OUTPUTS), last=st.booleans())
    def answer(self, output: ModelOutput, last: bool) -> None:
        unit = self.world.waiting[0]
        frames = (b"\1\0" * 1920,) if output.audio_rate_hz else ()
        self.stale.append(StageOutput(unit.fence, 1, -1, unit.unit, unit.turn_id, True, encode_output(output), frames))
        self.world.answer(output, last=last)

    @precondition(lambda self: self.stale)
    @rule(data=st.data(), owner=st.sampled_from((0, 1, 2)), binding=st.integers(0, 3))
    def answer_late(self, data: st.DataObject, owner: int, binding: int) -> None:
        """Under a fence that was in force, or never: nobody hears of it."""
        old = data.draw(st.sampled_from(self.stale))
        fence = StageFence(owner, binding, old.fence.epoch)
        if fence != self.world.fences[-1]:
            before = len(self.world.events)
            self.world.fact(msgspec.structs.replace(old, fence=fence))
            spoken_of = pick(self.world.events[before:], "response.created", "response.output_audio.delta")
            assert not spoken_of, f"an output under {fence} was heard"
            before, epoch = len(self.world.events), self.epoch
            self.world.fact(StageFailed(fence, 0, old.unit, "engine_error", "late"))
            assert self.world.machine._ctx.state.epoch == epoch, f"a failure under {fence} was heard"
            assert not pick(self.world.events[before:], "response.done")

    @precondition(lambda self: self.world.waiting)
    @rule()
    def fail_unit(self) -> None:
        unit = self.world.waiting[0]
        self.world.fact(StageFailed(unit.fence, 0, unit.unit, "engine_error", "broke"))

    @rule(older=st.integers(0, 2))
    def lose_stages(self, older: int) -> None:
        fence = self.world.fences[max(0, len(self.world.fences) - 1 - older)]
        self.world.fact(StagesLost(fence, "worker_lost", "gone"))

    @rule(part=st.sampled_from(("covers", "delivers", "aborts", "ready")))
    def toggle(self, part: str) -> None:
        """A part of the world stops, or catches up."""
        world = self.world
        if part not in world.holds:
            world.holds.add(part)
            return
        world.holds.discard(part)
        if part == "covers" and world.checkpoints:
            world.fact(Covered(world.checkpoints[-1].number))
        elif part == "delivers":
            world.fact(Delivered(DeliveryId(1, world.last_n)))
        elif part == "ready":
            world.fact(StagesReady(world.fences[-1]))
        elif part == "aborts":
            world.fact(UnitsAborted(world.fences[-1], tuple(range(0, 500, 2)), tuple(range(1, 500, 2))))

    # -- time, sockets, the store ------------------------------------------------------------------------

    @rule(seconds=st.sampled_from((0.01, 0.08, 0.4, 2.0)))
    def advance(self, seconds: float) -> None:
        self.world.advance(seconds)

    @rule(generation=st.integers(0, 3), comes=st.booleans())
    def attach(self, generation: int, comes: bool) -> None:
        self.world.fact(Attached(generation) if comes else Detached(generation))

    @rule(number=st.integers(0, 50), through=st.integers(0, 200))
    def confirm_something_old(self, number: int, through: int) -> None:
        """Answers that were under way for long: never of what is not out yet."""
        if self.world.checkpoints and number <= self.world.checkpoints[-1].number:
            self.world.fact(Covered(number))
        if through <= self.world.last_n:
            self.world.fact(Delivered(DeliveryId(1, through)))

    # -- what must hold -----------------------------------------------------------------------------------

    def refused_by_name(self, told: list[Event]) -> None:
        for event in pick(told, "error"):
            if event["error"]["code"] in NAMED:
                assert event["error"]["param"], event

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "world"):
            return
        state = self.world.machine._ctx.state
        assert state.epoch >= self.epoch, "the epoch went back"
        self.epoch = state.epoch
        self.balanced(state)
        self.bounded(state)
        ended = pick(self.world.events, "response.done")
        cancelled = {event["response"]["id"] for event in ended if event["response"]["status"] == "cancelled"}
        waiting = {entry.media_of for entry in (*state.outbox.sent, *state.outbox.held)}
        assert not waiting & cancelled, "sound of a cancelled response waits to be heard"

    def balanced(self, state: Any) -> None:
        outbox, sound = state.outbox, state.sound
        assert outbox.size_bytes == sum(len(entry.body) for entry in (*outbox.sent, *outbox.held))
        assert sound.flight_bytes == sum(len(flight.pcm) for flight in sound.flights.values())
        assert sound.in_window == sum(flight.is_input for flight in sound.flights.values())
        for buffer in (sound.feed, sound.buffer, sound.retained):
            assert sum(segment.size for segment in buffer.segments) == len(buffer.pcm)
        if self.world.machine.closed:
            assert self.world.machine.pending_input_bytes == 0

    def bounded(self, state: Any) -> None:
        outbox = state.outbox
        assert outbox.events <= LIMITS.max_output_events + LIMITS.reserve_output_events + 1
        most = LIMITS.max_output_bytes + LIMITS.reserve_output_bytes + LIMITS.close_slot_bytes
        assert outbox.size_bytes <= most
        assert len(state.ledgers) <= LIMITS.max_ledgers
        assert state.sound.in_window <= 2

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.catch_up()
        assert list(violations(self.world.events)) == []
        self.ended()
        for event in pick(self.world.events, "error"):
            error = event["error"]
            assert error["code"] != "internal_error", error
            assert error["code"] in CODES and error["message"] and "param" in error, error

    def catch_up(self) -> None:
        """The store and the egress are back: what was held is told."""
        world = self.world
        world.holds -= {"covers", "delivers"}
        for _ in range(4):
            if world.checkpoints:
                world.fact(Covered(world.checkpoints[-1].number))
            world.fact(Delivered(DeliveryId(1, world.last_n)))

    def ended(self) -> None:
        """Each response that was announced is told to be done, but for the one that is open now."""
        told = self.world.events
        begun = {event["response"]["id"] for event in pick(told, "response.created")}
        done = {event["response"]["id"] for event in pick(told, "response.done")}
        response = self.world.machine._ctx.state.response
        assert begun - done <= ({response.id} if response is not None else set()), "a response never ended"


def plain(effects: list[SessionEffect]) -> list[object]:
    """Effects to compare: checkpoints by their content."""
    return [
        (effect.number, effect.applied, msgspec.msgpack.decode(effect.body))
        if isinstance(effect, Checkpoint)
        else effect
        for effect in effects
    ]


def state_of(machine: DuplexSessionMachine) -> Any:
    return msgspec.msgpack.decode(machine.snapshot())


DuplexRules.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[phase for phase in Phase if phase is not Phase.shrink or not os.environ.get("NO_SHRINK")],
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
    ],
)
TestDuplexRules = pytest.mark.timeout(300)(DuplexRules.TestCase)
