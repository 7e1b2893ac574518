"""Engines as a worker drives them, and streams of a host as an engine drives those."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import numpy as np

from duologue.model.engine import Emission, Slot, StageEngine, StageUnit
from duologue.models.vllm_stream.host import VllmHost

PATIENCE_S = 120.0
T = TypeVar("T")
_units = itertools.count()


def ids(seed: int, count: int) -> tuple[int, ...]:
    """Ordinary tokens of the tiny vocabularies."""
    return tuple(int(one) for one in np.random.default_rng(seed).integers(10, 900, count))


def sound(seed: int, seconds: float) -> bytes:
    noise = np.random.default_rng(seed).standard_normal(int(16_000 * seconds)) * 0.1
    return noise.astype("<f4").tobytes()


def rows(seed: int, count: int, hidden: int = 128) -> bytes:
    return np.random.default_rng(seed).standard_normal((count, hidden)).astype("<f4").tobytes()


def run(host: VllmHost, work: Coroutine[Any, Any, T]) -> T:
    return host.submit(work).result(PATIENCE_S)


async def all_of(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    return list(await asyncio.gather(*work))


async def unstreamed(host: VllmHost, tokens: Sequence[int], count: int) -> list[int]:
    """One ordinary request over the whole context: what the streamed one must equal."""
    from vllm.sampling_params import SamplingParams

    prompt = {"type": "token", "prompt_token_ids": list(tokens)}
    made: list[int] = []
    params = SamplingParams(max_tokens=count, temperature=0.0, detokenize=False)
    async for output in host.engine.generate(prompt, params, request_id=f"whole-{next(_units)}"):
        made = list(output.outputs[0].token_ids)
    return made


class Driven:
    """A warm engine, one step at a time."""

    def __init__(self, engine: StageEngine) -> None:
        self.engine = engine
        self._woken = threading.Event()
        engine.wake = self._woken.set

    def unit(self, slot: Slot, head: bytes, *frames: bytes, turn: int = 1, epoch: int = 0) -> list[Emission]:
        return list(self.engine.append_batch([StageUnit(slot, next(_units), turn, epoch, 0, head, frames)]))

    def until(self, enough: Callable[[Emission], bool]) -> list[Emission]:
        """Read until one comes that is."""
        told: list[Emission] = []
        while True:
            assert self._woken.wait(PATIENCE_S), told
            self._woken.clear()
            told += self.engine.read()
            if any(enough(one) for one in told):
                return told
