"""An input as one word of a log: `TARGET:` and base64 of what zlib makes of it. `--replay` takes it as it takes a file.

A log is often all that is left of a run elsewhere.
"""

from __future__ import annotations

import base64
import zlib

MOST_CHARACTERS = 24_000
"""Beyond it an input is not told: a log is no place for it. The checkpoint of a conversation takes a tenth of that."""
MOST_BYTES = 1 << 20
"""Of an input that is read back: more than any search makes."""


def quoted(target: str, data: bytes) -> str | None:
    """None: it is too long."""
    word = f"{target}:{base64.b64encode(zlib.compress(data, 9)).decode()}"
    return word if len(word) <= MOST_CHARACTERS else None


def unquoted(word: str) -> tuple[str, bytes]:
    """The name of the target and the input. Raises ValueError: this is none, or it was cut."""
    target, colon, text = word.partition(":")
    if not colon:
        raise ValueError("neither a file nor TARGET:BASE64")
    try:
        inflate = zlib.decompressobj()
        data = inflate.decompress(base64.b64decode(text, validate=True), MOST_BYTES)
    except zlib.error as error:
        raise ValueError(f"not what zlib makes: {error}") from None
    if not inflate.eof:
        raise ValueError("it is cut")
    return target, data
