"""What a response sounds like on the wire: the model's samples in the response's format. SANS-I/O."""

from __future__ import annotations

import msgspec

from duologue.protocol.duplex import AudioFormat, OutputConverter


class Voice:
    """The converter of the open response."""

    def __init__(self) -> None:
        self._converter: OutputConverter | None = None

    def format_of(self, session: AudioFormat, asked: AudioFormat | None) -> AudioFormat:
        """The format of one response; a rate of 0 means that only the name was given."""
        if asked is None:
            return session
        return asked if asked.rate else AudioFormat(asked.name, session.rate)

    def begin(self, rate_hz: int, target: AudioFormat) -> None:
        self._converter = OutputConverter(rate_hz, target)

    def encode(self, pcm: bytes, rate_hz: int, *, last: bool) -> bytes:
        """int16 samples as bytes of the target; the last ones bring what the filter still holds."""
        converter = self._converter
        assert converter is not None, "a response is open"
        if rate_hz != converter.rate:
            converter = self._converter = OutputConverter(rate_hz, converter.target)
        sound = converter.convert(pcm)
        if last and converter.target.name != "wav":
            sound += converter.finish()
        return sound

    def finish(self) -> bytes:
        return b"" if self._converter is None else self._converter.finish()

    def export(self) -> bytes:
        if self._converter is None:
            return b""
        told = (self._converter.rate, self._converter.target, self._converter.export_state())
        return msgspec.msgpack.encode(told)

    def take_up(self, carry: bytes) -> None:
        if carry:
            rate, target, state = msgspec.msgpack.decode(carry, type=tuple[int, AudioFormat, bytes])
            self._converter = OutputConverter(rate, target)
            self._converter.restore_state(state)
