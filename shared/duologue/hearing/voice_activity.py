"""Silero VAD, one model per process, many streams at once. And the hysteresis on its probabilities.

Rule 1. The state of a stream (512 samples at a time, 64 samples of context, the recurrent state) is its own;
        one `run` advances all streams that have a frame ready, so the result never depends on the company.
Rule 2. Silence is unbroken: one voiced frame starts its count again.
Rule 3. Time is the stream's own, counted in samples; no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import onnxruntime

from duologue.hearing.mel import RATE, Floats
from duologue.models.cascade.engines.tracker import FRAME

_CONTEXT = 64


class Stream:
    """What the detector keeps of one session."""

    def __init__(self) -> None:
        self.context: Floats = np.zeros(_CONTEXT, np.float32)
        self.state: Floats = np.zeros((2, 1, 128), np.float32)
        self.pending: Floats = np.zeros(0, np.float32)

    @property
    def state_bytes(self) -> int:
        return self.context.nbytes + self.state.nbytes + self.pending.nbytes


class VoiceDetector:
    """The model. `advance` is for one thread."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._rate = np.array(RATE, np.int64)

    def advance(self, streams: Sequence[Stream], sounds: Sequence[Floats]) -> list[list[float]]:
        """Feed each stream its sound (float32, 16 kHz, any length). Returns the probability of speech of
        every frame that became complete, per stream."""
        for stream, sound in zip(streams, sounds, strict=True):
            stream.pending = np.concatenate((stream.pending, sound)) if len(stream.pending) else sound
        results: list[list[float]] = [[] for _ in streams]
        taken = [0] * len(streams)
        while ready := [i for i, s in enumerate(streams) if len(s.pending) - taken[i] >= FRAME]:
            frames = [streams[i].pending[taken[i] : taken[i] + FRAME] for i in ready]
            probabilities = self._run([streams[i] for i in ready], frames)
            for i, probability in zip(ready, probabilities, strict=True):
                results[i].append(probability)
                taken[i] += FRAME
        for stream, count in zip(streams, taken, strict=True):
            stream.pending = stream.pending[count:].copy()
        return results

    def _run(self, streams: list[Stream], frames: list[Floats]) -> list[float]:
        batch = np.stack([np.concatenate((s.context, f)) for s, f in zip(streams, frames, strict=True)])
        state = np.concatenate([s.state for s in streams], axis=1)
        results = self._session.run(None, {"input": batch, "state": state, "sr": self._rate})
        output, state = np.asarray(results[0]), np.asarray(results[1], np.float32)
        for i, (stream, frame) in enumerate(zip(streams, frames, strict=True)):
            stream.context = frame[-_CONTEXT:].copy()
            stream.state = state[:, i : i + 1].copy()
        return cast(list[float], output[:, 0].tolist())
