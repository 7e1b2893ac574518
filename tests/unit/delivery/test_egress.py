"""The egress machine, step by step."""

from __future__ import annotations

import pytest

from duologue.bus.messages import Delivered, Delivery
from duologue.delivery.breaker import StoreBreaker
from duologue.delivery.egress import Batch, Egress, EgressLimits, Frame, Put, splice
from duologue.fence import DeliveryId, Owner
from duologue.store.ports import Appended, Head, JournalRefused, Unknown

pytestmark = pytest.mark.unit

ONE, TWO, THREE = Owner(1, "a"), Owner(2, "b"), Owner(3, "c")


def egress(
    owner: Owner = ONE,
    *,
    number: int = 4,
    seq: int = 0,
    last: DeliveryId | None = None,
    through: tuple[int, DeliveryId] = (0, DeliveryId()),
    detached: bool = False,
    **limits: float,
) -> Egress:
    head = Head(owner, number, seq, last or DeliveryId(), 1)
    return Egress(
        "s",
        owner,
        head,
        StoreBreaker(),
        through=through,
        detached=detached,
        limits=EgressLimits(**limits),  # type: ignore[arg-type]
    )


def put(e: Egress, *ns: int, owner: Owner = ONE, media_of: str = "", epoch: int = 0, of: int = 0) -> Put:
    events = [Delivery(n, media_of, epoch, of=of) for n in ns]
    return e.put(owner, events, [b'{"n":%d}' % n for n in ns])


def take(e: Egress, now: float = 0.0) -> Batch:
    batch = e.next_batch(now, True)
    assert batch is not None
    return batch


def numbers(frames: list[Frame]) -> list[tuple[int, bytes]]:
    return [(frame.seq, frame.body) for frame in frames]


def appended(e: Egress, batch: Batch, now: float = 0.0) -> list[Frame]:
    last = batch.entries[-1][0]
    return e.on_outcome(Appended(batch.first_seq + len(batch.entries) - 1, last), now)


def refused(reason: str, owner: Owner, number: int, seq: int, last: DeliveryId) -> JournalRefused:
    return JournalRefused(reason, Head(owner, number, seq, last, 1))


def test_splice() -> None:
    assert splice(b'{"type":"x"}', 12) == b'{"type":"x","server_event_seq":12}'


def test_frames_leave_after_the_reply_with_their_numbers() -> None:
    e = egress(seq=6, last=DeliveryId(1, 2))
    assert put(e, 3, 4) is Put.TAKEN
    batch = take(e)
    assert batch == Batch(ONE, 4, 7, [(DeliveryId(1, 3), b'{"n":3}'), (DeliveryId(1, 4), b'{"n":4}')])
    assert e.live(0.1, True) == []
    assert numbers(appended(e, batch)) == [
        (7, b'{"n":3,"server_event_seq":7}'),
        (8, b'{"n":4,"server_event_seq":8}'),
    ]
    assert e.take_ack() == Delivered("s", ONE, 4, DeliveryId(1, 4), 8)
    assert e.take_ack() is None and not e.busy


def test_one_batch_is_out_at_a_time() -> None:
    e = egress()
    put(e, 1)
    batch = take(e)
    put(e, 2)
    assert e.next_batch(0.0, True) is None
    appended(e, batch)
    assert take(e).first_seq == 2


def test_without_room_nothing_gets_a_number() -> None:
    e = egress()
    put(e, 1)
    assert e.next_batch(0.0, False) is None
    assert e.queued_bytes == 7 and e.busy
    assert take(e).first_seq == 1


def test_a_batch_is_bounded_by_events_and_bytes() -> None:
    e = egress(batch_events=2, batch_bytes=1000)
    put(e, 1, 2, 3)
    assert len(take(e).entries) == 2
    e = egress(batch_bytes=20)
    put(e, 1, 2, 3)
    assert len(take(e).entries) == 2
    e = egress(batch_bytes=3)
    put(e, 1, 2)
    assert len(take(e).entries) == 1, "one that is larger goes alone"


def test_unknown_is_repeated_as_it_is() -> None:
    e = egress()
    put(e, 1, 2, media_of="r")
    batch = take(e)
    assert e.on_outcome(Unknown(), 0.0) == []
    put(e, 3)
    assert e.invalidate(ONE, "r", 9) == 0
    assert take(e) == batch
    assert len(appended(e, batch)) == 2


def test_repetitions_are_acknowledged_not_numbered() -> None:
    e = egress(seq=5, last=DeliveryId(1, 5))
    put(e, 4, 5)
    assert e.next_batch(0.0, True) is None
    assert e.take_ack() == Delivered("s", ONE, 4, DeliveryId(1, 5), 5)
    put(e, 5, 6)
    batch = take(e)
    assert [id.n for id, _ in batch.entries] == [6]
    put(e, 6)
    assert len(appended(e, batch)) == 1 and e.next_batch(0.0, True) is None
    assert e.take_ack() == Delivered("s", ONE, 4, DeliveryId(1, 6), 6)
    put(e, 6)
    assert e.take_ack() == Delivered("s", ONE, 4, DeliveryId(1, 6), 6), "it was lost on the way, so again"


def test_what_the_shard_saw_acknowledged_counts() -> None:
    e = egress(seq=3, last=DeliveryId(1, 3), through=(5, DeliveryId(1, 6)))
    put(e, 6, 7)
    assert take(e).first_seq == 6


def test_numbers_go_on_above_what_an_earlier_egress_sent_and_took_along() -> None:
    e = egress(seq=3, last=DeliveryId(1, 3))
    e.known(5, DeliveryId(1, 6))
    e.known(2, DeliveryId(1, 2))
    put(e, 5, 6, 7)
    batch = take(e)
    assert (batch.first_seq, batch.entries) == (6, [(DeliveryId(1, 7), b'{"n":7}')])
    assert e.take_ack() is None, "the shard knows as much"


def test_purge_takes_the_audio_without_a_number_and_acknowledges_it() -> None:
    e = egress()
    put(e, 1, media_of="r", epoch=2)
    batch = take(e)
    put(e, 2, 3, media_of="r", epoch=2)
    put(e, 4, media_of="q", epoch=2)
    put(e, 5, media_of="r", epoch=3)
    put(e, 6)
    assert e.invalidate(ONE, "r", 2) == 2 and e.purged == 2
    assert e.invalidate(Owner(1, "x"), "r", 9) == 0
    appended(e, batch)
    assert e.take_ack() == Delivered("s", ONE, 4, DeliveryId(1, 3), 1)
    rest = take(e)
    assert [id.n for id, _ in rest.entries] == [4, 5, 6] and rest.first_seq == 2


def test_purging_the_last_events_moves_the_watermark() -> None:
    e = egress()
    put(e, 1, 2, media_of="r")
    e.invalidate(ONE, "r", 0)
    assert e.take_ack() == Delivered("s", ONE, 4, DeliveryId(1, 2), 0)


def test_a_higher_owner_voids_what_the_older_one_queued() -> None:
    e = egress()
    put(e, 1)
    batch = take(e)
    put(e, 2, 3)
    assert put(e, 1, owner=TWO) is Put.TAKEN
    assert put(e, 4) is Put.STALE
    assert put(e, 1, owner=Owner(2, "other")) is Put.STALE
    appended(e, batch)
    assert e.take_ack() == Delivered("s", TWO, 4, DeliveryId(2, 0), 1)
    assert take(e) == Batch(TWO, 4, 2, [(DeliveryId(2, 1), b'{"n":1}')])


def test_an_heir_sends_the_older_owners_events_under_their_ids() -> None:
    e = egress()
    put(e, 1, 2)
    batch = take(e)
    put(e, 1, 2, 3, owner=TWO, of=1)
    put(e, 1, owner=TWO)
    e.on_outcome(refused("owner", TWO, 4, 1, DeliveryId(1, 1)), 0.0)
    assert batch.owner == ONE
    assert e.take_ack() == Delivered("s", TWO, 4, DeliveryId(1, 1), 1)
    assert take(e) == Batch(
        TWO,
        4,
        2,
        [(DeliveryId(1, 2), b'{"n":2}'), (DeliveryId(1, 3), b'{"n":3}'), (DeliveryId(2, 1), b'{"n":1}')],
    )


def test_refused_by_owner_hands_on_what_got_in_and_waits_for_the_heir() -> None:
    e = egress()
    put(e, 1, 2, 3)
    take(e)
    put(e, 4)
    frames = e.on_outcome(refused("owner", TWO, 4, 2, DeliveryId(1, 2)), 0.0)
    assert [frame.seq for frame in frames] == [1, 2]
    assert e.barred == TWO and e.seq == 2 and not e.busy
    assert put(e, 5) is Put.STALE and e.next_batch(0.0, True) is None
    assert e.take_ack() == Delivered("s", ONE, 4, DeliveryId(1, 2), 2)
    e.owner_changed(TWO)
    assert e.barred is None
    put(e, 3, owner=TWO, of=1)
    assert take(e) == Batch(TWO, 4, 3, [(DeliveryId(1, 3), b'{"n":3}')])


def test_a_higher_owner_than_the_one_known_still_bars() -> None:
    e = egress()
    put(e, 1)
    take(e)
    e.on_outcome(refused("owner", THREE, 4, 0, DeliveryId()), 0.0)
    e.owner_changed(TWO)
    assert e.barred == THREE and put(e, 1, owner=TWO) is Put.STALE
    e.owner_changed(THREE)
    assert put(e, 1, owner=THREE) is Put.TAKEN


@pytest.mark.parametrize(("reason", "why"), [("egress", "replaced"), ("gone", "gone"), ("conflict", "conflict")])
def test_other_refusals_stop_it(reason: str, why: str) -> None:
    e = egress()
    put(e, 1)
    take(e)
    put(e, 2)
    assert e.on_outcome(refused(reason, ONE, 9, 1, DeliveryId(1, 1)), 0.0) == []
    assert e.stopped == why and not e.busy
    assert put(e, 3) is Put.OFF
    assert e.next_batch(0.0, True) is None and e.live(9.0, True) == [] and e.take_ack() is None


def test_the_queue_is_bounded() -> None:
    e = egress(queue_events=3)
    assert put(e, 1, 2) is Put.TAKEN
    assert put(e, 3, 4) is Put.OVERFLOW
    assert put(e, 3) is Put.TAKEN
    e = egress(queue_bytes=20)
    assert put(e, 1, 2) is Put.TAKEN
    assert put(e, 3) is Put.OVERFLOW


def test_the_terminal_event_tells_how_to_close() -> None:
    e = egress()
    e.put(ONE, [Delivery(1, close_code=1000, close_reason="bye")], [b'{"type":"session.closed"}'])
    frame = appended(e, take(e))[0]
    assert (frame.close_code, frame.close_reason) == (1000, "bye")


# -- store away ---------------------------------------------------------------------------------------


def test_after_the_deadline_frames_leave_and_entries_are_kept() -> None:
    e = egress()
    put(e, 1)
    batch = take(e, 0.0)
    assert e.live(0.24, True) == []
    assert numbers(e.live(0.25, True)) == [(1, b'{"n":1,"server_event_seq":1}')]
    assert e.kept == 1 and e.take_ack() == Delivered("s", ONE, 4, DeliveryId(1, 1), 1)
    put(e, 2, 3)
    assert [frame.seq for frame in e.live(0.26, True)] == [2, 3], "nobody waits while the breaker is open"
    assert e.live(0.27, True) == []
    assert appended(e, batch, 0.5) == [], "sent already"
    assert e.kept == 2
    rest = take(e, 0.5)
    assert (rest.first_seq, len(rest.entries)) == (2, 2)
    put(e, 4)
    assert e.live(0.51, True) == [], "the store is back: what is new waits for the journal"
    appended(e, rest, 0.52)
    assert e.kept == 0 and take(e, 0.53).first_seq == 4


def test_frames_do_not_wait_for_what_the_journal_has_missed() -> None:
    e = egress(batch_events=2)
    put(e, 1)
    first = take(e, 0.0)
    e.live(0.25, True)
    put(e, 2, 3, 4, 5)
    while e.live(0.3, True):
        pass
    appended(e, first, 3.0)
    assert e.kept == 4 and not e._breaker.open
    behind = take(e, 3.0)
    put(e, 6)
    assert numbers(e.live(3.01, True)) == [(6, b'{"n":6,"server_event_seq":6}')], (
        "the store is back, two batches behind"
    )
    assert e.kept == 5 and e.take_ack() == Delivered("s", ONE, 4, DeliveryId(1, 6), 6)
    appended(e, behind, 3.02)
    behind = take(e, 3.02)
    assert behind.first_seq == 4, "in order, before what is newer"
    appended(e, behind, 3.03)
    put(e, 7)
    assert e.live(3.04, True) == [], "a batch behind: what is new waits for the journal again"
    appended(e, take(e, 3.04), 3.05)
    assert [frame.seq for frame in appended(e, take(e, 3.05), 3.06)] == [7]


def test_a_detached_session_never_sends_ahead_of_the_journal() -> None:
    e = egress(batch_events=1, detached=True)
    before = egress(batch_events=1)
    put(before, 1)
    take(before, 0.0)
    before.live(0.25, True)
    put(before, 2)
    before.live(0.3, True)
    e.known(2, DeliveryId(1, 2))
    e.carry_on(before)
    put(e, 3)
    assert e.kept == 2 and e.live(1.0, True) == []


def test_a_detached_session_waits_for_the_journal_with_everything() -> None:
    e = egress(detached=True)
    put(e, 1)
    batch = take(e, 0.0)
    for now in (0.25, 0.5):
        assert e.live(now, True) == []
        assert (e.kept, e.take_ack()) == (0, None)
    assert [frame.seq for frame in appended(e, batch, 0.6)] == [1]
    assert e.take_ack() == Delivered("s", ONE, 4, DeliveryId(1, 1), 1)


def test_a_lost_connection_counts_from_the_first_try() -> None:
    e = egress()
    put(e, 1)
    for now in (0.0, 0.1, 0.2):
        take(e, now)
        e.on_outcome(Unknown(), now)
        assert e.live(now, True) == []
    assert [frame.seq for frame in e.live(0.25, True)] == [1]


def test_while_the_breaker_is_open_one_probe_goes_out() -> None:
    e = egress()
    put(e, 1)
    take(e, 0.0)
    e.on_outcome(Unknown(), 0.0)
    e.live(0.25, True)
    assert e.next_batch(0.3, True) is None
    probe = take(e, 0.35)
    e.on_outcome(Unknown(), 0.4)
    assert e.next_batch(0.4, True) is None
    assert take(e, 0.46) == probe


def test_numbering_live_keeps_to_the_room() -> None:
    e = egress()
    put(e, 1)
    take(e, 0.0)
    e.live(1.0, False)
    put(e, 2)
    assert e.live(1.0, False) == []
    assert [frame.seq for frame in e.live(1.0, True)] == [2]


def test_only_what_falls_out_of_the_bound_leaves_a_hole() -> None:
    e = egress(kept_bytes=14, batch_events=1)
    put(e, 1)
    take(e, 0.0)
    e.live(1.0, True)
    put(e, 2, 3, 4)
    while e.live(1.0, True):
        pass
    assert e.holes == 2 and e.kept == 2
    e.on_outcome(Unknown(), 1.0)
    assert take(e, 2.0).first_seq == 3
    old = egress(kept_s=60.0)
    put(old, 1)
    take(old, 0.0)
    old.live(1.0, True)
    put(old, 2)
    old.live(62.0, True)
    assert old.holes == 1 and old.kept == 1


def test_what_was_sent_is_appended_by_the_next_owner() -> None:
    e = egress()
    put(e, 1)
    take(e, 0.0)
    e.live(1.0, True)
    e.on_outcome(refused("owner", TWO, 4, 0, DeliveryId()), 1.0)
    assert e.barred == TWO and e.kept == 1
    e.owner_changed(TWO)
    put(e, 1, owner=TWO, of=1)
    assert take(e, 1.0) == Batch(TWO, 4, 1, [(DeliveryId(1, 1), b'{"n":1}')])


@pytest.mark.parametrize(("reason", "left"), [("egress", [1, 2]), ("gone", []), ("conflict", [])])
def test_what_was_sent_is_left_to_whoever_has_claimed_the_journal(reason: str, left: list[int]) -> None:
    e = egress()
    put(e, 1, 2)
    take(e, 0.0)
    e.live(1.0, True)
    put(e, 3)
    assert [(seq, id, body) for seq, id, body in e.leftover()] == [
        (1, DeliveryId(1, 1), b'{"n":1}'),
        (2, DeliveryId(1, 2), b'{"n":2}'),
    ]
    e.on_outcome(refused(reason, ONE, 9, 0, DeliveryId()), 1.1)
    assert [seq for seq, _, _ in e.leftover()] == left
    assert e.kept_bytes == 7 * len(left) and not e.busy and e.last_words() == []


def test_what_waits_for_its_reply_is_left_to_nobody() -> None:
    """The client has not seen it: its shard says it again."""
    e = egress()
    put(e, 1)
    take(e, 0.0)
    assert e.leftover() == []


def test_a_batch_that_ends_unknown_after_it_was_sent_does_not_open_the_breaker_again() -> None:
    e = egress()
    put(e, 1)
    take(e, 0.0)
    e.live(0.3, True)
    e.on_outcome(Unknown(), 0.4)
    e._breaker.answered()
    assert e.live(5.0, True) == [] and not e._breaker.open


def test_with_the_journal_released_the_end_leaves_live_numbered_on() -> None:
    e = Egress("s", ONE, Head(ONE, 4, 6, DeliveryId(1, 2), 1), StoreBreaker(), live_end=True)
    limits = EgressLimits()
    ids = range(3, 3 + limits.batch_events + 2)
    events = [Delivery(n, close_code=1013 if n == ids[-1] else 0) for n in ids]
    e.put(ONE, events, [b'{"n":%d}' % n for n in ids])
    take(e)
    assert e.on_outcome(refused("gone", Owner(), 0, 0, DeliveryId()), 0.0) == []
    assert not e.stopped and e.next_batch(0.0, True) is None
    frames = e.live(0.0, True)
    assert e.live(0.0, False) == []  # still only as fast as the client reads
    frames += e.live(0.0, True)
    assert [frame.seq for frame in frames] == list(range(7, 7 + len(ids)))
    assert [frame.close_code for frame in frames] == [0] * (len(ids) - 1) + [1013]
    assert (e.kept, e.kept_bytes, e.busy) == (0, 0, False)


@pytest.mark.parametrize(("live_end", "close_code"), [(True, 0), (False, 1013)])
def test_else_a_released_journal_stops_it(live_end: bool, close_code: int) -> None:
    e = Egress("s", ONE, Head(ONE, 4, 0, DeliveryId(), 1), StoreBreaker(), live_end=live_end)
    e.put(ONE, [Delivery(1, close_code=close_code)], [b'{"n":1}'])
    take(e)
    assert e.on_outcome(refused("gone", Owner(), 0, 0, DeliveryId()), 0.0) == []
    assert e.stopped == "gone" and e.live(0.0, True) == []
