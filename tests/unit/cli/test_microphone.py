"""The microphone: what a slow network leaves behind is bounded, and the newest sound wins."""

from __future__ import annotations

import pytest

from duologue.cli.microphone import CAPACITY, Microphone

pytestmark = pytest.mark.unit


async def test_the_oldest_chunks_are_dropped_and_counted() -> None:
    microphone = Microphone(rate_hz=16_000)
    for number in range(CAPACITY + 5):
        microphone._keep(number.to_bytes(2, "little") * 160)
    assert microphone.dropped == 5
    async for piece in microphone.chunks(10):
        assert piece == (5).to_bytes(2, "little") * 160
        break
