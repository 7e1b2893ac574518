"""What the two halves of the model tell each other. SANS-I/O. The session and the bus carry these bytes unread."""

from __future__ import annotations

from typing import Final

import msgspec

from duologue.models.minicpmo_4_5.options import Sampling, Window

FORCE_LISTEN: Final = b"\x01"
"""Head of a unit that is listened to, whatever the model would do; any other unit's head is empty."""


class SlotConfig(msgspec.Struct, frozen=True, array_like=True):
    """What `StageEngine.open` and `control` are told. A control changes the sampling only.

    The frames of a unit are its sound, float32 at 16 kHz, and then its camera frames as they were sent.
    """

    sampling: Sampling = Sampling()
    window: Window = Window()
    instructions: str = ""
    speaks: bool = False
    voice: bytes = b""
    """Mono PCM16, the reference voice; empty: the worker's own."""
    voice_rate_hz: int = 0
    seed: int | None = None
    """None: the engine takes one of its own."""


encode_config = msgspec.msgpack.Encoder().encode
decode_config = msgspec.msgpack.Decoder(SlotConfig).decode
