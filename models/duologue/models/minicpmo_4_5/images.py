"""Camera frames as the model takes them. Needs Pillow."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from PIL import Image, UnidentifiedImageError

MAX_PIXELS = 16_000_000


class BadFrame(ValueError):
    """What is wrong with it."""


def decoded(frames: Sequence[bytes]) -> list[Any]:
    """RGB images of JPEG or PNG files. Raises BadFrame."""
    return [_decoded(frame) for frame in frames]


def _decoded(frame: bytes) -> Any:
    try:
        image = Image.open(io.BytesIO(frame), formats=("JPEG", "PNG"))
        if image.width * image.height > MAX_PIXELS:  # before it is unpacked
            raise BadFrame(f"{image.width} x {image.height} is more than {MAX_PIXELS} pixels")
        return image.convert("RGB")
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise BadFrame(f"not a picture that can be decoded: {error}") from None
