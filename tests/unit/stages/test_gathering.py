"""The gather window of a stage: whom a step waits for, and for how long. All times are the test's own."""

from __future__ import annotations

import pytest

from duologue.model.engine import Slot, StageUnit
from duologue.stages.batching import ReadyQueue
from duologue.stages.cursor import Cursor, Entry
from duologue.stages.gathering import Gathering

pytestmark = pytest.mark.unit

PERIOD_S, WINDOW_S = 0.08, 0.02


class Stage:
    """Sessions that send a unit each period, and what the window makes of it."""

    def __init__(self, sessions: int, window_s: float = WINDOW_S) -> None:
        self.ready = ReadyQueue()
        self.cursors = [Cursor(Slot(index, 1), f"s{index}", 0) for index in range(sessions)]
        self.gathering = Gathering(window_s)
        self.unit = 0

    def arrive(self, session: int, now: float, *, urgent: bool = False, replay: bool = False) -> None:
        self.unit += 1
        cursor = self.cursors[session]
        unit = StageUnit(cursor.slot, self.unit, 0, 0, 0, b"", (), replay)
        entry = Entry(cursor, unit, now, 1.0, True, urgent)
        assert self.ready.push(entry)
        cursor.arrived(entry)

    def pace(self, *phases: float) -> None:
        """Two units of each session, taken as they came: the pace of all is known, the next begin at 2 periods."""
        for turn in range(2):
            for session, phase in enumerate(phases):
                self.arrive(session, turn * PERIOD_S + phase)
            self.take(turn * PERIOD_S + 0.079)

    def begins_at(self, now: float, limit: int = 8) -> float:
        return self.gathering.begins_at(self.ready, self.cursors, limit, now)

    def take(self, now: float) -> list[int]:
        return [entry.cursor.slot.index for entry in self.ready.take(8, now)]


def test_a_step_waits_for_those_that_are_expected_within_the_window() -> None:
    stage = Stage(3)
    stage.pace(0.0, 0.01, 0.015)
    now = 2 * PERIOD_S
    stage.arrive(0, now)
    assert stage.begins_at(now) == pytest.approx(now + WINDOW_S)
    stage.arrive(1, now + 0.01)
    assert stage.begins_at(now + 0.01) == pytest.approx(now + WINDOW_S)
    stage.arrive(2, now + 0.015)
    assert stage.begins_at(now + 0.015) == now + 0.015, "everybody who is expected has a unit: it ends early"
    assert stage.take(now + 0.015) == [0, 1, 2]


def test_nobody_waits_for_a_session_whose_unit_is_not_due_within_the_window() -> None:
    stage = Stage(2)
    stage.pace(0.0, 0.04)
    now = 2 * PERIOD_S
    stage.arrive(0, now)
    assert stage.begins_at(now) == now


def test_nobody_waits_for_a_session_whose_pace_is_not_known() -> None:
    stage = Stage(2)
    stage.arrive(1, 0.0)
    stage.take(0.0)
    stage.arrive(0, 0.001)
    assert stage.begins_at(0.001) == 0.001


def test_a_session_that_has_fallen_silent_is_expected_for_one_window_and_no_longer() -> None:
    stage = Stage(2)
    stage.pace(0.0, 0.0)
    late = 2 * PERIOD_S + WINDOW_S / 2
    stage.arrive(0, late)
    assert stage.begins_at(late) == pytest.approx(2 * PERIOD_S + WINDOW_S)
    assert stage.begins_at(2 * PERIOD_S + WINDOW_S) == 2 * PERIOD_S + WINDOW_S
    stage.take(2 * PERIOD_S + WINDOW_S)
    stage.arrive(0, 3 * PERIOD_S)
    assert stage.begins_at(3 * PERIOD_S) == 3 * PERIOD_S


def test_the_window_counts_from_the_first_ready_unit_and_never_lasts_longer() -> None:
    stage = Stage(3)
    stage.pace(0.0, 0.019, 0.03)
    now = 2 * PERIOD_S
    stage.arrive(0, now)
    stage.arrive(1, now + 0.019)
    assert stage.begins_at(now + 0.019) == now + 0.019
    assert stage.begins_at(now + WINDOW_S) == now + WINDOW_S


def test_a_unit_that_waited_for_the_step_before_has_had_its_window() -> None:
    stage = Stage(2)
    stage.pace(0.0, 0.01)
    stage.arrive(0, 0.1)
    assert stage.begins_at(0.15) == 0.15


def test_a_full_batch_and_the_beginning_of_a_response_wait_for_nobody() -> None:
    stage = Stage(2)
    stage.pace(0.0, 0.01)
    now = 2 * PERIOD_S
    stage.arrive(0, now)
    assert stage.begins_at(now, limit=1) == now
    stage.take(now)
    stage.arrive(0, now, urgent=True)
    assert stage.begins_at(now) == now


def test_without_a_window_nothing_waits() -> None:
    stage = Stage(2, window_s=0.0)
    stage.pace(0.0, 0.01)
    stage.arrive(0, 2 * PERIOD_S)
    assert stage.begins_at(2 * PERIOD_S) == 2 * PERIOD_S


def test_replays_take_the_places_that_are_left_and_set_no_pace() -> None:
    stage = Stage(3)
    for session in (0, 1):
        stage.arrive(session, 0.0, replay=True)
    stage.arrive(2, 0.001)
    assert stage.begins_at(0.001) == 0.001
    assert [entry.cursor.slot.index for entry in stage.ready.take(2, 0.001)] == [2, 0]
    assert stage.take(0.001) == [1]
    assert all(cursor.due is None for cursor in stage.cursors)
