"""`Journal` on any server that runs the scripts of `lua/journal`, and what the hot path shares with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from duologue.fence import DeliveryId, Owner
from duologue.store.ports import (
    ALL,
    Appended,
    Done,
    Entry,
    Head,
    Journal,
    JournalEntry,
    JournalRefused,
    Replay,
)
from duologue.store.replies import reads_reply
from duologue.store.scripts import SCRIPTS, Arg, ScriptRunner, journal_keys


class JournalLimits(msgspec.Struct, frozen=True):
    """Bounds of one session's journal; passing one trims the oldest entries."""

    ttl_s: float = 600.0
    max_bytes: int = 8 * 1024 * 1024
    max_age_s: float = 60.0

    def args(self) -> tuple[int, int, int]:
        """As the scripts take them: time to live ms, bytes, age ms."""
        return int(self.ttl_s * 1000), self.max_bytes, int(self.max_age_s * 1000)


def append_args(
    limits: tuple[int, int, int], owner: Owner, egress: int, first_seq: int, batch: Sequence[Entry]
) -> list[Arg]:
    """ARGV of `journal/append`."""
    args: list[Arg] = [*limits, owner.number, owner.incarnation, egress, first_seq]
    for delivery, body in batch:
        args += (delivery.owner, delivery.n, body)
    return args


@reads_reply
def append_outcome(reply: list[Any]) -> Appended | JournalRefused:
    """What the reply of `journal/append` says."""
    if reply[0] == b"ok":
        return Appended(reply[1], DeliveryId(reply[2], reply[3]), reply[4])
    return _refused(reply)


class ScriptedJournal(Journal):
    def __init__(self, runner: ScriptRunner, limits: JournalLimits | None = None) -> None:
        self._runner = runner
        self._limits = (limits or JournalLimits()).args()

    async def _run(self, name: str, session_id: str, *args: Arg) -> list[Any]:
        script = SCRIPTS["journal/" + name]
        return await self._runner.run(script, journal_keys(session_id), (self._limits[0], *args))

    async def claim(
        self, session_id: str, *, owner: Owner, egress: int = 0, generation: int = 0, claimant: str = ""
    ) -> Head | JournalRefused:
        args = (owner.number, owner.incarnation, egress, generation, claimant)
        return _head_or_refused(await self._run("claim", session_id, *args))

    async def fence(self, session_id: str, owner: Owner) -> Head | JournalRefused:
        return _head_or_refused(await self._run("fence", session_id, owner.number, owner.incarnation))

    async def append(
        self, session_id: str, owner: Owner, egress: int, first_seq: int, batch: Sequence[Entry]
    ) -> Appended | JournalRefused:
        args = append_args(self._limits, owner, egress, first_seq, batch)
        script = SCRIPTS["journal/append"]
        return append_outcome(await self._runner.run(script, journal_keys(session_id), args))

    async def head(self, session_id: str) -> Head | None:
        return _head_or_none(await self._run("head", session_id))

    async def read(self, session_id: str, after_seq: int, limit: int = 64) -> Replay:
        return _replay(await self._run("read", session_id, after_seq, limit), after_seq)

    async def trim(self, session_id: str, through_seq: int, covered: DeliveryId = ALL) -> Head | None:
        return _head_or_none(await self._run("trim", session_id, through_seq, covered.owner, covered.n))

    async def touch(self, session_id: str, owner: Owner) -> Done | JournalRefused:
        return _done(await self._run("touch", session_id, owner.number, owner.incarnation))

    async def release(self, session_id: str, owner: Owner) -> Done | JournalRefused:
        return _done(await self._run("release", session_id, owner.number, owner.incarnation))


@reads_reply
def _head(reply: list[Any]) -> Head:
    _, number, incarnation, egress, last, delivery_owner, n, first, kept = reply
    owner = Owner(number, incarnation.decode())
    return Head(owner, egress, last, DeliveryId(delivery_owner, n), first, kept)


@reads_reply
def _refused(reply: list[Any]) -> JournalRefused:
    return JournalRefused(reply[0].decode(), _head(reply))


@reads_reply
def _head_or_refused(reply: list[Any]) -> Head | JournalRefused:
    return _head(reply) if reply[0] == b"ok" else _refused(reply)


@reads_reply
def _done(reply: list[Any]) -> Done | JournalRefused:
    return Done() if reply[0] == b"ok" else _refused(reply)


@reads_reply
def _entry(fields: list[bytes]) -> JournalEntry:
    seq, owner, n, _time, _before = (int(part) for part in fields[1].split())
    return JournalEntry(seq, DeliveryId(owner, n), fields[3])


@reads_reply
def _head_or_none(reply: list[Any]) -> Head | None:
    return _head(reply) if reply[0] == b"ok" else None


@reads_reply
def _replay(reply: list[Any], after_seq: int) -> Replay:
    first, found = reply
    head = _head(first)
    entries: list[JournalEntry] = []
    for _, fields in found:
        entry = _entry(fields)
        if entry.seq != after_seq + 1 + len(entries):
            break
        entries.append(entry)
    gap = not entries and after_seq < head.last_seq
    return Replay(tuple(entries), head.last_seq, head.first_seq, gap)
