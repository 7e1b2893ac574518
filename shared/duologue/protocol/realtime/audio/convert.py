"""From a client's format to the model's samples and back, as streams.

Rule 1. Cutting the bytes differently never changes a sample; an odd byte waits for the next append.
Rule 2. Equal rates cost nothing and add no delay.
Rule 3. The state is small and is bytes: it belongs to a checkpoint.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from duologue.protocol.realtime.audio.g711 import Int16, Samples
from duologue.protocol.realtime.audio.resample import Resampler, make_resampler
from duologue.protocol.realtime.audio.samples import decode_samples, encode_samples, to_float32
from duologue.protocol.realtime.formats import AudioFormat


class InputConverter:
    """Bytes of `source` to float32 at `rate` Hz; n ms in are n ms out, at once."""

    def __init__(self, source: AudioFormat, rate: int) -> None:
        self.source, self.rate = source, rate
        self._carry = b""
        self._resampler: Resampler | None = None if source.rate == rate else make_resampler(source.rate, rate)

    def convert(self, data: bytes | bytearray | memoryview) -> Samples:
        """Raises `bad_audio` (a float that is not finite); the stream is then as before."""
        width = self.source.width
        if self._carry or len(data) % width:
            data = self._carry + bytes(data)
        rest = len(data) % width
        if rest:
            whole = len(data) - rest
            samples = decode_samples(memoryview(data)[:whole], self.source.name)
            self._carry = bytes(data[whole:])
        else:
            samples = decode_samples(data, self.source.name)
            self._carry = b""
        return samples if self._resampler is None else self._resampler.push(samples)

    def export_state(self) -> bytes:
        inner = b"" if self._resampler is None else self._resampler.export_state()
        return msgspec.msgpack.encode((self._carry, inner))

    def restore_state(self, state: bytes) -> None:
        """Take up a stream of the same source and rate where it was exported."""
        self._carry, inner = msgspec.msgpack.decode(state, type=tuple[bytes, bytes])
        if self._resampler is not None:
            self._resampler.restore_state(inner)


class OutputConverter:
    """The audio of one response, made at `rate` Hz, to bytes of `target`.

    With a change of rate the first output lacks the filter's delay (under 2 ms) and `finish` gives the
    rest, so that the response is in step and has its exact length.
    """

    def __init__(self, rate: int, target: AudioFormat) -> None:
        self.rate, self.target = rate, target
        self._passes = rate == target.rate and target.name == "pcm16"
        self._start()

    def _start(self) -> None:
        self._resampler: Resampler | None = None
        self._taken = self._given = self._skip = 0
        if self.rate != self.target.rate:
            self._resampler = make_resampler(self.rate, self.target.rate)
            self._skip = round(self._resampler.delay * self.target.rate / self.rate)

    def convert(self, sound: bytes | bytearray | memoryview | NDArray[np.float32] | Int16) -> bytes:
        """`sound` is int16 or float32 samples, or bytes of int16 little-endian PCM."""
        if isinstance(sound, (bytes, bytearray, memoryview)):
            if self._passes:
                return bytes(sound)
            sound = np.frombuffer(sound, "<i2").astype(np.int16, copy=False)
        if self._resampler is not None:
            self._taken += len(sound)
            sound = self._step(to_float32(sound))
        return encode_samples(sound, self.target) if len(sound) else b""

    def finish(self) -> bytes:
        """What the filter still holds; afterwards the converter is as new."""
        if self._resampler is None:
            return b""
        due = round(self._taken * self.target.rate / self.rate)
        rest = self._step(np.zeros(self._resampler.delay + 1, np.float32))
        rest = rest[: max(0, len(rest) + due - self._given)]
        self._start()
        return encode_samples(rest, self.target) if len(rest) else b""

    def _step(self, samples: Samples) -> Samples:
        assert self._resampler is not None
        made = self._resampler.push(samples)
        if self._skip:
            skipped = min(self._skip, len(made))
            self._skip -= skipped
            made = made[skipped:]
        self._given += len(made)
        return made

    def export_state(self) -> bytes:
        inner = b"" if self._resampler is None else self._resampler.export_state()
        return msgspec.msgpack.encode((self._taken, self._given, self._skip, inner))

    def restore_state(self, state: bytes) -> None:
        """Take up a response of the same rate and target where it was exported."""
        kind = tuple[int, int, int, bytes]
        self._taken, self._given, self._skip, inner = msgspec.msgpack.decode(state, type=kind)
        if self._resampler is not None:
            self._resampler.restore_state(inner)
