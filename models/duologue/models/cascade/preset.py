"""What a client sends to open a session with the cascade: the `session` object of its first message."""

from __future__ import annotations

from typing import Any

from duologue.models.cascade.settings import RATE_HZ, VOICE_RATE_HZ


def session_preset(instructions: str | None = None, *, auto: bool = True) -> dict[str, Any]:
    """`auto`: the model owns the turns; else a turn is what the client commits."""
    session: dict[str, Any] = {
        "model": "cascade",
        "modalities": ["text", "audio"],
        "audio": {
            "input": {"format": {"type": "audio/pcm", "rate": RATE_HZ}},
            "output": {"format": {"type": "audio/pcm", "rate": VOICE_RATE_HZ}},
        },
        "turn_detection": None,
        "extra_body": {"auto_response": auto},
    }
    if instructions is not None:
        session["instructions"] = instructions
    return session
