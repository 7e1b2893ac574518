"""What each session of a benchmark does: append speech-like sound in real time, read, sometimes cancel."""

from __future__ import annotations

import base64
import math
import struct
from typing import Any

import msgspec


class Workload(msgspec.Struct, frozen=True):
    """One append every `append_ms`; a unit is complete every `unit_ms`."""

    model: str
    unit_ms: int
    append_ms: int
    rate_hz: int
    cancel_every_s: float = 0.0

    @property
    def appends_per_unit(self) -> int:
        return self.unit_ms // self.append_ms

    @property
    def audio_chars(self) -> int:
        """Base64 characters of one unit of 24 kHz PCM16."""
        return math.ceil(self.unit_ms * 48 / 3) * 4

    def session(self) -> dict[str, Any]:
        """A model that speaks in every unit, for ever."""
        script = [{"speak": {"units": 100_000, "text": "word " * 1000}}]
        return {
            "model": self.model,
            "modalities": ["audio", "text"],
            "input_audio_format": "pcm16",
            "output_audio_format": "pcm16",
            "sample_rate_hz": self.rate_hz,
            "turn_detection": None,
            "extra_body": {"auto_response": True, "loopback": {"script": script}},
        }

    def appends(self) -> list[str]:
        """Four seconds of appends, to be sent in a circle."""
        size = self.rate_hz * self.append_ms // 1000 * 2
        sound = voice(self.rate_hz, 4)
        frames = []
        for offset in range(0, len(sound) - size + 1, size):
            audio = base64.b64encode(sound[offset : offset + size]).decode()
            frames.append(
                f'{{"type":"input_audio_buffer.append","audio":"{audio}","format":"pcm16",'
                f'"sample_rate_hz":{self.rate_hz},"duration_ms":{self.append_ms}}}'
            )
        return frames


WORKLOADS = {
    "loopback": Workload("loopback", unit_ms=80, append_ms=80, rate_hz=24_000),
    "loopback-1s": Workload("loopback-1s", unit_ms=1000, append_ms=100, rate_hz=16_000),
}


def voice(rate_hz: int, seconds: int) -> bytes:
    """PCM16 with a gliding pitch, ten harmonics and four syllables a second: never silent, never clipped."""
    samples, phase = [], 0.0
    for i in range(rate_hz * seconds):
        t = i / rate_hz
        phase += 2 * math.pi * (190 + 15 * math.sin(2 * math.pi * 2.7 * t)) / rate_hz
        syllable = 0.3 + 0.7 * math.sin(math.pi * 4 * t) ** 2
        tone = sum(math.sin(k * phase) / k for k in range(1, 11))
        samples.append(int(9000 * syllable * tone / 2))
    return struct.pack(f"<{len(samples)}h", *(max(-32768, min(32767, value)) for value in samples))
