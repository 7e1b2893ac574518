"""A vocoder for tests: a tone for each code, with the members and the caches of the published one, on the CPU."""

from __future__ import annotations

import wave
from typing import Any

import numpy as np
import torch

SAMPLES = 960
"""Of one code, at 24 kHz."""


class _Flow:
    pre_lookahead_len = 3


class Tone:
    """Speaks with the pitch of its voice, and with a phase that goes on from chunk to chunk."""

    def __init__(self, device: str) -> None:
        self.flow = _Flow()
        self.cache: dict[str, float] | None = {}
        self.stream_cache: dict[str, torch.Tensor] | None = None
        self.hift_cache_dict: dict[str, torch.Tensor] = {}
        self._stream_prompt: str | None = None

    def set_stream_cache(self, prompt_wav: str) -> tuple[Any, Any]:
        if self.cache is None:
            self.cache = {}
        if prompt_wav not in self.cache:
            with wave.open(prompt_wav) as file:
                sound = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float64)
            crossings = np.count_nonzero(np.diff(np.signbit(sound)))
            self.cache[prompt_wav] = crossings / 2 / (len(sound) / 16000)
        self.stream_cache = {"pitch": torch.tensor([self.cache[prompt_wav]])}
        self.hift_cache_dict = {"phase": torch.zeros(1, dtype=torch.float64)}
        self._stream_prompt = prompt_wav
        return self.stream_cache, self.hift_cache_dict

    def stream(self, tokens: list[int], prompt_wav: str | None = None, last_chunk: bool = False) -> bytes:
        if self.stream_cache is None or self.cache is None:
            raise ValueError("no stream")
        if prompt_wav is not None and prompt_wav != self._stream_prompt:
            raise ValueError("the voice is another one than that of this stream")
        taken = tokens if last_chunk else tokens[: len(tokens) - self.flow.pre_lookahead_len]
        if not taken:
            return b""
        pitch = float(self.stream_cache["pitch"])
        hz = np.repeat([pitch * (0.8 + 0.4 * (code % 512) / 512) for code in taken], SAMPLES)
        phase = float(self.hift_cache_dict["phase"]) + np.cumsum(hz) / 24000
        self.hift_cache_dict = {"phase": torch.tensor([phase[-1] % 1.0], dtype=torch.float64)}
        self.stream_cache = {"pitch": self.stream_cache["pitch"] * 1.001}
        return (np.sin(2 * np.pi * phase) * 8000).astype("<i2").tobytes()
