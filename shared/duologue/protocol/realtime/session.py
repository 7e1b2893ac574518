"""Tier 1: the configuration of a session, as the OpenAI Realtime API has it, complete and typed."""

from __future__ import annotations

import msgspec

from duologue.protocol.realtime.formats import AudioFormat
from duologue.protocol.realtime.json_types import JsonObject
from duologue.protocol.realtime.turn_detection import TurnDetection


class RealtimeSessionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Every field has its effective value; None is "not set" or "switched off"."""

    model: str
    modalities: tuple[str, ...] = ("text", "audio")
    instructions: str | None = None
    voice: str | None = None
    input_format: AudioFormat = AudioFormat("pcm16", 16_000)
    output_format: AudioFormat = AudioFormat("pcm16", 24_000)
    temperature: float | None = None
    max_output_tokens: int | None = None
    """None: unlimited."""
    speed: float | None = None
    turn_detection: TurnDetection | None = None
    tools: tuple[JsonObject, ...] | None = None
    tool_choice: str | JsonObject | None = None
    metadata: JsonObject | None = None
    include: tuple[str, ...] | None = None
    prompt: JsonObject | None = None
    transcription: JsonObject | None = None
    noise_reduction: JsonObject | None = None
    tracing: str | JsonObject | None = None
    truncation: str | JsonObject | None = None

    @property
    def speaks(self) -> bool:
        """Audio output is wanted."""
        return "audio" in self.modalities
