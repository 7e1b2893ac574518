"""Which life of a process this is: a random id, never reused, not kept anywhere."""

from __future__ import annotations

import os
import secrets

_mine: tuple[int, str] | None = None


def new_incarnation() -> str:
    """A fresh id (16 hex digits)."""
    return secrets.token_hex(8)


def process_incarnation() -> str:
    """This process's id: the same at every call, another one after a fork."""
    global _mine
    pid = os.getpid()
    if _mine is None or _mine[0] != pid:
        _mine = (pid, new_incarnation())
    return _mine[1]
