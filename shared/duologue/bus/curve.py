"""The CURVE keys of one process: its own pair, and whose public keys it talks to.

Rule 1. A key is allowed or it is not, whichever side dials: who listens asks for the key of who dials, who dials
        compares the key that the address tells with the same list. A store that lies about an address gains nothing.
Rule 2. One's own key is always allowed: a fleet that shares one pair needs no list.
Rule 3. The list may be a file. It is looked at anew whenever somebody is judged, so a key that is added or taken away
        counts from the next connection on; one that cannot be read changes nothing.
Rule 4. No message shows a secret key.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import zmq
from zmq.utils import z85

from duologue.bus.errors import BusError

_log = logging.getLogger("duologue.bus")

KEY_LENGTH: Final = 40
MAX_LIST_BYTES: Final = 1024 * 1024
MAKE: Final = "make a pair with `duologue keys`"
_KEY_MARK: Final = "#"
"""Between an address and the public key of who listens there; no host and no port holds it."""


class AllowedKeys:
    """Public keys, given and in a file (one a line, what follows a blank is a remark). Raises `BusError`."""

    def __init__(self, listed: Iterable[str] = (), file: Path | None = None) -> None:
        self._listed = frozenset(_decoded(key, "an allowed key") for key in listed)
        self._file = file
        self._stamp: tuple[int, int, int] | None = None
        self._filed: frozenset[bytes] = frozenset()
        if file is not None:
            self._stamp = _stamp(file)
            self._filed = _read(file)

    def __contains__(self, public: object) -> bool:
        if public in self._listed:
            return True
        self._look()
        return public in self._filed

    def _look(self) -> None:
        if self._file is None:
            return
        try:
            stamp = _stamp(self._file)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            self._filed = _read(self._file)
        except BusError as error:
            _log.warning("%s; the keys that were read before go on being allowed", error)
            return
        _log.info("the allowed keys were read again: %d", len(self._filed))


class CurveKeys:
    """`secret`: Z85 text. The public key follows from it. Raises `BusError` for what is no key."""

    def __init__(self, secret: str, allowed: Iterable[str] = (), allowed_file: Path | None = None) -> None:
        _decoded(secret, "the secret key")
        self.secret = secret.encode()
        self.public: str = zmq.curve_public(self.secret).decode()
        self.allowed = AllowedKeys((self.public, *allowed), allowed_file)

    def __repr__(self) -> str:
        return f"CurveKeys(public={self.public!r})"


def make_pair() -> tuple[str, str]:
    """Public and secret. Both begin with a letter or a digit: they are safe at the beginning of a line, of an option
    and of a list in a variable."""
    while True:
        public, secret = (key.decode() for key in zmq.curve_keypair())
        if public[0].isalnum() and secret[0].isalnum():
            return public, secret


def read_secret(path: Path) -> str:
    """The secret key in a file. Raises `BusError`."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise BusError(f"the secret key in {path} cannot be read: {error.strerror}; {MAKE}") from None
    except UnicodeDecodeError:
        raise BusError(f"{path} holds no CURVE key; {MAKE}") from None


def with_key(address: str, public: str) -> str:
    """The address that others dial, with the key of who listens there."""
    return f"{address}{_KEY_MARK}{public}"


def split_key(address: str) -> tuple[str, str]:
    """What to connect to, and the key that is to be found there (empty: none)."""
    place, _, public = address.partition(_KEY_MARK)
    return place, public


def decoded(public: str) -> bytes | None:
    """The bytes of a public key, None if it is none."""
    try:
        return _decoded(public, "")
    except BusError:
        return None


def _decoded(key: str, what: str) -> bytes:
    if len(key) == KEY_LENGTH:
        try:
            found: bytes = z85.decode(key)
        except (ValueError, KeyError, UnicodeEncodeError):
            pass
        else:
            return found
    raise BusError(f"CURVE: {what} is not {KEY_LENGTH} characters of Z85 text; {MAKE}")


def _stamp(file: Path) -> tuple[int, int, int]:
    try:
        found = os.stat(file)
    except OSError as error:
        raise BusError(f"the allowed keys in {file} cannot be read: {error.strerror}") from None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _read(file: Path) -> frozenset[bytes]:
    try:
        if file.stat().st_size > MAX_LIST_BYTES:
            raise BusError(f"the allowed keys in {file} are longer than {MAX_LIST_BYTES} bytes")
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise BusError(f"the allowed keys in {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BusError(f"{file} holds no list of CURVE keys") from None
    words = [line.split()[0] for line in lines if line.strip() and not line.startswith("# ")]
    return frozenset(_decoded(word, f"a line of {file}") for word in words)
