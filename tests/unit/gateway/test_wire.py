"""Frames as they go onto the socket."""

from __future__ import annotations

import pytest
from websockets.frames import Frame, Opcode

from duologue.gateway.wire import text_frame

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 200_000])
def test_a_frame_is_what_the_library_makes_of_it(size: int) -> None:
    payload = b"x" * size
    assert text_frame(payload) == Frame(Opcode.TEXT, payload).serialize(mask=False)
