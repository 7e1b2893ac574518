"""What a client command counts against the input limit before the session looks at it. SANS-I/O.

The manager asks before it has anything posted, without the session's state: sound counts as float32 at 16 kHz.
"""

from __future__ import annotations

from duologue.protocol.duplex import AppendAudio, CreateItem, DuplexCommand
from duologue.session.core import pictures

_COST_PER_BYTE = {"pcm16": 2.0, "pcm_f32le": 1.0, "g711_ulaw": 4.0, "g711_alaw": 4.0}


def input_cost(command: DuplexCommand) -> int:
    """In bytes; 0 for what carries neither sound nor pictures."""
    if isinstance(command, AppendAudio):
        return round(_cost(command.audio, command.format, command.sample_rate_hz)) + command.video_bytes
    if isinstance(command, CreateItem):
        sounds = round(sum(_cost(p.audio, p.format, p.sample_rate_hz) for p in command.audio))
        return sounds + pictures.size(command.item)
    return 0


def _cost(audio: bytes, name: str | None, rate: int | None) -> float:
    per_byte = _COST_PER_BYTE.get(name or "pcm16", 2.0)
    if not rate:
        return len(audio) * per_byte * (2 if name in ("g711_ulaw", "g711_alaw") else 1)
    return len(audio) * per_byte * 16_000 / rate
