"""Places are given once, and a place that was given again is not the one it was."""

from __future__ import annotations

import pytest

from duologue.model.engine import Slot
from duologue.stages.slots import SlotTable

pytestmark = pytest.mark.unit


def test_every_place_is_given_once() -> None:
    table = SlotTable(3)
    slots = [table.take() for _ in range(4)]
    assert [slot and slot.index for slot in slots] == [0, 1, 2, None]
    assert (table.used, table.total) == (3, 3)


def test_a_place_that_is_given_again_is_another_one() -> None:
    table = SlotTable(1)
    first = table.take()
    assert first is not None and table.is_current(first)
    assert table.free(first)
    second = table.take()
    assert second is not None and second.index == first.index and second != first
    assert not table.is_current(first) and table.is_current(second)


def test_freeing_is_idempotent_and_never_frees_anothers_place() -> None:
    table = SlotTable(2)
    first = table.take()
    assert first is not None
    assert table.free(first) and not table.free(first)
    second = table.take()
    assert second is not None and not table.free(first)
    assert table.is_current(second) and table.used == 1
    assert not table.is_current(Slot(1, 0)) or table.used == 1


def test_the_lowest_free_place_is_given_first() -> None:
    table = SlotTable(4)
    slots = [table.take() for _ in range(4)]
    for place in (2, 0):
        slot = slots[place]
        assert slot is not None and table.free(slot)
    again = table.take()
    assert again is not None and again.index == 0
