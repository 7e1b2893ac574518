"""Who may use the batch next."""

from __future__ import annotations

import threading

import pytest

from duologue.model.turnstile import Turnstile

pytestmark = pytest.mark.unit
PATIENCE_S = 20.0


def entering(turnstile: Turnstile, door: str, order: list[str], count: int = 1) -> threading.Thread:
    def run() -> None:
        for _ in range(count):
            with getattr(turnstile, door)():
                order.append(door)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_a_live_step_goes_before_background_work_that_came_earlier() -> None:
    turnstile, order = Turnstile(), list[str]()
    with turnstile.background():
        threads = [entering(turnstile, "background", order, 3)]
        threads.append(entering(turnstile, "live", order))
        deadline = threading.Timer(PATIENCE_S, lambda: None)
        deadline.start()
        while not turnstile._live and deadline.is_alive():
            threading.Event().wait(0.001)
        deadline.cancel()
        assert turnstile._live == 1 and not order, "both wait for what is under way"
    for thread in threads:
        thread.join(PATIENCE_S)
    assert order == ["live", "background", "background", "background"]


def test_one_at_a_time_whichever_door_and_though_one_raises() -> None:
    turnstile, inside, worst = Turnstile(), [0], [0]

    def run(door: str) -> None:
        for _ in range(200):
            with getattr(turnstile, door)():
                inside[0] += 1
                worst[0] = max(worst[0], inside[0])
                inside[0] -= 1

    with pytest.raises(ZeroDivisionError), turnstile.live():
        _ = 1 / 0
    threads = [threading.Thread(target=run, args=(door,)) for door in ("live", "background", "live")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert worst == [1]
