"""The mailbox's bounds, and the hand-over of rendered events."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from unit.session.shell.shell_rig import through

from duologue.fence import CommandNo
from duologue.protocol.duplex import AppendAudio, SessionHeartbeat
from duologue.session.core import commands as facts
from duologue.session.core.effects import Deliver
from duologue.session.mailbox import Mailbox, Taken
from duologue.session.output import MAX_BATCH_EVENTS, Event, SessionOutput, Sink
from duologue.session.tallies import Tallies

pytestmark = pytest.mark.unit


def media(n: int) -> facts.FromClient:
    return facts.FromClient(CommandNo(1, n), AppendAudio(audio=b"x"))


def control(n: int) -> facts.FromClient:
    return facts.FromClient(CommandNo(1, n), SessionHeartbeat())


def test_facts_come_out_in_order() -> None:
    box = Mailbox()
    for fact in (one := media(1), two := control(2), three := media(3)):
        assert box.put(fact) is Taken.YES
    assert [box.take(), box.take(), box.take()] == [one, two, three]
    assert box.media == 0


def test_media_is_shed_while_control_still_fits() -> None:
    box = Mailbox(4)
    assert [box.put(media(n)) for n in (1, 2, 3)] == [Taken.YES, Taken.YES, Taken.SHED]
    assert box.put(control(4)) is Taken.YES
    box.take()
    assert box.put(media(5)) is Taken.YES


def test_control_that_does_not_fit_says_so() -> None:
    box = Mailbox(2)
    box.put(control(1))
    box.put(control(2))
    assert box.put(control(3)) is Taken.FULL


class Slow(Sink):
    """Takes `room` batches, then none; acknowledges from inside when told to."""

    def __init__(self, room: int = 1_000_000) -> None:
        self.room = room
        self.batches: list[list[int]] = []
        self.invalidated: list[tuple[str, int]] = []
        self.acknowledge: SessionOutput | None = None

    def take(self, events: Sequence[Event]) -> bool:
        if not self.room:
            return False
        self.room -= 1
        self.batches.append([delivery.n for delivery, _ in events])
        if self.acknowledge is not None:
            self.acknowledge.acknowledged(through(7, events[-1][0].n))
            self.acknowledge.flush()
        return True

    def invalidate(self, response_id: str, through_epoch: int) -> None:
        self.invalidated.append((response_id, through_epoch))


def filled(*orders: Deliver) -> SessionOutput:
    output = SessionOutput(7, Tallies())
    for order in orders:
        output.add(order)
    return output


def test_events_of_one_turn_leave_together_and_are_kept_until_acknowledged() -> None:
    output, sink = filled(Deliver(1, b"a"), Deliver(2, b"b")), Slow()
    output.point_at(sink)
    output.flush()
    assert sink.batches == [[1, 2]]
    assert output.pending == 2
    output.acknowledged(through(7, 1))
    assert output.pending == 1
    output.acknowledged(through(6, 9))  # an older owner's number is another series
    assert output.pending == 1
    output.acknowledged(through(7, 2))
    assert output.pending == 0


def test_what_was_not_taken_goes_first_later() -> None:
    output, sink = filled(Deliver(1, b"a")), Slow(room=0)
    output.point_at(sink)
    output.flush()
    assert output.stuck
    output.add(Deliver(2, b"b"))
    sink.room = 9
    output.flush()
    assert sink.batches == [[1, 2]]
    assert not output.stuck


def test_a_new_egress_gets_everything_unacknowledged_in_order() -> None:
    output, first, second = filled(Deliver(1, b"a"), Deliver(2, b"b")), Slow(), Slow()
    output.point_at(first)
    output.flush()
    output.acknowledged(through(7, 1))
    output.point_at(None)
    output.add(Deliver(3, b"c"))
    output.flush()
    output.point_at(second)
    output.flush()
    assert second.batches == [[2, 3]]


def test_a_backlog_leaves_in_bounded_batches() -> None:
    output, sink = filled(*(Deliver(n, b"x") for n in range(1, 151))), Slow()
    output.point_at(sink)
    output.flush()
    assert [len(batch) for batch in sink.batches] == [
        MAX_BATCH_EVENTS,
        MAX_BATCH_EVENTS,
        150 - 2 * MAX_BATCH_EVENTS,
    ]
    assert [n for batch in sink.batches for n in batch] == list(range(1, 151))


def test_an_egress_may_acknowledge_from_inside() -> None:
    output, sink = filled(*(Deliver(n, b"x") for n in range(1, 100))), Slow()
    sink.acknowledge = output
    output.point_at(sink)
    output.flush()
    assert [n for batch in sink.batches for n in batch] == list(range(1, 100))
    assert output.pending == 0


def test_invalidated_audio_leaves_both_queues_and_nothing_else_does() -> None:
    output, sink = filled(Deliver(1, b"a", "r", 1), Deliver(2, b"b", "r", 3), Deliver(3, b"c")), Slow()
    output.point_at(sink)
    output.flush()
    output.add(Deliver(4, b"d", "r", 1))
    output.add(Deliver(5, b"e", "other", 1))
    output.invalidate("r", 2)
    assert sink.invalidated == [("r", 2)]
    second = Slow()
    output.point_at(second)
    output.flush()
    assert second.batches == [[2, 3, 5]]


def test_an_event_that_is_known_is_not_sent_twice() -> None:
    output, sink = filled(Deliver(1, b"a"), Deliver(2, b"b")), Slow()
    output.point_at(sink)
    output.flush()
    output.add(Deliver(1, b"a"))  # the core repeats what nobody acknowledged
    output.add(Deliver(2, b"b"))
    output.add(Deliver(3, b"c"))
    output.flush()
    assert sink.batches == [[1, 2], [3]]
