"""The pump: who is called when, and that it can be called back into."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from duologue.bus.messages import Delivered, Delivery
from duologue.delivery.breaker import StoreBreaker
from duologue.delivery.egress import Egress, EgressLimits, Frame, Put
from duologue.delivery.pump import Pump, Pumps, Sink
from duologue.fence import DeliveryId, Owner
from duologue.store.ports import (
    Appended,
    AppendOutcome,
    Entry,
    Head,
    JournalAppender,
    JournalRefused,
    OnAppended,
    Unknown,
)

pytestmark = pytest.mark.unit

ONE, TWO = Owner(1, "a"), Owner(2, "b")


class Appender(JournalAppender):
    def __init__(self) -> None:
        self.up = True
        self.refused: list[int] = []
        self.out: list[tuple[int, Sequence[Entry], OnAppended]] = []

    @property
    def connected(self) -> bool:
        return self.up

    def submit(
        self,
        session_id: str,
        owner: Owner,
        egress: int,
        first_seq: int,
        batch: Sequence[Entry],
        on_outcome: OnAppended,
    ) -> bool:
        if self.up:
            self.out.append((first_seq, batch, on_outcome))
        else:
            self.refused.append(first_seq)
        return self.up

    def answer(self) -> None:
        first, batch, on_outcome = self.out.pop(0)
        on_outcome(Appended(first + len(batch) - 1, batch[-1][0]))


class Recorder(Sink):
    def __init__(self) -> None:
        self.log: list[object] = []
        self.has_room = True
        self.on_write: Callable[[], object] = lambda: None

    def room(self) -> bool:
        return self.has_room

    def write(self, frames: Sequence[Frame]) -> None:
        self.log.append([frame.seq for frame in frames])
        self.on_write()

    def delivered(self, ack: Delivered) -> None:
        self.log.append(("ack", ack.through.n, ack.seq))

    def stopped(self, why: str) -> None:
        self.log.append(("stopped", why))

    def owner_replaced(self, owner: Owner) -> None:
        self.log.append(("owner", owner.number))


class Bench:
    def __init__(self, **limits: int) -> None:
        self.now = 0.0
        self.appender, self.sink, self.pumps = Appender(), Recorder(), Pumps()
        head = Head(ONE, 1, 0, DeliveryId(), 1)
        self.egress = Egress("s", ONE, head, StoreBreaker(), limits=EgressLimits(**limits))
        self.pump = Pump(self.egress, self.appender, self.sink, self.pumps, lambda: self.now)

    def put(self, *ns: int, owner: Owner = ONE) -> Put:
        return self.pump.put(owner, [Delivery(n) for n in ns], [b'{"n":%d}' % n for n in ns])


def test_write_then_acknowledge_then_the_next_batch() -> None:
    b = Bench()
    b.put(1, 2)
    b.put(3)
    assert b.sink.log == [] and len(b.appender.out) == 1
    b.appender.answer()
    assert b.sink.log == [[1, 2], ("ack", 2, 2)] and len(b.appender.out) == 1
    b.appender.answer()
    assert b.sink.log[2:] == [[3], ("ack", 3, 3)] and len(b.pumps) == 0


def test_a_full_socket_stops_the_numbering() -> None:
    b = Bench()
    b.sink.has_room = False
    b.put(1)
    assert not b.appender.out
    b.sink.has_room = True
    b.pump.drained()
    assert len(b.appender.out) == 1


def test_without_a_connection_the_tick_tries_again_and_then_goes_live() -> None:
    b = Bench()
    b.appender.up = False
    b.put(1)
    for b.now in (0.1, 0.2):
        b.pumps.tick()
    assert [1] not in b.sink.log
    b.now = 0.25
    b.pumps.tick()
    assert [1] in b.sink.log and len(b.pumps) == 1
    b.appender.up, b.now = True, 0.4
    b.pumps.tick()
    b.appender.answer()
    assert b.egress.kept == 0 and len(b.pumps) == 0


def test_unknown_is_repeated_by_the_tick() -> None:
    b = Bench()
    b.put(1)
    b.appender.out.pop()[2](Unknown())
    assert not b.appender.out
    b.pumps.tick()
    b.appender.answer()
    assert [1] in b.sink.log


def test_refusals_are_told() -> None:
    b = Bench()
    b.put(1)
    b.appender.out.pop()[2](JournalRefused("owner", Head(TWO, 1, 0, DeliveryId(), 1)))
    assert ("owner", 2) in b.sink.log
    assert b.put(2) is Put.STALE
    b.pump.owner_changed(TWO)
    b.put(1, owner=TWO)
    b.appender.out.pop()[2](JournalRefused("egress", Head(TWO, 9, 0, DeliveryId(), 1)))
    assert b.sink.log[-1] == ("stopped", "replaced")
    assert b.put(2, owner=TWO) is Put.OFF and b.sink.log.count(("stopped", "replaced")) == 1


def test_overflow_stops_it() -> None:
    b = Bench(queue_events=2)
    b.sink.has_room = False
    b.put(1, 2)
    assert b.put(3) is Put.OVERFLOW
    assert b.sink.log[-1] == ("stopped", "overflow")


def test_after_close_nothing_is_written() -> None:
    b = Bench()
    b.put(1)
    b.pump.close()
    before = list(b.sink.log)
    b.appender.answer()
    b.pump.close()
    b.pumps.tick()
    assert b.sink.log == before


def away(b: Bench) -> None:
    """Its store has not answered for so long that what is there leaves without it."""
    b.now += 0.25
    b.pumps.tick()


def test_what_was_sent_and_not_journaled_is_given_to_the_journal_at_the_end() -> None:
    b = Bench(batch_events=2)
    b.put(1, 2)
    b.put(3, 4, 5, 6, 7)
    away(b)
    assert b.egress.kept == 7 and [first for first, _, _ in b.appender.out] == [1]
    b.pump.close()
    submitted = []
    while b.appender.out:
        [(first, batch, _)] = b.appender.out
        submitted.append((first, len(batch)))
        b.pump.close()
        b.appender.answer()
    assert submitted == [(1, 2), (3, 2), (5, 2), (7, 1)], "each once, and when those before it are there"
    assert b.sink.log[-1] == ("ack", 7, 7), "nobody is told any more"


@pytest.mark.parametrize("answered", [0, 1, 2])
@pytest.mark.parametrize("outcome", [Unknown(), JournalRefused("egress", Head(ONE, 9, 0, DeliveryId(), 1))])
def test_behind_what_did_not_get_into_the_journal_nothing_is_given_to_it(answered: int, outcome: AppendOutcome) -> None:
    """It would leave a hole that nobody can fill any more, not even the shard, which has it all."""
    b = Bench(batch_events=2)
    b.put(1, 2)
    b.put(3, 4, 5, 6, 7)
    away(b)
    b.pump.close()
    for _ in range(answered):
        b.appender.answer()
    [(_, _, on_outcome)] = b.appender.out
    b.appender.out.clear()
    on_outcome(outcome)
    assert not b.appender.out


def test_what_waits_for_the_journal_is_not_given_again_at_the_end() -> None:
    b = Bench()
    b.put(1)
    b.put(2)
    b.pump.close()
    assert [(first, len(batch)) for first, batch, _ in b.appender.out] == [(1, 1)], "nobody has seen the second"


def test_at_the_end_without_a_connection_no_hole_is_made() -> None:
    b = Bench(batch_events=1)
    b.appender.up = False
    b.put(1, 2)
    away(b)
    b.appender.refused.clear()
    b.pump.close()
    assert b.appender.refused == [1], "behind what is not taken nothing follows"


def test_closing_from_inside_a_write() -> None:
    b = Bench()
    b.sink.on_write = b.pump.close
    b.put(1)
    b.put(2)
    b.appender.answer()
    assert b.sink.log[-1] == [1] and not b.appender.out


def test_putting_from_inside_a_write() -> None:
    b = Bench()
    b.sink.on_write = lambda: b.put(2)
    b.put(1)
    b.appender.answer()
    assert len(b.appender.out) == 1, "what came in between is on its way"


def test_purge_is_acknowledged_at_once() -> None:
    b = Bench()
    b.sink.has_room = False
    b.pump.put(ONE, [Delivery(1, "r"), Delivery(2, "r")], [b"{}", b"{}"])
    b.pump.invalidate(ONE, "r", 0)
    assert b.sink.log[-1] == ("ack", 2, 0)


def test_what_waits_and_what_is_kept_can_be_read_of_all_pumps_together() -> None:
    b = Bench(kept_bytes=16)
    b.sink.has_room = False
    b.put(1, 2)
    assert b.pumps.unnumbered == 2
    b.sink.has_room, b.appender.up = True, False
    b.pump.drained()
    b.now = 0.3
    b.pumps.tick()
    assert (b.pumps.unnumbered, b.pumps.kept_bytes, b.pumps.holes) == (0, 14, 0)
    b.put(3)
    b.put(4)
    assert b.pumps.kept_bytes <= 16
    assert b.pumps.holes == 1, "a session whose journal has holes is counted once"


def test_purged_events_are_counted() -> None:
    b = Bench()
    b.sink.has_room = False
    b.pump.put(ONE, [Delivery(1, "r"), Delivery(2)], [b"{}", b"{}"])
    b.pump.invalidate(ONE, "r", 0)
    assert (b.pumps.purged, b.pumps.unnumbered) == (1, 1)
