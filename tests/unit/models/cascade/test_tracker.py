"""The hysteresis on the detector's probabilities, and the work beside the step loop."""

from __future__ import annotations

import threading

import pytest

from duologue.hearing.voice_activity import FRAME
from duologue.models.cascade.engines.tracker import Tracker
from duologue.models.cascade.engines.workshop import Workshop
from duologue.models.cascade.settings import Perception

pytestmark = pytest.mark.unit


def tracker() -> Tracker:
    return Tracker(Perception(min_speech_ms=96, pause_ms=128))


def test_speech_begins_at_the_first_of_three_frames() -> None:
    one = tracker()
    assert not one.follow(0, [0.1, 0.9, 0.9])
    assert one.follow(3 * FRAME, [0.9])
    assert (one.speaking, one.onset, one.voice_end) == (True, FRAME, 4 * FRAME)


def test_a_click_is_no_speech() -> None:
    one = tracker()
    assert not one.follow(0, [0.9, 0.9, 0.1] * 20)
    assert not one.speaking


def test_silence_is_unbroken() -> None:
    one = tracker()
    one.follow(0, [0.9] * 3)
    for start in range(3, 63, 4):
        one.follow(start * FRAME, [0.1, 0.1, 0.1, 0.9])
        assert one.speaking
    one.follow(63 * FRAME, [0.1] * 4)
    assert not one.speaking
    assert one.voice_end == 63 * FRAME


def test_between_the_thresholds_speech_neither_begins_nor_stops() -> None:
    one = tracker()
    one.follow(0, [0.4] * 20)
    assert not one.speaking
    one.follow(20 * FRAME, [0.9] * 3 + [0.4] * 20)
    assert one.speaking


def test_work_by_priority_and_a_full_queue_refuses() -> None:
    gate, began, done = threading.Event(), threading.Event(), threading.Event()

    def hold() -> str:
        began.set()
        assert gate.wait(10)
        return "held"

    shop: Workshop[str, str] = Workshop("test", threads=1, capacity=3, done=done.set)
    try:
        assert shop.submit(0, "first", hold)
        assert began.wait(10)
        assert shop.submit(2, "late", lambda: "late")
        assert shop.submit(1, "soon", lambda: "soon")
        assert shop.submit(1, "gone", lambda: "gone")
        assert not shop.submit(0, "refused", lambda: "refused")
        assert shop.withdraw(lambda key: key == "gone") == ["gone"]
        gate.set()
        results: list[tuple[str, str | Exception]] = []
        while shop.busy:
            assert done.wait(10)
            done.clear()
            results += shop.take()
        assert results == [("first", "held"), ("soon", "soon"), ("late", "late")]
    finally:
        gate.set()
        shop.close()
    assert not shop.submit(0, "after", lambda: "after")


def test_an_exception_is_a_result() -> None:
    done = threading.Event()
    shop: Workshop[int, str] = Workshop("test", threads=1, capacity=1, done=done.set)
    try:
        empty: dict[str, str] = {}
        shop.submit(0, 1, lambda: empty["no"])
        assert done.wait(10)
        ((key, result),) = shop.take()
        assert key == 1
        assert isinstance(result, KeyError)
    finally:
        shop.close()
