"""What is written down of a session at its end: its line in the audit, and its account (`usage`).

Rule 1. Once a session, by the owner under which it ends: one that moves to another shard has its account there, with
        all that came before.
Rule 2. Ids, numbers and reasons; nothing that was said, and never a key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from duologue.model.outputs import Usage
from duologue.runtime.logs import bound
from duologue.session.core.engine_session import Totals
from duologue.session.usage_hook import UsageHook

_audit: Final = logging.getLogger("duologue.audit")
_usage: Final = logging.getLogger("duologue.usage")


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """One session, from its open to its end. Seconds of sound as its clients sent it and as the model made it."""

    session_id: str
    key_id: str
    model: str
    dialect: str
    reason: str
    started_at: float
    """Unix seconds."""
    duration_s: float
    input_audio_s: float
    output_audio_s: float
    input_tokens: int
    output_tokens: int
    input_text_tokens: int
    input_audio_tokens: int
    cached_tokens: int
    output_text_tokens: int
    output_audio_tokens: int
    responses: int
    cancelled: int
    failed: int
    interruptions: int


class Parties(msgspec.Struct, frozen=True, kw_only=True):
    """What of a session never changes."""

    session_id: str
    principal: str
    dialect: str
    model: str
    started_at: float = 0.0


def account(who: Parties, totals: Totals, used: Usage | None, reason: str, duration_s: float) -> Account:
    """`duration_s`: session time, so without what an adoption may have taken."""
    used = used or Usage()
    return Account(
        session_id=who.session_id,
        key_id=who.principal,
        model=who.model,
        dialect=who.dialect,
        reason=reason,
        started_at=round(who.started_at, 3),
        duration_s=round(duration_s, 3),
        input_audio_s=round(totals.input_ms / 1000, 3),
        output_audio_s=round(totals.output_ms / 1000, 3),
        input_tokens=used.input_text_tokens + used.input_audio_tokens,
        output_tokens=used.output_text_tokens + used.output_audio_tokens,
        input_text_tokens=used.input_text_tokens,
        input_audio_tokens=used.input_audio_tokens,
        cached_tokens=used.cached_tokens,
        output_text_tokens=used.output_text_tokens,
        output_audio_tokens=used.output_audio_tokens,
        responses=totals.responses,
        cancelled=totals.cancelled,
        failed=totals.failed,
        interruptions=totals.interruptions,
    )


class Accounts:
    """`log`: accounts are written to the logger `duologue.usage`. `hook`: they are sent somewhere."""

    def __init__(self, *, log: bool = False, hook: UsageHook | None = None) -> None:
        self.hook = hook
        self._take: list[Callable[[Account], None]] = []
        if log:
            self._take.append(_log)
        if hook is not None:
            self._take.append(lambda ended: hook.put(ended.session_id, msgspec.json.encode(ended)))

    def close(
        self, who: Parties, totals: Totals, used: Usage | None, reason: str, duration_s: float, remote: str = ""
    ) -> None:
        """The session is over. `remote`: where the client connected from that was attached last, if that is known."""
        bound(
            _audit,
            event="close",
            session_id=who.session_id,
            key_id=who.principal,
            dialect=who.dialect,
            model=who.model,
            remote=remote,
            reason=reason,
            seconds=round(duration_s, 3),
        ).info("session closed")
        if self._take:
            ended = account(who, totals, used, reason, duration_s)
            for take in self._take:
                take(ended)


def _log(ended: Account) -> None:
    bound(_usage, **msgspec.structs.asdict(ended)).info("session used")
