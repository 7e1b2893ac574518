"""From open to release: admission, dispatch, backpressure, endings. What is taken is given back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from unit.session.shell.shell_rig import FENCE, FakeLink, Shell, owned, through

from duologue.bus import messages as bus
from duologue.bus.link import PeerLost
from duologue.fence import CommandNo, DeliveryId, Owner
from duologue.protocol.duplex import AppendAudio, Commit, SessionHeartbeat
from duologue.protocol.realtime.errors import RealtimeProtocolError
from duologue.session.clockwork import Clockwork
from duologue.session.core import commands as facts
from duologue.session.core import effects as orders
from duologue.session.core.limits import SessionLimits
from duologue.session.opening import MAX_EARLY
from duologue.session.recorder import RecordedFact, Recorder
from duologue.session.runner import CATCH_UP_S

pytestmark = pytest.mark.unit


@pytest.fixture
async def shell() -> AsyncIterator[Shell]:
    made = Shell(max_sessions=3, limits=SessionLimits(max_pending_input_bytes=100))
    made.register_workers()
    yield made
    await made.close()


def refusal(link: FakeLink) -> tuple[bus.SessionRefused, dict[str, object]]:
    message = link.of(bus.SessionRefused)[-1]
    event = msgspec.json.decode(link.frames_of(bus.SessionRefused)[-1][0])
    assert event["type"] == "error"
    assert "event_id" not in event
    return message, event["error"]


async def test_an_opened_session_is_owned_announced_and_bound(shell: Shell) -> None:
    await shell.open()
    opened = shell.gateway.of(bus.SessionOpened)
    assert opened == [bus.SessionOpened("s", owned(1))]
    assert shell.gateway.frames_of(bus.SessionOpened) == [[b'{"id":"s"}']]
    kinds = [type(message) for message, _ in shell.gateway.sent]
    assert kinds == [bus.SessionOpened, bus.Deliveries]
    stored = await shell.store.sessions.look_up("s")
    assert stored is not None
    assert (stored.owner, stored.record.generation, stored.record.dialect) == (owned(1), 1, "duplex")
    assert shell.worker_a.sent == [(bus.OpenStages("s", FENCE, "toy", (0, 1)), [b"c0", b"c1"])]
    assert shell.worker_b.sent == [(bus.OpenStages("s", FENCE, "toy", (2, 3)), [b"c2", b"c3"])]


async def test_stages_are_ready_when_every_group_has_opened(shell: Shell) -> None:
    machine = await shell.open()
    shell.board.on_message(shell.worker_a, bus.StagesOpened("s", FENCE, (0, 1)), [])
    assert facts.StagesReady(FENCE) not in machine.handled
    shell.board.on_message(shell.worker_b, bus.StagesOpened("s", FENCE, (2, 3)), [])
    assert facts.StagesReady(FENCE) in machine.handled


async def test_one_unit_goes_in_and_its_events_leave_as_one_message(shell: Shell) -> None:
    machine = await shell.open()
    shell.gateway.clear()
    shell.say("s", 1, AppendAudio(audio=b"pcm", event_id="e1"))
    [append] = shell.worker_a.of(bus.Append)
    assert (append.unit, append.stage, append.deadline_ms) == (1, 0, 30_000)
    assert shell.worker_a.frames_of(bus.Append) == [[b"head", b"pcm"]]
    output = bus.Output("s", FENCE, 3, -1, 1, 0)
    shell.board.on_message(shell.worker_b, output, [b"out", b"sound"])
    fact = machine.handled[-1]
    assert isinstance(fact, facts.StageOutput)
    assert (fact.head, fact.frames) == (b"out", (b"sound",))
    [deliveries] = shell.gateway.of(bus.Deliveries)
    assert [event.n for event in deliveries.events] == [2, 3]
    assert shell.gateway.frames_of(bus.Deliveries) == [[b'{"n":2}', b'{"n":3}']]


async def test_what_a_stage_hands_on_goes_through_the_core_to_the_stage_it_names(shell: Shell) -> None:
    machine = await shell.open()
    machine.script = lambda fact: (
        [orders.Submit(FENCE, fact.to_stage, fact.unit, fact.turn_id, fact.head, fact.frames)]
        if isinstance(fact, facts.StageOutput)
        else None
    )
    shell.board.on_message(shell.worker_a, bus.Output("s", FENCE, 1, 2, 1, 0, False), [b"h", b"f"])
    [append] = shell.worker_b.of(bus.Append)
    assert (append.stage, append.unit) == (2, 1)
    assert shell.worker_b.frames_of(bus.Append) == [[b"h", b"f"]]


@pytest.mark.parametrize(("model", "code", "close"), [("nobody", "model_not_found", 1008)])
async def test_an_unknown_model_is_refused(shell: Shell, model: str, code: str, close: int) -> None:
    message = bus.OpenSession("s", "duplex", "key", b"d", "g1")
    shell.board.on_message(shell.gateway, message, [msgspec.json.encode({"model": model})])
    told, error = refusal(shell.gateway)
    assert (told.code, told.close_code, error["code"]) == (code, close, code)
    assert error["param"] == "session.model"


@pytest.mark.parametrize("body", [b"{", b"[]"])
async def test_a_body_that_is_no_object_is_refused(shell: Shell, body: bytes) -> None:
    shell.board.on_message(shell.gateway, bus.OpenSession("s", "duplex", "key", b"d", "g1"), [body])
    told, _ = refusal(shell.gateway)
    assert (told.code, told.close_code) == ("invalid_session_config", 1008)
    assert len(shell.admission) == 0


async def test_a_refused_configuration_leaves_the_id_free(shell: Shell) -> None:
    shell.refuse_open = RealtimeProtocolError("invalid_session_config", "no", param="session.voice")
    message = bus.OpenSession("s", "openai", "key", b"d", "g1")
    shell.board.on_message(shell.gateway, message, [b"{}"])
    await shell.background.settle()
    told, error = refusal(shell.gateway)
    assert (told.code, error["param"], len(shell.admission)) == ("invalid_session_config", "session.voice", 0)
    assert await shell.store.sessions.look_up("s") is None
    shell.refuse_open = None
    await shell.open("s")
    assert shell.gateway.of(bus.SessionOpened)


async def test_a_full_shard_says_when_to_come_back(shell: Shell) -> None:
    for session_id in "abc":
        await shell.open(session_id)
    await shell.open("d")
    told, error = refusal(shell.gateway)
    assert (told.session_id, told.code, told.close_code) == ("d", "resource_exhausted", 1013)
    assert (error["retryable"], error["retry_after_ms"]) == (True, 1000)
    assert (len(shell.admission), len(shell.manager)) == (3, 3)


async def test_without_a_worker_nothing_is_opened(shell: Shell) -> None:
    shell.board.on_lost(shell.worker_b, PeerLost(shell.worker_b.peer, "silent"))
    await shell.open_refused()
    told, error = refusal(shell.gateway)
    assert (told.code, told.close_code) == ("resource_exhausted", 1013)
    assert "b" in str(error["message"])
    assert len(shell.admission) == 0


async def test_an_id_is_open_once(shell: Shell) -> None:
    await shell.open("s")
    await shell.open("s")
    assert refusal(shell.gateway)[0].code == "session_exists"
    assert len(shell.manager) == 1


async def test_too_many_bytes_are_refused_in_their_place(shell: Shell) -> None:
    machine = await shell.open()
    machine.pending_input_bytes = 90
    shell.say("s", 1, AppendAudio(audio=b"x" * 10, event_id="fits"))
    shell.say("s", 2, AppendAudio(audio=b"x" * 11, event_id="over"))
    shell.say("s", 3, SessionHeartbeat(event_id="alive"))
    refused = machine.handled[-2]
    assert isinstance(refused, facts.InputRefused)
    assert (refused.event_id, refused.code, refused.no) == ("over", "input_backpressure", CommandNo(1, 2))
    assert refused.retry_after_ms > 0
    assert (refused.param, refused.retryable) == ("audio", True)
    shell.say("s", 4, AppendAudio(audio=b"x" * 101, event_id="never"))
    never = machine.handled.pop()
    assert isinstance(never, facts.InputRefused)
    assert (never.param, never.retryable) == ("audio", False)
    assert isinstance(machine.handled[-3], facts.FromClient)
    assert isinstance(machine.handled[-1], facts.FromClient)


async def test_a_fifth_waiting_commit_is_refused(shell: Shell) -> None:
    machine = await shell.open()
    machine.queued_commits = 3
    shell.say("s", 1, Commit())
    assert isinstance(machine.handled[-1], facts.FromClient)
    machine.queued_commits = 4
    shell.say("s", 2, Commit(event_id="c"))
    assert isinstance(machine.handled[-1], facts.InputRefused)


async def test_a_command_of_another_attachment_is_void(shell: Shell) -> None:
    machine = await shell.open()
    before = len(machine.handled)
    shell.say("s", 1, SessionHeartbeat(), generation=0)
    shell.say("s", 1, SessionHeartbeat(), generation=2)
    assert len(machine.handled) == before


async def test_a_session_that_is_not_here_is_somebody_elses(shell: Shell) -> None:
    shell.say("ghost", 1, SessionHeartbeat())
    assert shell.gateway.of(bus.OwnerChanged) == [bus.OwnerChanged("ghost", Owner())]
    shell.board.on_message(shell.gateway, bus.Attach("ghost", 2, 5, "g1"), [])
    await shell.background.settle()
    assert refusal(shell.gateway)[0].code == "session_resume_expired"


async def test_a_session_ends_when_its_last_event_is_acknowledged(shell: Shell) -> None:
    machine = await shell.open()
    machine.script = lambda fact: machine.close("client_close") if isinstance(fact, facts.FromClient) else None
    shell.say("s", 1, SessionHeartbeat())
    assert shell.gateway.of(bus.Deliveries)[-1].events[-1].close_code == 1000
    assert [type(m) for m, _ in shell.worker_a.sent][-1] is bus.CloseStages
    assert len(shell.manager) == 1
    shell.board.on_message(shell.gateway, bus.Delivered("s", owned(1), 1, through(1, 2), 2), [])
    assert (len(shell.manager), len(shell.admission), len(shell.hub)) == (0, 0, 0)
    await shell.background.settle()
    assert await shell.store.sessions.look_up("s") is None
    assert shell.manager.ended == {"client_close": 1}
    assert [worker.bound for worker in shell.workers] == [{}, {}]


async def test_a_replaced_owner_stops_and_leaves_the_store_alone(shell: Shell) -> None:
    machine = await shell.open()
    heir = await shell.store.sessions.own("s", incarnation="heir", above=1)
    machine.script = lambda fact: [machine.checkpoint()] if isinstance(fact, facts.FromClient) else None
    shell.say("s", 1, SessionHeartbeat())
    await shell.background.settle()
    [changed] = shell.gateway.of(bus.OwnerChanged)
    assert changed.owner == getattr(heir, "owner", None)
    assert (len(shell.manager), len(shell.admission), len(shell.hub)) == (0, 0, 0)
    stored = await shell.store.sessions.look_up("s")
    assert stored is not None
    assert stored.owner.incarnation == "heir"


async def test_a_confirmed_checkpoint_is_told_to_core_and_gateway(shell: Shell) -> None:
    machine = await shell.open()
    shell.say("s", 1, SessionHeartbeat())
    shell.board.on_message(shell.gateway, bus.WantCovered("s"), [])
    await shell.background.settle()
    assert shell.gateway.of(bus.Covered) == [bus.Covered("s", owned(1), CommandNo(1, 1), DeliveryId(1, machine.n))]
    assert machine.covered == CommandNo(1, 1)
    kept = await shell.store.sessions.read_checkpoint("s")
    assert kept is not None
    assert (kept.owner, kept.number, kept.blob) == (1, 1, b"state")


async def test_an_open_whose_gateway_dies_before_it_heard_is_closed(shell: Shell) -> None:
    machine = await shell.open()
    shell.board.on_lost(shell.gateway, PeerLost(shell.gateway.peer, "silent"))
    assert facts.CloseRequested("open_abandoned") in machine.handled
    # The terminal event is journaled by the shard's own egress.
    [egress] = shell.egresses
    assert egress.running
    shell.manager.residents[0].runner.delivered(through(1, 2))
    assert (len(shell.manager), len(shell.admission)) == (0, 0)


async def test_an_open_whose_gateway_dies_meanwhile_is_closed_as_it_opens(shell: Shell) -> None:
    message = bus.OpenSession("s", "duplex", "key", b"d", "g1")
    shell.board.on_message(shell.gateway, message, [b"{}"])
    shell.board.on_lost(shell.gateway, PeerLost(shell.gateway.peer, "silent"))
    await shell.background.settle()
    assert facts.CloseRequested("open_abandoned") in shell.machines[-1].handled


async def test_commands_that_come_while_the_session_opens_are_kept(shell: Shell) -> None:
    message = bus.OpenSession("s", "duplex", "key", b"d", "g1")
    shell.board.on_message(shell.gateway, message, [b"{}"])
    shell.say("s", 1, SessionHeartbeat(event_id="early"))
    await shell.background.settle()
    fact = shell.machines[-1].handled[-1]
    assert isinstance(fact, facts.FromClient)
    assert fact.command.event_id == "early"


async def test_commands_that_come_too_early_are_bounded(shell: Shell) -> None:
    message = bus.OpenSession("s", "duplex", "key", b"d", "g1")
    shell.board.on_message(shell.gateway, message, [b"{}"])
    for n in range(1, MAX_EARLY + 1):
        shell.say("s", n, SessionHeartbeat())
    assert shell.gateway.of(bus.OwnerChanged) == []
    shell.say("s", MAX_EARLY + 1, SessionHeartbeat())
    assert shell.gateway.of(bus.OwnerChanged) == [bus.OwnerChanged("s", Owner())], "the gateway gives the socket up"
    assert shell.manager.late == 1
    await shell.background.settle()
    assert sum(isinstance(fact, facts.FromClient) for fact in shell.machines[-1].handled) == MAX_EARLY


async def test_a_fault_of_ours_ends_that_session_and_tells_its_client(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    broken = await shell.open("broken")
    well = await shell.open("well")

    def fail(fact: facts.SessionCommand) -> None:
        raise ZeroDivisionError

    broken.script = fail
    shell.gateway.clear()
    shell.say("broken", 1, SessionHeartbeat())
    await shell.turn()
    [deliveries] = shell.gateway.of(bus.Deliveries)
    assert (deliveries.session_id, deliveries.events[-1].close_code) == ("broken", 1011)
    error = msgspec.json.decode(shell.gateway.frames_of(bus.Deliveries)[0][-1])["error"]
    assert error["code"] == "internal_error"
    shell.say("broken", 2, SessionHeartbeat())  # not handled any more
    shell.say("well", 1, SessionHeartbeat())
    assert isinstance(well.handled[-1], facts.FromClient)
    n = deliveries.events[-1].n
    shell.board.on_message(shell.gateway, bus.Delivered("broken", owned(1), 1, through(1, n), n), [])
    assert [resident.session_id for resident in shell.manager.residents] == ["well"]
    assert len(shell.admission) == 1


async def test_the_end_of_the_process_tells_every_client(shell: Shell) -> None:
    for session_id in "ab":
        await shell.open(session_id)
    shell.manager.close_all("shutdown", 1012)
    assert [d.events[-1].close_code for d in shell.gateway.of(bus.Deliveries)][-2:] == [1012, 1012]
    await shell.open("c")
    assert refusal(shell.gateway)[0].code == "resource_exhausted"


async def test_offloaded_work_comes_back_as_a_fact(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    machine = await shell.open()
    jobs: list[orders.SessionEffect] = [
        orders.Offload(1, "upper", b"abc"),
        orders.Offload(2, "broken", b""),
        orders.Offload(3, "refuse", b"x"),
        orders.Offload(4, "upper", b"one too many"),
    ]
    results: dict[int, tuple[bytes, str]] = {}
    done = asyncio.Event()

    def script(fact: facts.SessionCommand) -> list[orders.SessionEffect] | None:
        if isinstance(fact, facts.Offloaded):
            results[fact.ticket] = (fact.result, fact.error)
            if len(results) == len(jobs):
                done.set()
        return jobs if isinstance(fact, facts.FromClient) else None

    machine.script = script
    shell.say("s", 1, SessionHeartbeat())
    await done.wait()
    assert results == {
        1: (b"ABC", ""),
        2: (b"", "offload_failed"),
        3: (b"", "not finite"),
        4: (b"", "offload_full"),
    }


async def test_a_deadline_brings_a_tick(shell: Shell) -> None:
    machine = await shell.open()
    ticked = asyncio.Event()

    def script(fact: facts.SessionCommand) -> None:
        machine.deadline = None if isinstance(fact, facts.Tick) else 0.0
        if isinstance(fact, facts.Tick):
            ticked.set()

    machine.script = script
    shell.say("s", 1, SessionHeartbeat())
    await ticked.wait()


async def test_a_deadline_that_is_met_late_waits_for_what_had_come_meanwhile(shell: Shell) -> None:
    """The process stood still; the store's answer has come, and is read before anybody is judged by its absence."""
    clockwork = Clockwork()
    object.__setattr__(shell.around, "clockwork", clockwork)
    machine = await shell.open()
    shell.say("s", 1, SessionHeartbeat())
    machine.handled.clear()
    machine.deadline = -10.0
    shell.say("s", 2, SessionHeartbeat())
    clockwork.run_due(asyncio.get_running_loop().time())
    shell.say("s", 3, SessionHeartbeat())  # what had come
    clockwork.run_due(asyncio.get_running_loop().time())
    assert not [fact for fact in machine.handled if isinstance(fact, facts.Tick)]

    def script(fact: facts.SessionCommand) -> None:
        machine.deadline = None if isinstance(fact, facts.Tick) else machine.deadline

    machine.script = script
    clockwork.run_due(asyncio.get_running_loop().time() + CATCH_UP_S)
    assert [type(fact) for fact in machine.handled] == [facts.FromClient, facts.FromClient, facts.Tick]


async def test_a_session_is_recorded_line_by_line(shell: Shell, tmp_path: Path) -> None:
    object.__setattr__(shell.around, "recorder", Recorder(tmp_path, SessionLimits()))
    await shell.open()
    shell.say("s", 1, AppendAudio(audio=b"pcm", event_id="e"))
    shell.manager.residents[0].runner.finish()
    first, *lines = (tmp_path / "s.jsonl").read_bytes().splitlines()
    assert msgspec.json.decode(first)["owner"] == 1
    [recorded] = [msgspec.json.decode(line, type=RecordedFact) for line in lines]
    assert recorded.fact == facts.FromClient(CommandNo(1, 1), AppendAudio(audio=b"pcm", event_id="e"))
    assert recorded.now >= 0


async def test_audio_that_comes_faster_than_it_is_handled_is_refused_and_control_is_not(shell: Shell) -> None:
    object.__setattr__(shell.around, "max_facts", 4)
    machine = await shell.open()

    def script(fact: facts.SessionCommand) -> None:
        if isinstance(fact, facts.FromClient) and fact.command.event_id == "first":
            for n in range(2, 5):  # comes while the first is being handled
                shell.say("s", n, AppendAudio(audio=b"x", event_id=f"a{n}"))
            shell.say("s", 5, SessionHeartbeat(event_id="control"))

    machine.script = script
    before = len(machine.handled)
    shell.say("s", 1, SessionHeartbeat(event_id="first"))
    handled = machine.handled[before:]
    assert [type(fact).__name__ for fact in handled] == [
        *("FromClient", "FromClient", "FromClient", "InputRefused", "FromClient")
    ]
    assert handled[3] == facts.InputRefused(
        "a4", "input_backpressure", "too much input is waiting", 1000, CommandNo(1, 4), "audio"
    )


async def test_a_mailbox_without_room_for_control_ends_the_session(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    object.__setattr__(shell.around, "max_facts", 4)
    machine = await shell.open()

    def script(fact: facts.SessionCommand) -> None:
        if isinstance(fact, facts.FromClient) and fact.command.event_id == "first":
            for n in range(2, 8):
                shell.say("s", n, SessionHeartbeat())

    machine.script = script
    shell.gateway.clear()
    shell.say("s", 1, SessionHeartbeat(event_id="first"))
    await shell.turn()
    assert shell.gateway.of(bus.Deliveries)[-1].events[-1].close_code == 1011
    assert shell.manager.residents[0].runner.closing == "internal_error"


async def test_while_the_model_is_too_slow_for_most_nobody_more_is_let_in(shell: Shell) -> None:
    first, second = await shell.open("a"), await shell.open("b")
    first.time = second.time = 60.0
    first.observed.model_behind(58.0)
    await shell.open("c")
    assert len(shell.manager) == 3, "one may be its client's own doing"
    second.observed.model_behind(59.0)
    shell.manager.residents[2].runner.finish()
    await shell.open("d")
    told, error = refusal(shell.gateway)
    assert (told.session_id, told.code, error["retry_after_ms"]) == ("d", "resource_exhausted", 1000)
    assert shell.admission.refused == {"model_behind": 1}
    first.time = second.time = 65.0
    await shell.open("e")
    assert len(shell.manager) == 3, "they have caught up"
