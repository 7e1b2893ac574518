"""What is kept for a shard that has no credit is in order and bounded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from duologue.bus.messages import AnyMessage, Output
from duologue.fence import StageFence
from duologue.stages.outbox import MAX_MESSAGES, Outbox

pytestmark = pytest.mark.unit


def output(unit: int) -> Output:
    return Output("s", StageFence(), 0, -1, unit, 0)


class Wire:
    """Takes so many messages, then no more."""

    def __init__(self, credit: int) -> None:
        self.credit = credit
        self.units: list[int] = []

    def send(self, message: AnyMessage, frames: Sequence[bytes]) -> bool:
        if not self.credit:
            return False
        self.credit -= 1
        assert isinstance(message, Output)
        self.units.append(message.unit)
        return True


def test_what_is_kept_goes_in_order_and_stays_until_it_is_taken() -> None:
    box, wire = Outbox(1000), Wire(2)
    for unit in range(3):
        assert box.keep("a", output(unit), (b"x",))
    assert box.keep("b", output(7), ())
    assert not box.drain(wire.send)
    assert box.holds("a") and box.holds("b")
    wire.credit = 9
    assert box.drain(wire.send)
    assert wire.units == [0, 1, 2, 7] and not box


def test_the_messages_of_a_session_are_bounded() -> None:
    box = Outbox(1000)
    assert all(box.keep("a", output(unit), ()) for unit in range(MAX_MESSAGES))
    assert not box.keep("a", output(0), ())
    assert box.keep("b", output(0), ())


def test_the_bytes_of_a_shard_are_bounded_and_come_back() -> None:
    box = Outbox(100)
    assert box.keep("a", output(0), (bytes(40), bytes(20))) and box.keep("b", output(1), (bytes(40),))
    assert not box.keep("c", output(2), (b"x",)) and not box.holds("c")
    assert not box.drain(Wire(1).send)
    assert box.keep("b", output(2), (bytes(60),))
    box.forget("b")
    assert not box.holds("b") and not box
    assert box.keep("c", output(3), (bytes(100),))
