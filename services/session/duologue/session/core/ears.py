"""The session's ears: what clients send, as the model's samples. SANS-I/O; the state is bytes.

One stream for each format that is spoken, so that cutting never changes a sample; another format begins a
new one.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from duologue.protocol.duplex import AudioFormat, InputConverter, rms


class Ears:
    def __init__(self, source: AudioFormat, rate_hz: int, carry: bytes = b"") -> None:
        self.rate_hz = rate_hz
        self._converter = InputConverter(source, rate_hz)
        if carry:
            self.take_up(carry)

    def hear(self, audio: bytes, source: AudioFormat) -> NDArray[np.float32]:
        """Mono float32 at the model's rate. Raises `bad_audio`."""
        if source != self._converter.source:
            self._converter = InputConverter(source, self.rate_hz)
        return self._converter.convert(audio)

    def reset(self) -> None:
        """Forget the stream: what comes next has nothing to do with it."""
        self._converter = InputConverter(self._converter.source, self.rate_hz)

    def export(self) -> bytes:
        source = self._converter.source
        return msgspec.msgpack.encode((source, self._converter.export_state()))

    def take_up(self, carry: bytes) -> None:
        source, state = msgspec.msgpack.decode(carry, type=tuple[AudioFormat, bytes])
        self._converter = InputConverter(source, self.rate_hz)
        self._converter.restore_state(state)


class Conversion(msgspec.Struct, frozen=True, array_like=True):
    """Work for the executor: payloads that would hold up the loop. `carry` continues the session's stream;
    without it each payload is a stream of its own."""

    rate_hz: int
    payloads: tuple[tuple[AudioFormat, bytes], ...]
    carry: bytes = b""


class Converted(msgspec.Struct, frozen=True, array_like=True):
    sounds: tuple[bytes, ...]
    carry: bytes = b""


def run_offload(kind: str, body: bytes) -> bytes:
    """Perform an `Offload` effect. Pure: may run in any thread, in any process.

    Raises RealtimeProtocolError `bad_audio` for sound that cannot be read; the shell answers with its text."""
    if kind != "convert":
        raise ValueError(f"unknown offload {kind!r}")
    work = msgspec.msgpack.decode(body, type=Conversion)
    sounds: list[bytes] = []
    ears: Ears | None = None
    for source, audio in work.payloads:
        if ears is None or not work.carry:
            ears = Ears(source, work.rate_hz, work.carry)
        sounds.append(ears.hear(audio, source).tobytes())
    carry = ears.export() if ears is not None and work.carry else b""
    return msgspec.msgpack.encode(Converted(tuple(sounds), carry))


def loudness(pcm: bytes) -> float:
    """Root mean square of float32 samples."""
    return rms(np.frombuffer(pcm, "<f4")) if pcm else 0.0
