"""Smart Turn: how likely the speaker has finished. Advice for the silence timeout, never a decision.

Blocking, for one thread: about 100 ms of one core.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from duologue.hearing.mel import RATE, Floats, log_mel

WINDOW_S = 8


class EndOfTurn:
    """The model of one process."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name

    def probability(self, pcm: Floats) -> float:
        """Of the last 8 s of mono sound at 16 kHz; shorter sound is padded in front."""
        sound = np.zeros(WINDOW_S * RATE, np.float32)
        recent = pcm[-len(sound) :]
        sound[len(sound) - len(recent) :] = recent
        # The model was trained on sound of zero mean and unit variance.
        sound = (sound - sound.mean()) / np.sqrt(sound.var() + np.float32(1e-7))
        (output,) = self._session.run(None, {self._input: log_mel(sound)[None]})
        return float(np.asarray(output).reshape(-1)[0])
