"""What a session is opened with."""

from __future__ import annotations

from typing import Any

import msgspec


class AudioFormat(msgspec.Struct, frozen=True):
    """A wire format: `pcm16`, `pcm_f32le`, `g711_ulaw` or `g711_alaw`, mono, at `rate_hz`."""

    name: str = "pcm16"
    rate_hz: int = 16_000

    @property
    def bytes_per_ms(self) -> float:
        width = {"pcm16": 2, "pcm_f32le": 4}.get(self.name, 1)
        return self.rate_hz * width / 1000


class SessionConfig(msgspec.Struct, frozen=True):
    """The session object of the first `session.update`. None leaves a field to the server's default,
    except `turn_detection`: None means that the model owns the turns."""

    modalities: tuple[str, ...] = ("audio", "text")
    input_audio: AudioFormat = AudioFormat("pcm16", 16_000)
    output_audio: AudioFormat = AudioFormat("pcm16", 24_000)
    instructions: str | None = None
    voice: str | None = None
    ref_audio: str | None = None
    auto_response: bool = True
    temperature: float | None = None
    overlap_policy: str | None = None
    playback_commit_policy: str | None = None
    turn_detection: dict[str, Any] | None = None
    idle_timeout_s: float | None = None
    tools: tuple[dict[str, Any], ...] | None = None
    extra_body: dict[str, Any] = {}

    def to_realtime(self, model: str | None) -> dict[str, Any]:
        optional = {
            "model": model,
            "instructions": self.instructions,
            "voice": self.voice,
            "ref_audio": self.ref_audio,
            "temperature": self.temperature,
            "overlap_policy": self.overlap_policy,
            "playback_commit_policy": self.playback_commit_policy,
            "idle_timeout_s": self.idle_timeout_s,
            "tools": None if self.tools is None else list(self.tools),
        }
        return {
            **{key: value for key, value in optional.items() if value is not None},
            "modalities": list(self.modalities),
            "input_audio_format": self.input_audio.name,
            "output_audio_format": self.output_audio.name,
            "sample_rate_hz": self.input_audio.rate_hz,
            "audio": {
                "input": {"sample_rate_hz": self.input_audio.rate_hz},
                "output": {"sample_rate_hz": self.output_audio.rate_hz},
            },
            "turn_detection": self.turn_detection,
            "extra_body": {"auto_response": self.auto_response, **self.extra_body},
        }
