"""What the two halves of the model tell each other. SANS-I/O. The session and the bus carry these bytes unread."""

from __future__ import annotations

from typing import Final

import msgspec

from duologue.models.moshi.options import Sampling, Talking

FORCE_LISTEN: Final = b"\x01"
"""Head of a unit after which the model is to be quiet; any other unit's head is empty."""


class SlotConfig(msgspec.Struct, frozen=True, array_like=True):
    """What `StageEngine.open` and `control` are told. A control changes the sampling only."""

    sampling: Sampling = Sampling()
    talking: Talking = Talking()
    seed: int | None = None
    """None: the engine takes one of its own."""
    voice: str = ""
    """PersonaPlex: a name from the pipeline's list."""
    prompt: str = ""
    """PersonaPlex: the role, as text."""


encode_config = msgspec.msgpack.Encoder().encode
decode_config = msgspec.msgpack.Decoder(SlotConfig).decode
