"""Names and rates of audio formats. One spelling inside; every known spelling on the wire."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from duologue.protocol.realtime.errors import RealtimeProtocolError

MIN_RATE_HZ, MAX_RATE_HZ = 8_000, 192_000
G711_RATE_HZ = 8_000

SAMPLE_BYTES = {"pcm16": 2, "pcm_f32le": 4, "g711_ulaw": 1, "g711_alaw": 1, "wav": 2}
G711 = frozenset({"g711_ulaw", "g711_alaw"})

OPENAI_FORMATS = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}
"""The formats that the OpenAI dialects have, by their GA names."""

_SPELLINGS = {
    "pcm16": "pcm16",
    "pcm": "pcm16",
    "pcm_s16le": "pcm16",
    "s16le": "pcm16",
    "audio/pcm": "pcm16",
    "audio/pcm16": "pcm16",
    "pcm_f32le": "pcm_f32le",
    "f32le": "pcm_f32le",
    "audio/pcm_f32le": "pcm_f32le",
    "g711_ulaw": "g711_ulaw",
    "g711-ulaw": "g711_ulaw",
    "ulaw": "g711_ulaw",
    "mulaw": "g711_ulaw",
    "audio/g711_ulaw": "g711_ulaw",
    "audio/pcmu": "g711_ulaw",
    "pcmu": "g711_ulaw",
    "g711_alaw": "g711_alaw",
    "g711-alaw": "g711_alaw",
    "alaw": "g711_alaw",
    "audio/g711_alaw": "g711_alaw",
    "audio/pcma": "g711_alaw",
    "pcma": "g711_alaw",
    "wav": "wav",
    "audio/wav": "wav",
}


class AudioFormat(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A folded format name and its rate in Hz (0: not named); always mono, little endian.

    What stands in a checkpoint or on the bus is held to it when it is decoded: a rate of 2**62 asks for petabytes."""

    name: Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(SAMPLE_BYTES)})$")] = "pcm16"
    rate: Annotated[int, msgspec.Meta(ge=0, le=MAX_RATE_HZ)] = 16_000

    @property
    def width(self) -> int:
        """Bytes per sample."""
        return SAMPLE_BYTES[self.name]

    def duration_ms(self, size: int) -> float:
        """How long so many bytes of this format sound (for wav: of its samples alone)."""
        return size / self.width * 1000 / self.rate

    def size_of(self, ms: float) -> int:
        """The bytes of so many milliseconds, whole samples."""
        return round(ms * self.rate / 1000) * self.width


def fold_format(spelling: str, *, output: bool = False) -> str:
    """The canonical name of a spelling; `wav` is an output format only.

    Raises RealtimeProtocolError `unsupported_audio_format`, `param` "format".
    """
    name = _SPELLINGS.get(spelling) or _SPELLINGS.get(spelling.strip().lower())
    if name is None or (name == "wav" and not output):
        direction = "output" if output else "input"
        raise RealtimeProtocolError(
            "unsupported_audio_format", f"{spelling[:40]!r} is no {direction} audio format", param="format"
        )
    return name


def check_rate(rate: Any, param: str = "sample_rate_hz") -> int:
    """A rate as an integer in bounds, or `bad_event` naming `param`."""
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or rate != int(rate):
        raise RealtimeProtocolError("bad_event", f"{param} must be an integer", param=param)
    if not MIN_RATE_HZ <= rate <= MAX_RATE_HZ:
        raise RealtimeProtocolError("bad_event", f"{param} must be from {MIN_RATE_HZ} to {MAX_RATE_HZ}", param=param)
    return int(rate)


def read_format(value: Any, *, output: bool = False, param: str = "format") -> tuple[str, int | None]:
    """Read a format string or object (`{type|format, rate|sample_rate_hz|sample_rate}`): name and rate.

    Raises `unsupported_audio_format` for the name, `bad_event` for a wrong type or rate; both name `param`.
    """
    rate: Any = None
    if isinstance(value, dict):
        rate = next((value[k] for k in ("rate", "sample_rate_hz", "sample_rate") if value.get(k) is not None), None)
        value = value.get("type") if value.get("type") is not None else value.get("format")
    if not isinstance(value, str):
        raise RealtimeProtocolError("bad_event", f"{param} must be a format name or object", param=param)
    try:
        name = fold_format(value, output=output)
    except RealtimeProtocolError as error:
        error.param = param
        raise
    return name, None if rate is None else check_rate(rate, f"{param}.rate")


def resolve_rate(name: str, rate: int | None, current: AudioFormat, default_rate: int) -> int:
    """The rate of a format that may not have named one.

    A named rate counts. The same format as now keeps its rate, G.711 is 8 kHz, PCM keeps the rate of
    other PCM and falls back to the dialect's default after G.711.
    """
    if rate is not None:
        return rate
    if name == current.name:
        return current.rate
    if name in G711:
        return G711_RATE_HZ
    return default_rate if current.name in G711 else current.rate
