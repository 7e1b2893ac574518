"""Session presets of the models that Duologue ships."""

from __future__ import annotations

from typing import Any

from duologue.client.config import AudioFormat, SessionConfig


def loopback(script: list[dict[str, Any]], **options: Any) -> SessionConfig:
    """The synthetic model, following a script."""
    return SessionConfig(extra_body={"loopback": {"script": script, **options}})


def cascade(instructions: str | None = None) -> SessionConfig:
    """The voice agent: it hears 16 kHz, speaks 24 kHz, and owns its turns."""
    return SessionConfig(
        instructions=instructions,
        input_audio=AudioFormat("pcm16", 16_000),
        output_audio=AudioFormat("pcm16", 24_000),
        playback_commit_policy="ack_only",
    )
