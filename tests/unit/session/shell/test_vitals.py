"""Who is dead: the rules, by rosters and times alone."""

from __future__ import annotations

import pytest

from duologue.model.records import ShardRecord, WorkerRecord, encode_record
from duologue.session.vitals import LENIENT_S, Vitals
from duologue.store.ports import Registration

pytestmark = pytest.mark.unit

A, B, ME = (Registration("shard", name, f"{name}-1") for name in ("a", "b", "me"))


def hears(vitals: Vitals, *members: Registration, since: float, until: float) -> None:
    """An answer every half second."""
    at = since
    while at <= until:
        vitals.heard(members, at)
        at += 0.5


def test_who_is_not_registered_while_the_store_answers_is_dead() -> None:
    vitals = Vitals(0.5, 2.0)
    hears(vitals, A, ME, since=0, until=5)
    assert not vitals.dead("a-1", 5)
    vitals.heard([ME], 5.5)
    assert vitals.dead("a-1", 5.5)
    assert not vitals.dead("a-1", 7.0), "the roster is old: the store is away, or we stood still"
    vitals.heard([A, ME], 5.9)
    assert not vitals.dead("a-1", 6)


def test_a_shard_that_has_just_started_judges_nobody() -> None:
    vitals = Vitals(0.5, 2.0)
    vitals.heard([ME], 10)
    assert not vitals.dead("a-1", 10)
    hears(vitals, ME, since=10.5, until=12)
    assert not vitals.dead("a-1", 12)
    hears(vitals, ME, since=12.5, until=14)
    assert vitals.dead("a-1", 14), "never heard of, and not for one whole expiry since it was asked about"


def test_after_an_outage_everybody_has_time_to_come_back() -> None:
    vitals = Vitals(0.5, 2.0)
    hears(vitals, A, B, ME, since=0, until=5)
    assert vitals.heard([ME], 15), "a gap"
    assert not vitals.dead("a-1", 15)
    hears(vitals, ME, B, since=15.5, until=15 + LENIENT_S - 0.5)
    assert not vitals.dead("a-1", 15 + LENIENT_S - 0.5)
    assert not vitals.heard([ME, B], 15 + LENIENT_S)
    assert vitals.dead("a-1", 15 + LENIENT_S) and not vitals.dead("b-1", 15 + LENIENT_S)


def test_an_id_that_was_taken_over_tells_at_once() -> None:
    vitals = Vitals(0.5, 2.0)
    hears(vitals, A, ME, since=0, until=5)
    vitals.heard([Registration("shard", "a", "a-2"), ME], 15)
    assert vitals.dead("a-1", 15)
    assert not vitals.dead("b-1", 15)


def test_one_that_joins_and_is_asked_about_before_we_heard_of_it_is_not_dead() -> None:
    vitals = Vitals(0.5, 2.0)
    hears(vitals, ME, since=0, until=10)
    assert not vitals.dead("new-1", 10)
    hears(vitals, ME, Registration("shard", "new", "new-1"), since=10.5, until=13)
    assert not vitals.dead("new-1", 13)


def test_what_it_remembers_is_bounded() -> None:
    vitals = Vitals(0.5, 2.0)
    for n in range(3000):
        vitals.heard([Registration("gateway", "g", f"g-{n}"), ME], n * 0.5)
        vitals.dead(f"unheard-{n}", n * 0.5)
    assert len(vitals._known) < 600 and len(vitals._unheard) <= 256


def shard(name: str, reads: int, writes: int = 1, *, accepting: bool = True) -> Registration:
    record = ShardRecord((), 0, 8, accepting, reads_state=reads, writes_state=writes)
    return Registration("shard", name, f"{name}-1", extra=encode_record(record))


def test_the_shards_that_can_read_a_version_are_told_apart() -> None:
    vitals = Vitals(0.5, 2.0)
    away = shard("away", 9, accepting=False)
    vitals.heard([shard("old", 1), shard("new", 2, 2), away, B], 1)
    assert [member.id for member in vitals.shards()] == ["old", "new"]
    assert [member.id for member in vitals.shards(1)] == ["old", "new"]
    assert [member.id for member in vitals.shards(2)] == ["new"]
    assert [member.id for member in vitals.shards(3)] == []


def test_what_a_shard_saved_is_known_after_its_death() -> None:
    vitals = Vitals(0.5, 2.0)
    vitals.heard(
        [shard("new", 2, 2), B, Registration("worker", "w", "w-1", extra=encode_record(WorkerRecord("a", ())))], 1
    )
    vitals.heard([ME], 1.5)
    assert [vitals.wrote(one) for one in ("new-1", "b-1", "w-1", "never-1")] == [2, 0, 0, 0]


def test_the_sessions_of_all_shards_are_counted_together() -> None:
    vitals = Vitals(0.5, 2.0)
    assert vitals.sessions() == 0
    others = Registration("shard", "a", "a-1", load=3), Registration("gateway", "g", "g-1", load=9)
    vitals.heard([Registration("shard", "me", "me-1", load=4), *others], 1)
    assert vitals.sessions() == 7
