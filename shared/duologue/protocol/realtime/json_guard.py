"""What is wrong with a frame that msgspec will not read, and how deep a frame is nested.

`too_deep` is on the hot path: a frame of audio has one bracket, and to look for another is a tenth of the work of
counting them; those of other frames are counted before they are looked at.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

MAX_DEPTH = 64

_QUOTE = ord('"')
_STEP = np.zeros(256, np.int32)
_STEP[list(b"[{")] = 1
_STEP[list(b"]}")] = -1
_CHUNK = 1 << 20


def too_deep(frame: str) -> bool:
    """Whether objects and arrays are nested deeper than 64 levels, the outermost included."""
    if (frame.find("{", 1) < 0 and "[" not in frame) or frame.count("[") + frame.count("{") <= MAX_DEPTH:
        return False
    # Without escaped quotes every quote opens or closes a string, so parity tells what is inside one.
    data = frame.encode("utf-8", "surrogatepass").replace(b"\\\\", b"").replace(b'\\"', b"")
    depth = quotes = 0
    for start in range(0, len(data), _CHUNK):
        chars = np.frombuffer(data[start : start + _CHUNK], np.uint8)
        seen = np.cumsum(chars == _QUOTE, dtype=np.int32) + quotes
        levels = np.cumsum(_STEP[chars] * (1 - (seen & 1)), dtype=np.int32) + depth
        if levels.max() > MAX_DEPTH:
            return True
        depth, quotes = int(levels[-1]), int(seen[-1])
    return False


def read_leniently(frame: str) -> Any:
    """The data of a frame with NaN and Infinity let through. Raises ValueError if it is no JSON."""
    try:
        return json.loads(frame)
    except RecursionError:
        raise ValueError("nested too deeply") from None
