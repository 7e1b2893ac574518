"""What a client asks for by its upgrade request: path, query, headers, subprotocols. SANS-I/O.

Rule 1. Nothing is judged here (see `admission`); what is malformed is read as absent or kept as it came.
Rule 2. A key is read from the header or from the subprotocol pair; it is never part of anything printed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import parse_qsl

import msgspec

from duologue.protocol.duplex import Dialect

PATHS: Final = frozenset({"/v1/realtime", "/v1/duplex"})
_SUBPROTOCOL: Final = "realtime"
SECRET_PREFIX: Final = "ek_"
"""Of every client secret."""
_KEY_PREFIX: Final = "openai-insecure-api-key."
_RESUME_KEYS: Final = ("resume_session", "resume_token", "last_seq")
_ON: Final = frozenset({"1", "true", "yes", "on"})
_OFF: Final = frozenset({"0", "false", "no", "off"})


class Offer(msgspec.Struct, frozen=True):
    """One upgrade request, read."""

    path: str
    dialect: Dialect
    model: str = ""
    """The default model; empty if the query names none."""
    resume_only: bool = False
    """`resume=1`: only `session.resume` may come first."""
    no_autostart: bool = False
    """`autostart=0`: only `session.update` or `session.resume` may come first."""
    resume: Mapping[str, str] | None = None
    """What there is of `resume_session`, `resume_token`, `last_seq`, if any (OpenAI dialects)."""
    key: str = ""
    origin: str = ""
    host: str = ""
    subprotocol: str | None = None
    """The one to answer with."""

    @property
    def may_resume(self) -> bool:
        """The client may be here for a session that it has already: no capacity is asked of it."""
        return self.resume_only or self.no_autostart or self.resume is not None

    def __repr__(self) -> str:
        return f"Offer({self.path}, {self.dialect.value}, model={self.model!r})"


def read_offer(
    path: str,
    query: bytes,
    headers: Iterable[tuple[bytes, bytes]],
    subprotocols: Iterable[str],
) -> Offer:
    """The first value of a repeated query key counts, and of a repeated header."""
    asked: dict[str, str] = {}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        asked.setdefault(name, value)
    told: dict[str, str] = {}
    for raw_name, raw_value in headers:
        told.setdefault(raw_name.decode("latin-1").lower(), raw_value.decode("latin-1"))
    offered = [name for entry in subprotocols if (name := entry.strip())]
    dialect = Dialect.choose(path, asked, told)
    return Offer(
        path=path.rstrip("/"),
        dialect=dialect,
        model=asked.get("model", "").strip(),
        resume_only=_flag(asked, "resume") in _ON,
        no_autostart=_flag(asked, "autostart") in _OFF,
        resume=_resume(asked) if dialect.is_openai else None,
        key=_key(told, offered),
        origin=told.get("origin", "").strip(),
        host=told.get("host", "").strip(),
        subprotocol=_SUBPROTOCOL if _SUBPROTOCOL in offered else None,
    )


def _flag(query: Mapping[str, str], name: str) -> str:
    return query.get(name, "").strip().lower()


def _resume(query: Mapping[str, str]) -> dict[str, str] | None:
    given = {name: query[name] for name in _RESUME_KEYS if name in query}
    return given or None


def _key(headers: Mapping[str, str], subprotocols: Iterable[str]) -> str:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    for name in subprotocols:
        if name.startswith(_KEY_PREFIX):
            return name.removeprefix(_KEY_PREFIX)
    return ""
