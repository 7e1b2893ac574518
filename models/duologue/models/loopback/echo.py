"""A unit of input, 16 kHz float32, as a unit of output, 24 kHz PCM16: a causal polyphase filter.

Rule 1. The filter looks back `HISTORY` samples and never ahead, so a unit in is a unit out, exactly.
Rule 2. It keeps nothing: whoever hears the units hands the last samples of the one before along.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

UP: Final = 3
DOWN: Final = 2
TAPS: Final = 32
"""Per phase: at 16 kHz a delay of one millisecond."""
HISTORY: Final = TAPS
HISTORY_BYTES: Final = HISTORY * 4


def _kernel() -> npt.NDArray[np.float32]:
    """Column j makes output j of every three from a window of `TAPS` + 1 samples, oldest first."""
    length = UP * TAPS
    k = np.arange(length) - (length - 1) / 2
    cutoff = 0.94 / UP
    low_pass = cutoff * np.sinc(cutoff * k) * np.kaiser(length, 7.0)
    low_pass *= UP / low_pass.sum()
    kernel = np.zeros((TAPS + 1, UP))
    for j in range(UP):
        newest, phase = divmod(j * DOWN, UP)
        for back in range(TAPS):
            # The newest sample of output 0 is the window's last but one: output 2 needs one more.
            kernel[TAPS - 1 + newest - back, j] = low_pass[phase + UP * back]
    return kernel.astype(np.float32)


_KERNEL: Final = _kernel()


def upsample(sound: bytes) -> bytes:
    """`sound` is `HISTORY` samples and a unit (an even number of samples), float32; the answer is PCM16."""
    samples = np.frombuffer(sound, dtype="<f4")
    steps = (samples.size - HISTORY) // DOWN
    # Window k ends with the first two samples of step k.
    start = HISTORY - TAPS + 1
    windows = np.lib.stride_tricks.sliding_window_view(samples[start:], TAPS + 1)[::DOWN][:steps]
    wave = (np.ascontiguousarray(windows) @ _KERNEL).ravel()
    wave *= 32767
    np.rint(wave, out=wave)
    np.clip(wave, -32768, 32767, out=wave)
    return wave.astype("<i2").tobytes()
