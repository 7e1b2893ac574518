"""Silero VAD, one model per process, many streams at once.

Rule 1. The state of a stream (64 samples of context, the recurrent state) is its own and is bytes; one `judge`
        advances all streams that have a frame, so the result never depends on the company.
Rule 2. 512 samples at a time, at 16 kHz; what is less waits in the stream.
Rule 3. The runtime is imported when the first model is made: whoever only keeps streams does not pay for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np

from duologue.hearing.mel import RATE, Floats

FRAME = 512
_CONTEXT = 64
_CONTEXT_BYTES = _CONTEXT * 4
STATE_BYTES = _CONTEXT_BYTES + 2 * 128 * 4
"""The size of an exported stream."""


class Stream:
    """What the detector keeps of one session."""

    def __init__(self, exported: bytes = b"") -> None:
        """`exported` goes on where `export` was called. Raises ValueError if it is none."""
        self.pending: Floats = np.zeros(0, np.float32)
        if exported and len(exported) != STATE_BYTES:
            raise ValueError(f"the state of a detector has {STATE_BYTES} bytes, not {len(exported)}")
        kept = np.frombuffer(exported or bytes(STATE_BYTES), "<f4")
        self.context: Floats = kept[:_CONTEXT]
        self.state: Floats = kept[_CONTEXT:].reshape(2, 1, 128)

    @property
    def state_bytes(self) -> int:
        return self.context.nbytes + self.state.nbytes + self.pending.nbytes

    def export(self) -> bytes:
        """All but `pending`."""
        return self.context.astype("<f4").tobytes() + self.state.astype("<f4").tobytes()


class VoiceDetector:
    """The model. For one thread."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

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
            probabilities = self.judge([streams[i] for i in ready], frames)
            for i, probability in zip(ready, probabilities, strict=True):
                results[i].append(probability)
                taken[i] += FRAME
        for stream, count in zip(streams, taken, strict=True):
            stream.pending = stream.pending[count:].copy()
        return results

    def judge(self, streams: Sequence[Stream], frames: Sequence[Floats]) -> list[float]:
        """One frame [FRAME] for each stream, in one run of the model."""
        batch = np.stack([np.concatenate((s.context, f)) for s, f in zip(streams, frames, strict=True)])
        state = np.concatenate([s.state for s in streams], axis=1)
        results = self._session.run(None, {"input": batch, "state": state, "sr": self._rate})
        output, state = np.asarray(results[0]), np.asarray(results[1], np.float32)
        for i, (stream, frame) in enumerate(zip(streams, frames, strict=True)):
            stream.context = frame[-_CONTEXT:].copy()
            stream.state = state[:, i : i + 1].copy()
        return cast(list[float], output[:, 0].tolist())
