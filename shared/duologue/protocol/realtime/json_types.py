"""Names for what JSON can hold, and the bounds of its numbers."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

JsonObject = dict[str, Any]

MAX_NUMBER = 2**53
"""Beyond it a JSON number is no exact integer any more; no field means anything that large."""

Number = (
    Annotated[int, msgspec.Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]
    | Annotated[float, msgspec.Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]
)
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
Millis = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)] | Annotated[float, msgspec.Meta(ge=0, le=MAX_NUMBER)]
Name = Annotated[str, msgspec.Meta(min_length=1)]
