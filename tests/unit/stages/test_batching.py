"""Which units a step takes, and what a session's cursor remembers of them."""

from __future__ import annotations

import pytest

from duologue.model.engine import Slot, StageUnit
from duologue.stages.batching import ReadyQueue
from duologue.stages.cursor import MAX_WAITING, Cursor, Entry

pytestmark = pytest.mark.unit


def cursor(index: int) -> Cursor:
    return Cursor(Slot(index, 1), f"s{index}", 0)


def entry(of: Cursor, unit: int, *, now: float = 0.0, urgent: bool = False, deadline_s: float = 1.0) -> Entry:
    return Entry(of, StageUnit(of.slot, unit, 0, 0, 0, b"", ()), now, deadline_s, True, urgent)


def taken(queue: ReadyQueue, limit: int = 8, now: float = 0.0) -> list[tuple[int, int]]:
    return [(got.cursor.slot.index, got.unit.unit) for got in queue.take(limit, now)]


def test_a_step_takes_one_unit_of_each_session_in_its_order() -> None:
    queue, a, b = ReadyQueue(), cursor(0), cursor(1)
    for given in (entry(a, 1), entry(a, 2), entry(b, 7), entry(a, 3)):
        assert queue.push(given)
    assert [taken(queue) for _ in range(4)] == [[(0, 1), (1, 7)], [(0, 2)], [(0, 3)], []]


def test_more_than_a_batch_waits_for_the_next_step_and_goes_first_there() -> None:
    queue, cursors = ReadyQueue(), [cursor(i) for i in range(5)]
    for of in cursors:
        queue.push(entry(of, 0))
        queue.push(entry(of, 1))
    steps = [[index for index, _ in taken(queue, 2)] for _ in range(5)]
    assert steps == [[0, 1], [2, 3], [4, 0], [1, 2], [3, 4]]


def test_an_urgent_unit_goes_first_but_not_before_its_own_predecessors() -> None:
    queue, a, b, c = ReadyQueue(), cursor(0), cursor(1), cursor(2)
    queue.push(entry(a, 0))
    queue.push(entry(b, 0))
    queue.push(entry(b, 1, urgent=True))
    queue.push(entry(c, 5, urgent=True))
    assert taken(queue, 1) == [(2, 5)]
    assert taken(queue, 2) == [(0, 0), (1, 0)]
    assert taken(queue) == [(1, 1)]


def test_what_waits_for_one_session_is_bounded() -> None:
    queue, a, b = ReadyQueue(), cursor(0), cursor(1)
    assert all(queue.push(entry(a, n)) for n in range(MAX_WAITING))
    assert not queue.push(entry(a, MAX_WAITING))
    assert queue.push(entry(b, 0))
    assert len(a.waiting) == MAX_WAITING


def test_a_forgotten_session_is_not_taken() -> None:
    queue, a, b = ReadyQueue(), cursor(0), cursor(1)
    queue.push(entry(a, 0))
    queue.push(entry(b, 0))
    queue.forget(a)
    assert a.abort() == ([], [0])
    assert taken(queue) == [(1, 0)] and len(queue) == 0


def test_an_abort_tells_what_was_started_and_forgets_all() -> None:
    queue, a = ReadyQueue(), cursor(0)
    for unit in range(3):
        queue.push(entry(a, unit))
    queue.take(8, 0.0)
    queue.forget(a)
    assert a.abort() == ([0], [1, 2])
    assert a.find(0) is None and a.abort() == ([], [])
    queue.push(entry(a, 3))
    assert taken(queue) == [(0, 3)]


def test_chunks_of_one_unit_finish_in_their_order() -> None:
    queue, a = ReadyQueue(), cursor(0)
    chunks = [entry(a, 4), entry(a, 4)]
    for chunk in chunks:
        queue.push(chunk)
        queue.take(8, 0.0)
    for chunk in chunks:
        assert a.find(4) is chunk
        a.finish(chunk)
    assert a.find(4) is None


def test_the_deadline_of_a_unit_begins_when_it_could_be_taken() -> None:
    queue, a = ReadyQueue(), cursor(0)
    queue.push(entry(a, 0, now=0.0))
    queue.push(entry(a, 1, now=0.0))
    assert taken(queue, now=0.9) == [(0, 0)]
    assert a.overdue(1.8) == []
    assert [late.unit.unit for late in a.overdue(2.0)] == [0, 1]
    assert not a.started and not a.waiting


def test_units_behind_an_overdue_one_get_their_time() -> None:
    queue, a = ReadyQueue(), cursor(0)
    for unit in range(3):
        queue.push(entry(a, unit, now=0.0))
    assert [late.unit.unit for late in a.overdue(1.5)] == [0]
    assert [late.unit.unit for late in a.overdue(2.4)] == []
    assert [late.unit.unit for late in a.overdue(2.6)] == [1]
