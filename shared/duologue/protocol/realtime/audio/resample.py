"""Streaming resampling whose output does not depend on how the input was cut, bit for bit.

A polyphase windowed sinc. Rule 1. After n input samples exactly ceil(n * target / source) output samples
have been given: 80 ms in are 80 ms out, at once, at any pair of rates. What the filter needs from the
future is a delay inside the signal instead (`delay`, under 2 ms), never a delay of the count.
Rule 2. The state is the last few input samples, so it fits into a checkpoint: that, and rule 1, is why no
resampling library is used, whose state cannot be read.
Rule 3. Samples are bit-exact because each output is always computed by the same product of the same shape
at the same place in its block, whatever came in the same call; a block that is not complete is
computed again when the rest of it arrives.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, gcd
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from duologue.protocol.realtime.formats import MAX_RATE_HZ, MIN_RATE_HZ

Samples = NDArray[np.float32]

HALF_WIDTH = 16
"""Zero crossings of the sinc on each side, at the lower of the two rates."""
BETA = 8.0
ROLL_OFF = 0.94
MAX_WEIGHTS = 1 << 19
"""Ratios whose weight table would be larger (16001 to 16000 Hz) are interpolated from a fine table."""
PIECE = 1 << 15
"""Input samples worked on at a time: a long append needs no more memory than a short one."""

_BLOCKS_PER_S = 50
"""A block is 20 ms or, if that is whole rows, a part of it: appends are of 20, 40, 80 or 100 ms, and a stream of
such has no block that is computed twice."""
_MACS = 1 << 15  # a product small enough that no BLAS starts threads for it
_FINE = 512  # points of the fine table per input sample


class Resampler(Protocol):
    """`delay`: how many input samples later a sound appears in the output."""

    delay: int

    def push(self, samples: Samples) -> Samples: ...

    def export_state(self) -> bytes: ...

    def restore_state(self, state: bytes) -> None: ...


def make_resampler(source_hz: int, target_hz: int) -> Resampler:
    """A resampler from silence. The rates must differ.

    Raises ValueError: a rate that no format and no model has; the table of the filter grows with their ratio."""
    if not (MIN_RATE_HZ <= source_hz <= MAX_RATE_HZ and MIN_RATE_HZ <= target_hz <= MAX_RATE_HZ):
        raise ValueError(f"{source_hz} to {target_hz} Hz: rates are from {MIN_RATE_HZ} to {MAX_RATE_HZ}")
    divisor = gcd(source_hz, target_hz)
    up, down = target_hz // divisor, source_hz // divisor
    delay = ceil(HALF_WIDTH * max(1.0, down / up))
    if up * (2 * delay + down) <= MAX_WEIGHTS:
        return _BlockResampler(_plan(up, down, source_hz // _BLOCKS_PER_S))
    return _FineResampler(up, down, delay)


def _sinc(times: NDArray[np.float64], up: int, down: int) -> NDArray[np.float64]:
    """The filter at these times, in input samples from its middle."""
    scale = min(1.0, up / down)
    half = HALF_WIDTH / scale
    inside = np.clip(1 - (times / half) ** 2, 0, None)
    window = np.where(np.abs(times) <= half, np.i0(BETA * np.sqrt(inside)) / np.i0(BETA), 0)
    cutoff = scale * ROLL_OFF
    return cutoff * np.sinc(cutoff * times) * window


class _Plan(msgspec.Struct, frozen=True):
    """A block is `rows` rows; in each, some new samples after `history` older ones make some outputs by `weights`."""

    up: int
    down: int
    delay: int
    history: int
    rows: int
    block_in: int
    block_out: int
    strides: tuple[int, int, int]
    """In bytes, of the windows on a line of blocks: block, row, sample."""
    weights: Samples


@lru_cache(maxsize=32)
def _plan(up: int, down: int, block: int) -> _Plan:
    """`block`: how many samples come in, at best, for one block."""
    delay = ceil(HALF_WIDTH * max(1.0, down / up))
    cycles = max(1, delay // down)
    row_in, row_out = cycles * down, cycles * up
    width = 2 * delay + row_in
    at = np.arange(row_out) * np.float64(down / up)
    times: NDArray[np.float64] = at[None, :] + delay - np.arange(width)[:, None]
    weights = _sinc(times, up, down)
    weights /= weights.sum(axis=0)
    most = max(1, _MACS // (width * row_out))
    rows = max((rows for rows in range(1, most + 1) if block % (rows * row_in) == 0), default=most)
    return _Plan(
        up,
        down,
        delay,
        history=2 * delay,
        rows=rows,
        block_in=rows * row_in,
        block_out=rows * row_out,
        strides=(rows * row_in * 4, row_in * 4, 4),
        weights=np.ascontiguousarray(weights, dtype=np.float32),
    )


class _BlockResampler:
    """For ratios of small numbers: a block is a fixed number of rows, one matrix product."""

    def __init__(self, plan: _Plan) -> None:
        self.delay = plan.delay
        self._plan = plan
        self._kept: Samples = np.zeros(plan.history, np.float32)  # history, then the block begun
        self._given = 0  # outputs of the block begun that have been given

    def push(self, samples: Samples) -> Samples:
        if len(samples) <= PIECE:
            return self._push(samples)
        return np.concatenate([self._push(samples[at : at + PIECE]) for at in range(0, len(samples), PIECE)])

    def _push(self, samples: Samples) -> Samples:
        if not len(samples):
            return samples
        plan, kept = self._plan, self._kept
        end = len(kept) + len(samples)
        have = end - plan.history
        whole, begun = divmod(have, plan.block_in)
        blocks = whole + 1 if begun else whole
        line = np.zeros(plan.history + blocks * plan.block_in, np.float32)
        line[: len(kept)] = kept
        line[len(kept) : end] = samples
        # Overlapping windows of the line; numpy's `as_strided` takes longer than the product that follows.
        windows: Samples = np.ndarray((blocks, plan.rows, len(plan.weights)), np.float32, line, 0, plan.strides)
        made = np.matmul(np.ascontiguousarray(windows), plan.weights).reshape(-1)
        due = -(-have * plan.up // plan.down)
        given: Samples = made[self._given : due]
        self._kept = line[whole * plan.block_in : end].copy()
        self._given = due - whole * plan.block_out
        return given

    def export_state(self) -> bytes:
        return msgspec.msgpack.encode((self._given, self._kept.astype("<f4").tobytes()))

    def restore_state(self, state: bytes) -> None:
        self._given, kept = msgspec.msgpack.decode(state, type=tuple[int, bytes])
        self._kept = np.frombuffer(kept, "<f4").astype(np.float32)


@lru_cache(maxsize=8)
def _fine_table(up: int, down: int, delay: int) -> Samples:
    times = np.arange(-delay * _FINE, (delay + 1) * _FINE + 2) / _FINE
    return _sinc(times, up, down).astype(np.float32)


class _FineResampler:
    """For any other ratio: weights are read between the points of a fine table, output by output."""

    def __init__(self, up: int, down: int, delay: int) -> None:
        self.delay = delay
        self._up, self._down = up, down
        self._table = _fine_table(up, down, delay)
        self._taps = np.arange(2 * delay + 1)
        self._kept: Samples = np.zeros(2 * delay, np.float32)
        self._phase = 0  # where the next output lies after the history, in 1/up input samples

    def push(self, samples: Samples) -> Samples:
        step = 1 << 12
        pieces = [self._push(samples[at : at + step]) for at in range(0, len(samples), step)]
        return np.concatenate(pieces) if pieces else samples

    def _push(self, samples: Samples) -> Samples:
        line = np.concatenate((self._kept, samples))
        fresh = len(line) - 2 * self.delay
        count = max(0, -(-(fresh * self._up - self._phase) // self._down))
        at = self._phase + np.arange(count, dtype=np.int64) * self._down
        whole, part = at // self._up, (at % self._up) / self._up
        # The output lies `part` after the newest sample but `delay` of its window.
        place = (part[:, None] + 2 * self.delay - self._taps[None, :]) * _FINE
        low = place.astype(np.int64)
        lean = (place - low).astype(np.float32)
        weights = self._table[low] * (1 - lean) + self._table[low + 1] * lean
        windows = line[whole[:, None] + self._taps[None, :]]
        made: Samples = np.add.reduce(windows * weights, axis=1, dtype=np.float32)
        self._phase += count * self._down - fresh * self._up
        self._kept = line[fresh:].copy()
        return made

    def export_state(self) -> bytes:
        return msgspec.msgpack.encode((self._phase, self._kept.astype("<f4").tobytes()))

    def restore_state(self, state: bytes) -> None:
        self._phase, kept = msgspec.msgpack.decode(state, type=tuple[int, bytes])
        self._kept = np.frombuffer(kept, "<f4").astype(np.float32)
