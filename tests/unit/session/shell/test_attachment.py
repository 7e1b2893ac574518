"""Attach, detach, takeover: who gets the events, and what is told before the first of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from unit.session.shell.shell_rig import FENCE, FakeLink, FakeMachine, Shell, owned, through

from duologue.bus import messages as bus
from duologue.bus.link import PeerLost
from duologue.fence import CommandNo
from duologue.protocol.duplex import SessionHeartbeat
from duologue.session.core import commands as facts
from duologue.session.core import effects as orders
from duologue.session.detached import YIELD_S

pytestmark = pytest.mark.unit


@pytest.fixture
async def shell() -> AsyncIterator[Shell]:
    made = Shell()
    made.register_workers()
    yield made
    await made.close()


def result(shell: Shell) -> None:
    """The model says something: two events."""
    shell.board.on_message(shell.worker_b, bus.Output("s", FENCE, 3, -1, 1, 0), [b"out"])


def numbers(link: FakeLink) -> list[int]:
    return [event.n for message in link.of(bus.Deliveries) for event in message.events]


async def opened(shell: Shell) -> FakeMachine:
    """A session whose gateway has everything that was delivered so far."""
    machine = await shell.open()
    shell.board.on_message(shell.gateway, bus.Delivered("s", owned(1), 4, through(1, 1), 1), [])
    shell.gateway.clear()
    return machine


async def test_a_detached_session_is_journaled_by_the_shard(shell: Shell) -> None:
    machine = await opened(shell)
    result(shell)
    shell.board.on_message(shell.gateway, bus.Detach("s", 1), [])
    assert facts.Detached(1) in machine.handled
    [egress] = shell.egresses
    assert egress.running
    assert [delivery.n for delivery, _ in egress.events] == [2, 3]
    result(shell)
    assert [delivery.n for delivery, _ in egress.events] == [2, 3, 4, 5]
    assert (egress.numbering.egress, egress.numbering.seq) == (4, 1)
    assert numbers(shell.gateway) == [2, 3]


async def test_a_detach_of_another_generation_is_void(shell: Shell) -> None:
    machine = await opened(shell)
    shell.board.on_message(shell.gateway, bus.Detach("s", 7), [])
    assert not shell.egresses
    assert not [fact for fact in machine.handled if isinstance(fact, facts.Detached)]


async def test_a_lost_gateway_detaches_its_sessions_only(shell: Shell) -> None:
    other = FakeLink("g2", "gateway")
    shell.board.on_ready(other)
    mine = await opened(shell)
    theirs = await shell.open("t", other)
    shell.board.on_message(other, bus.Delivered("t", owned(1), 1, through(1, 1), 1), [])
    shell.board.on_lost(shell.gateway, PeerLost(shell.gateway.peer, "silent"))
    assert facts.Detached(1) in mine.handled
    assert facts.Detached(1) not in theirs.handled


@pytest.mark.parametrize("ends_first", [True, False])
async def test_an_end_is_left_to_a_gateway_whose_link_broke_just_then(shell: Shell, ends_first: bool) -> None:
    machine = await opened(shell)
    lost = PeerLost(shell.gateway.peer, "gap")
    ending = facts.CloseRequested("bye")
    if ends_first:
        shell.manager.residents[0].runner.post(ending)
        shell.board.on_lost(shell.gateway, lost)
    else:
        shell.board.on_lost(shell.gateway, lost)
        assert shell.egresses[-1].after_s == 0.0
        shell.manager.residents[0].runner.post(ending)
    assert [egress.running for egress in shell.egresses] == [False] * (len(shell.egresses) - 1) + [True]
    assert 0.0 < shell.egresses[-1].after_s <= YIELD_S
    shell.manager.residents[0].runner.post(facts.CheckpointWanted())
    assert shell.egresses[-1].running
    again = FakeLink("g1", "gateway")
    shell.board.on_message(again, bus.Attach("s", 1, 9, "g1"), [])
    [attached] = again.of(bus.Attached)
    assert attached.end is not None and numbers(again) == [machine.n]
    assert shell.egresses[-1].stopped
    shell.board.on_message(again, bus.Delivered("s", owned(1), 9, through(1, machine.n), machine.n), [])
    await shell.turn()
    assert len(shell.manager) == 0


async def test_an_end_does_not_wait_for_a_client_that_has_left(shell: Shell) -> None:
    await opened(shell)
    shell.board.on_message(shell.gateway, bus.Detach("s", 1), [])
    shell.manager.residents[0].runner.post(facts.CloseRequested("bye"))
    assert [(egress.running, egress.after_s) for egress in shell.egresses] == [(True, 0.0)]


async def test_a_resume_is_told_where_the_session_stands_and_gets_what_nobody_acknowledged(
    shell: Shell,
) -> None:
    machine = await opened(shell)
    result(shell)
    shell.board.on_message(shell.gateway, bus.Detach("s", 1), [])
    machine.input_audio_end_ms, machine.last_client_event_id = 480, "e7"
    second = FakeLink("g2", "gateway")
    shell.board.on_message(second, bus.Attach("s", 2, 9, "g2"), [])
    attached = bus.Attached("s", 2, owned(1), CommandNo(), "e7", 480, 1, through(1, 1))
    assert second.sent[0] == (attached, [b'{"id":"s"}', b""])
    assert numbers(second) == [2, 3]
    assert shell.egresses[0].stopped
    assert facts.Attached(2) in machine.handled
    assert not second.of(bus.Replaced)


async def test_a_resume_is_told_of_an_end_that_nobody_acknowledged(shell: Shell) -> None:
    machine = await opened(shell)
    machine.script = lambda fact: machine.close("bye") if isinstance(fact, facts.FromClient) else None
    shell.say("s", 1, SessionHeartbeat())
    second = FakeLink("g2", "gateway")
    shell.board.on_message(second, bus.Attach("s", 2, 9, "g2"), [])
    [attached] = second.of(bus.Attached)
    assert attached.end is not None
    assert (attached.end.n, attached.end.close_code) == (machine.n, 1000)


async def test_an_end_is_not_over_by_the_word_of_an_egress_that_was_followed(shell: Shell) -> None:
    machine = await opened(shell)
    machine.script = lambda fact: machine.close("bye") if isinstance(fact, facts.FromClient) else None
    shell.say("s", 1, SessionHeartbeat())
    second = FakeLink("g2", "gateway")
    shell.board.on_message(second, bus.Attach("s", 2, 9, "g2"), [])
    late, its_own = (bus.Delivered("s", owned(1), egress, through(1, machine.n), machine.n) for egress in (4, 9))
    shell.board.on_message(shell.gateway, late, [])
    assert numbers(second) == [machine.n]
    assert len(shell.manager) == 1
    shell.board.on_message(second, its_own, [])
    await shell.turn()
    assert len(shell.manager) == 0


async def test_a_resume_after_a_gap_gets_the_conversation(shell: Shell) -> None:
    await opened(shell)
    shell.board.on_message(shell.gateway, bus.Detach("s", 1), [])
    second = FakeLink("g2", "gateway")
    shell.board.on_message(second, bus.Attach("s", 2, 9, "g2", True), [])
    assert second.frames_of(bus.Attached) == [[b'{"id":"s"}', b"[]"]]


async def test_a_resume_is_told_what_an_egress_sent_and_took_along(shell: Shell) -> None:
    await opened(shell)
    shell.board.on_message(shell.gateway, bus.Delivered("s", owned(1), 4, through(1, 7), 6), [])
    shell.board.on_message(shell.gateway, bus.AskNumbered("s"), [])
    shell.board.on_message(shell.gateway, bus.AskNumbered("unknown"), [])
    assert shell.gateway.of(bus.Numbered) == [bus.Numbered("s", 6), bus.Numbered("unknown", 0)]
    for generation, journaled, holed in ((2, 6, False), (3, 5, True), (4, 8, True)):
        shell.gateway.clear()
        attach = bus.Attach("s", generation, generation + 4, "gw-b", journaled=journaled)
        shell.board.on_message(shell.gateway, attach, [])
        if journaled < 6:  # the attachment before it may say what it has of that, and says nothing
            [asked] = shell.egresses
            assert asked.word is not None and not shell.gateway.of(bus.Attached)
            asked.done(journaled)
        [attached] = shell.gateway.of(bus.Attached)
        assert (attached.seq, attached.through) == (6, through(1, 7))
        [frames] = [frames for message, frames in shell.gateway.sent if message is attached]
        assert bool(frames[1]) is holed


async def test_an_attachment_waits_until_what_was_applied_is_covered(shell: Shell) -> None:
    machine = await opened(shell)
    shell.say("s", 1, SessionHeartbeat())
    assert machine.applied != machine.covered
    second = FakeLink("g2", "gateway")
    shell.board.on_message(second, bus.Attach("s", 2, 9, "g2"), [])
    assert second.sent == []
    result(shell)  # goes to nobody before `Attached`
    assert numbers(shell.gateway) == []
    await shell.background.settle()
    assert second.of(bus.Attached)[0].applied == CommandNo(1, 1)
    assert [type(message) for message, _ in second.sent] == [bus.Attached, bus.Deliveries, bus.Covered]


async def test_a_takeover_tells_the_old_gateway_and_voids_it(shell: Shell) -> None:
    machine = await opened(shell)
    second = FakeLink("g2", "gateway")
    shell.board.on_message(second, bus.Attach("s", 2, 9, "g2"), [])
    assert shell.gateway.of(bus.Replaced) == [bus.Replaced("s", 2)]
    shell.board.on_message(shell.gateway, bus.Detach("s", 1), [])
    shell.board.on_lost(shell.gateway, PeerLost(shell.gateway.peer, "closed"))
    shell.say("s", 1, SessionHeartbeat(), generation=1)
    assert not shell.egresses
    assert machine.handled[-1] == facts.Attached(2)
    result(shell)
    assert numbers(second) == [2, 3]


async def test_an_attachment_that_comes_late_is_told_so(shell: Shell) -> None:
    machine = await opened(shell)
    second, third = FakeLink("g2", "gateway"), FakeLink("g3", "gateway")
    shell.board.on_message(third, bus.Attach("s", 3, 9, "g3"), [])
    shell.board.on_message(second, bus.Attach("s", 2, 8, "g2"), [])
    assert second.of(bus.Replaced) == [bus.Replaced("s", 3)]
    assert not second.of(bus.Attached)
    assert facts.Attached(2) not in machine.handled


async def test_a_gateway_that_dies_while_it_waits_leaves_the_session_detached(shell: Shell) -> None:
    machine = await opened(shell)
    shell.say("s", 1, SessionHeartbeat())
    second = FakeLink("g2", "gateway")
    shell.board.on_message(second, bus.Attach("s", 2, 9, "g2"), [])
    shell.board.on_lost(second, PeerLost(second.peer, "silent"))
    await shell.background.settle()
    assert not second.of(bus.Attached)
    assert facts.Detached(2) in machine.handled
    assert shell.egresses[-1].numbering.egress == 9


async def test_events_wait_for_credit_and_keep_their_order(shell: Shell) -> None:
    await opened(shell)
    shell.gateway.credit = False
    result(shell)
    result(shell)
    assert numbers(shell.gateway) == []
    shell.gateway.credit = True
    shell.board.on_credit(shell.gateway)
    assert numbers(shell.gateway) == [2, 3, 4, 5]


async def test_a_greeting_without_credit_comes_before_the_first_event(shell: Shell) -> None:
    shell.gateway.credit = False
    await shell.open()
    assert shell.gateway.sent == []
    shell.gateway.credit = True
    shell.board.on_credit(shell.gateway)
    assert [type(message) for message, _ in shell.gateway.sent] == [bus.SessionOpened, bus.Deliveries]


async def test_a_purge_reaches_the_gateway_and_no_later_egress_gets_the_audio(shell: Shell) -> None:
    machine = await opened(shell)
    result(shell)
    machine.script = lambda fact: [orders.Invalidate("resp", 0)] if isinstance(fact, facts.FromClient) else None
    shell.say("s", 1, SessionHeartbeat())
    assert shell.gateway.of(bus.Invalidate) == [bus.Invalidate("s", owned(1), "resp", 0)]
    shell.board.on_message(shell.gateway, bus.Detach("s", 1), [])
    assert [delivery.n for delivery, _ in shell.egresses[0].events] == [3]
