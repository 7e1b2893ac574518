"""The Lua scripts as the adapters run them, and the keys they run on.

Each folder of `lua/` holds the scripts of one port; `_prelude.lua` is put before each of them. A script
touches only the keys that it is given, all of one hash slot, and uses nothing newer than Redis 7.0.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import msgspec

Arg = bytes | str | int
Reply = list["bytes | int | None | Reply"]

_FOLDER = Path(__file__).parent / "lua"
_DURABLE = ("session/own", "session/hand_over", "session/activate")


class Script(msgspec.Struct, frozen=True):
    """One script: its name (`folder/file`), its whole source, and the digest the server knows it by."""

    name: str
    source: bytes
    sha: bytes
    durable: bool = False
    """With replicas configured, the call returns only after one of them has it (or 100 ms)."""


def _load() -> dict[str, Script]:
    scripts: dict[str, Script] = {}
    for folder in ("session", "journal", "registry", "secret", "holding"):
        prelude = (_FOLDER / folder / "_prelude.lua").read_bytes()
        for path in sorted((_FOLDER / folder).glob("[!_]*.lua")):
            name, source = f"{folder}/{path.stem}", prelude + path.read_bytes()
            sha = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
            scripts[name] = Script(name, source, sha, name in _DURABLE)
    return scripts


SCRIPTS = _load()


class ScriptRunner(ABC):
    """Runs one script on one server."""

    @abstractmethod
    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Reply:
        """The script's reply: lists, bytes, integers, None. Raises `StoreUnavailable`, nothing else."""


def session_keys(session_id: str) -> tuple[str, str, str]:
    return f"s:{{{session_id}}}", f"c:{{{session_id}}}", f"in:{{{session_id}}}"


def journal_keys(session_id: str) -> tuple[str, str]:
    return f"jh:{{{session_id}}}", f"j:{{{session_id}}}"


def secret_keys(digest: bytes) -> tuple[str]:
    return (f"cs:{{{digest.hex()}}}",)


def holding_keys(incarnation: str = "") -> tuple[str, ...]:
    """All of one slot; without an incarnation, the key of the holders alone."""
    return ("{due}:holders", f"{{due}}:{incarnation}") if incarnation else ("{due}:holders",)


REGISTRY_KEYS = ("{registry}:due", "{registry}:who")
