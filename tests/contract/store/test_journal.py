"""`Journal` and `JournalAppender`: numbering, idempotent batches, fences, replay, trimming."""

from __future__ import annotations

import asyncio

import pytest

from duologue.fence import DeliveryId, Owner
from duologue.store.memory import MemoryStore
from duologue.store.ports import (
    Appended,
    AppendOutcome,
    Done,
    Entry,
    Head,
    JournalEntry,
    JournalRefused,
    OnAppended,
    Replay,
)
from duologue.store.redis import RedisStore

pytestmark = pytest.mark.contract

Store = MemoryStore | RedisStore
ONE, TWO = Owner(1, "shard-1"), Owner(2, "shard-2")


def entries(first: int, last: int, owner: int = 1, size: int = 0) -> list[Entry]:
    return [(DeliveryId(owner, n), b"\x00%d" % n + b"x" * size) for n in range(first, last + 1)]


async def claimed(store: Store, sid: str, owner: Owner = ONE) -> int:
    head = await store.journal.claim(sid, owner=owner)
    assert isinstance(head, Head)
    return head.egress


async def test_first_claim(store: Store, sid: str) -> None:
    assert await store.journal.head(sid) is None
    assert await store.journal.claim(sid, owner=ONE) == Head(ONE, 1, 0, DeliveryId(), 1)
    assert await store.journal.claim(sid, owner=ONE, egress=7) == Head(ONE, 7, 0, DeliveryId(), 1)
    assert await store.journal.claim(sid, owner=ONE, egress=3) == Head(ONE, 8, 0, DeliveryId(), 1)


async def test_a_repeated_claim_gets_the_same_number(store: Store, sid: str) -> None:
    first = await store.journal.claim(sid, owner=ONE, claimant="a")
    assert await store.journal.claim(sid, owner=ONE, claimant="a") == first
    assert await store.journal.claim(sid, owner=ONE, claimant="b") != first


async def test_a_late_claim_of_an_older_attachment_is_refused(store: Store, sid: str) -> None:
    await store.journal.claim(sid, owner=ONE, generation=3)
    late = await store.journal.claim(sid, owner=ONE, generation=2)
    assert late == JournalRefused("generation", Head(ONE, 1, 0, DeliveryId(), 1))
    assert isinstance(await store.journal.claim(sid, owner=ONE, generation=3), Head)


async def test_append_and_read(store: Store, sid: str) -> None:
    egress = await claimed(store, sid)
    answer = await store.journal.append(sid, ONE, egress, 1, entries(1, 3))
    assert answer == Appended(3, DeliveryId(1, 3))
    replay = await store.journal.read(sid, 1)
    assert replay == Replay(
        (JournalEntry(2, DeliveryId(1, 2), b"\x002"), JournalEntry(3, DeliveryId(1, 3), b"\x003")), 3, 1
    )
    assert await store.journal.read(sid, 3) == Replay((), 3, 1)
    assert await store.journal.read(sid, 9) == Replay((), 3, 1)
    assert len((await store.journal.read(sid, 0, limit=2)).entries) == 2


async def test_repeating_a_batch_is_harmless(store: Store, sid: str) -> None:
    egress = await claimed(store, sid)
    for _ in range(3):
        answer = await store.journal.append(sid, ONE, egress, 1, entries(1, 2))
        assert answer == Appended(2, DeliveryId(1, 2))
    assert await store.journal.append(sid, ONE, egress, 1, entries(1, 4)) == Appended(4, DeliveryId(1, 4))
    assert await store.journal.append(sid, ONE, egress, 1, entries(1, 2)) == Appended(4, DeliveryId(1, 4))
    assert [entry.seq for entry in (await store.journal.read(sid, 0)).entries] == [1, 2, 3, 4]


async def test_a_number_is_given_to_one_delivery_only(store: Store, sid: str) -> None:
    egress = await claimed(store, sid)
    await store.journal.append(sid, ONE, egress, 1, entries(1, 2))
    answer = await store.journal.append(sid, ONE, egress, 2, entries(3, 4))
    assert isinstance(answer, JournalRefused) and answer.reason == "conflict"
    assert answer.head.last_seq == 2


async def test_a_replaced_egress_is_refused_and_told_where_numbering_stands(store: Store, sid: str) -> None:
    old = await claimed(store, sid)
    await store.journal.append(sid, ONE, old, 1, entries(1, 2))
    new = await claimed(store, sid)
    answer = await store.journal.append(sid, ONE, old, 3, entries(3, 3))
    assert isinstance(answer, JournalRefused) and answer.reason == "egress"
    assert (answer.head.egress, answer.head.last_seq, answer.head.last_delivery) == (new, 2, DeliveryId(1, 2))


async def test_a_replaced_owner_is_refused(store: Store, sid: str) -> None:
    egress = await claimed(store, sid)
    await store.journal.append(sid, ONE, egress, 1, entries(1, 1))
    fenced = await store.journal.fence(sid, TWO)
    assert isinstance(fenced, Head)
    assert fenced == Head(TWO, egress, 1, DeliveryId(1, 1), 1, 2)
    answer = await store.journal.append(sid, ONE, egress, 2, entries(2, 2))
    assert answer == JournalRefused("owner", fenced)
    assert await store.journal.append(sid, TWO, egress, 2, entries(1, 1, owner=2)) == Appended(2, DeliveryId(2, 1))
    assert await store.journal.claim(sid, owner=ONE) == JournalRefused(
        "owner", Head(TWO, egress, 2, DeliveryId(2, 1), 1, 4)
    )
    twin = await store.journal.fence(sid, Owner(2, "shard-3"))
    assert isinstance(twin, JournalRefused) and twin.reason == "owner"


async def test_higher_numbers_heal_a_store_that_was_behind(store: Store, sid: str) -> None:
    await claimed(store, sid)
    answer = await store.journal.append(sid, TWO, 9, 5, entries(5, 6, owner=2))
    assert answer == Appended(6, DeliveryId(2, 6))
    head = await store.journal.head(sid)
    assert head == Head(TWO, 9, 6, DeliveryId(2, 6), 5, 4)
    assert (await store.journal.read(sid, 2)).gap
    assert [entry.seq for entry in (await store.journal.read(sid, 4)).entries] == [5, 6]


async def test_a_hole_ends_the_read_and_then_is_a_gap(store: Store, sid: str) -> None:
    egress = await claimed(store, sid)
    await store.journal.append(sid, ONE, egress, 1, entries(1, 2))
    await store.journal.append(sid, ONE, egress, 5, entries(5, 6))
    first = await store.journal.read(sid, 0)
    assert ([entry.seq for entry in first.entries], first.gap) == ([1, 2], False)
    assert await store.journal.read(sid, 2) == Replay((), 6, 1, gap=True)


async def test_res_08_a_cursor_before_what_is_left_is_a_gap_and_no_replay(store: Store, sid: str) -> None:
    """The client's cursor against the number of the oldest entry: one too old, just old enough, at the head; and a
    journal of which all is trimmed, or nothing is left."""
    egress = await claimed(store, sid)
    await store.journal.append(sid, ONE, egress, 1, entries(1, 6))
    await store.journal.trim(sid, 3)
    assert await store.journal.read(sid, 2) == Replay((), 6, 4, gap=True), "3 is missing"
    assert [entry.seq for entry in (await store.journal.read(sid, 3)).entries] == [4, 5, 6]
    assert await store.journal.read(sid, 6) == Replay((), 6, 4)
    await store.journal.trim(sid, 6)
    assert (await store.journal.read(sid, 5)).gap
    assert (await store.journal.read("nobody", 3)).head_seq == 0, "a cursor beyond the head is a conflict"


async def test_trim_forgets_what_was_acknowledged(store: Store, sid: str) -> None:
    egress = await claimed(store, sid)
    await store.journal.append(sid, ONE, egress, 1, entries(1, 4))
    assert await store.journal.trim(sid, 3) == Head(ONE, egress, 4, DeliveryId(1, 4), 4, 2)
    assert await store.journal.trim(sid, 1) == Head(ONE, egress, 4, DeliveryId(1, 4), 4, 2)
    assert (await store.journal.read(sid, 1)).gap
    assert not (await store.journal.read(sid, 3)).gap
    assert await store.journal.trim(sid, 99) == Head(ONE, egress, 4, DeliveryId(1, 4), 5, 0)
    assert await store.journal.append(sid, ONE, egress, 5, entries(5, 5)) == Appended(5, DeliveryId(1, 5))
    assert [entry.seq for entry in (await store.journal.read(sid, 4)).entries] == [5]
    assert await store.journal.trim("nobody", 1) is None


async def test_trim_stops_at_what_no_checkpoint_contains(store: Store, sid: str) -> None:
    """An heir has that from the journal alone, whatever its client acknowledged; in a journal of many pages too."""
    egress = await claimed(store, sid)
    await store.journal.append(sid, ONE, egress, 1, entries(1, 100))
    for covered, first in (
        (DeliveryId(1, 0), 1),
        (DeliveryId(1, 3), 4),
        (DeliveryId(1, 60), 61),
        (DeliveryId(2, 0), 91),
    ):
        head = await store.journal.trim(sid, 90, covered)
        assert head is not None and head.first_seq == first
        assert [entry.seq for entry in (await store.journal.read(sid, first - 1, 1)).entries] == [first]


async def test_overflow_trims_the_oldest_and_numbering_goes_on(store: Store, sid: str) -> None:
    egress = await claimed(store, sid)
    head: Head | None = None
    for n in range(1, 101):
        await store.journal.append(sid, ONE, egress, n, entries(n, n, size=200))
        head = await store.journal.head(sid)
        assert head is not None and head.bytes_kept <= 4096 and head.last_seq == n
    assert head is not None
    replay = await store.journal.read(sid, head.first_seq - 1, limit=100)
    assert replay.entries[-1].seq == 100 and len(replay.entries) > 15
    assert sum(len(entry.body) for entry in replay.entries) == head.bytes_kept
    assert (await store.journal.read(sid, head.first_seq - 2)).gap


async def test_an_entry_above_the_bound_is_numbered_all_the_same(store: Store, sid: str) -> None:
    egress = await claimed(store, sid)
    answer = await store.journal.append(sid, ONE, egress, 1, entries(1, 1, size=5000))
    assert answer == Appended(1, DeliveryId(1, 1), trimmed=1)
    assert await store.journal.read(sid, 0) == Replay((), 1, 2, gap=True)
    assert await store.journal.append(sid, ONE, egress, 2, entries(2, 2)) == Appended(2, DeliveryId(1, 2))
    assert [entry.seq for entry in (await store.journal.read(sid, 1)).entries] == [2]


async def test_an_empty_batch_only_asserts(store: Store, sid: str) -> None:
    egress = await claimed(store, sid)
    await store.journal.append(sid, ONE, egress, 1, entries(1, 1))
    assert await store.journal.append(sid, ONE, egress, 2, []) == Appended(1, DeliveryId(1, 1))
    assert await store.journal.touch(sid, ONE) == Done()


async def test_release_deletes_and_refuses_what_comes_late(store: Store, sid: str) -> None:
    egress = await claimed(store, sid)
    await store.journal.append(sid, ONE, egress, 1, entries(1, 1))
    assert await store.journal.release(sid, ONE) == Done()
    assert await store.journal.release(sid, ONE) == Done()
    assert await store.journal.head(sid) is None
    assert (await store.journal.read(sid, 0)).entries == ()
    for answer in (
        await store.journal.append(sid, ONE, egress, 2, entries(2, 2)),
        await store.journal.claim(sid, owner=TWO),
    ):
        assert isinstance(answer, JournalRefused) and answer.reason == "gone"


async def test_submit_answers_each_batch_once_and_in_order(store: Store, sid: str) -> None:
    outcomes: list[tuple[int, AppendOutcome]] = []
    done = asyncio.Event()

    def keep(k: int) -> OnAppended:
        def on_outcome(outcome: AppendOutcome) -> None:
            outcomes.append((k, outcome))
            if len(outcomes) == 21:
                done.set()

        return on_outcome

    egress = await claimed(store, sid)
    for k in range(20):
        assert store.appender.submit(sid, ONE, egress, k + 1, entries(k + 1, k + 1), keep(k))
    assert store.appender.submit(sid, ONE, 0, 1, [], keep(20))
    assert not outcomes, "never from inside"
    await asyncio.wait_for(done.wait(), 5)
    assert [k for k, _ in outcomes] == list(range(21))
    assert outcomes[4][1] == Appended(5, DeliveryId(1, 5))
    refused = outcomes[20][1]
    assert isinstance(refused, JournalRefused) and refused.reason == "egress"
