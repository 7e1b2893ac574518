"""The log-mel spectrogram that Whisper was trained on, in numpy.

80 filters on the Slaney scale, windows of 25 ms every 10 ms, at 16 kHz.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

Floats = npt.NDArray[np.float32]

RATE = 16_000
HOP = 160
FRAMES_PER_S = RATE // HOP
BANDS = 80
_FFT = 400
_LINEAR_HZ = 1000.0
"""Below this the Slaney scale is linear, 3 mel for 200 Hz; above it 27 mel for a factor of 6.4."""
_LOG_STEP = np.log(6.4) / 27.0


def _to_hz(mel: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    knee = _LINEAR_HZ * 3 / 200
    return np.where(mel < knee, mel * 200 / 3, _LINEAR_HZ * np.exp(_LOG_STEP * (mel - knee)))


def _filters() -> Floats:
    """[BANDS, FFT bins]: triangles between neighbouring band edges, each of unit area."""
    top = _LINEAR_HZ * 3 / 200 + np.log(RATE / 2 / _LINEAR_HZ) / _LOG_STEP
    edges = _to_hz(np.linspace(0.0, top, BANDS + 2))
    bins = np.fft.rfftfreq(_FFT, 1 / RATE)
    low, mid, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    triangles = np.maximum(0.0, np.minimum((bins - low) / (mid - low), (high - bins) / (high - mid)))
    return (triangles * (2.0 / (high - low))).astype(np.float32)


_FILTERS = _filters()
_WINDOW = np.hanning(_FFT + 1)[:-1].astype(np.float32)


def log_mel(pcm: Floats) -> Floats:
    """Sound [samples] at 16 kHz to [80, samples / 160]; at least 201 samples."""
    padded = np.pad(pcm, _FFT // 2, mode="reflect")
    frames = sliding_window_view(padded, _FFT)[::HOP]
    spectrum = np.abs(np.fft.rfft(frames * _WINDOW, axis=-1))[:-1] ** 2
    mel = np.log10(np.maximum(_FILTERS @ spectrum.T.astype(np.float32), 1e-10))
    return cast(Floats, ((np.maximum(mel, mel.max() - 8.0) + 4.0) / 4.0).astype(np.float32))
