"""What an engine answers a unit with, where its last stage speaks to the session itself. For engines only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from duologue.model.engine import SESSION, Emission, Failure, StageRefused, StageUnit
from duologue.model.outputs import ModelOutput, encode_output

_Config = TypeVar("_Config")


def emitted(unit: StageUnit, output: ModelOutput, frames: tuple[bytes, ...] = ()) -> Emission:
    """A result for the session; the unit is consumed."""
    return Emission(unit.slot, SESSION, unit.unit, unit.turn_id, encode_output(output), frames)


def failed(unit: StageUnit, code: str, message: str) -> Emission:
    """The unit cannot be used; the session goes on behind it."""
    return Emission(unit.slot, SESSION, unit.unit, unit.turn_id, failure=Failure(code, message))


def lost(unit: StageUnit, why: str) -> Emission:
    """The slot's state cannot be trusted any more: the session opens its stages again, and says the unit again."""
    return Emission(unit.slot, SESSION, unit.unit, unit.turn_id, failure=Failure("engine_error", why, retryable=True))


def pcm16(sound: NDArray[np.float32]) -> bytes:
    """Mono samples from -1 to 1 (beyond: clipped), any length, as little-endian int16."""
    return (np.clip(sound, -1.0, 1.0) * 32767.0).round().astype("<i2").tobytes()


def slot_config(decode: Callable[[bytes], _Config], config: bytes) -> _Config:
    """What the plugin's `stage_configs` made. Raises StageRefused."""
    try:
        return decode(config)
    except msgspec.DecodeError as error:
        raise StageRefused("invalid_duplex_runtime_config", str(error)) from None
