"""`SessionStore` on any server that runs the scripts of `lua/session`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from duologue.fence import Owner
from duologue.store.ports import (
    Activated,
    Checkpoint,
    Done,
    InputEntry,
    Owned,
    Refused,
    ResumeRefused,
    SessionRecord,
    SessionStore,
)
from duologue.store.replies import reads_reply
from duologue.store.scripts import SCRIPTS, Arg, ScriptRunner, session_keys

_NO_RECORD: tuple[Arg, ...] = (b"", "", "", "", 0, b"")


class ScriptedSessions(SessionStore):
    """`ttl_s`: how long a session's keys live after the last write that named it."""

    def __init__(self, runner: ScriptRunner, *, ttl_s: float = 600.0) -> None:
        self._runner = runner
        self._ttl_ms = int(ttl_s * 1000)

    async def _run(self, name: str, session_id: str, *args: Arg) -> list[Any]:
        script = SCRIPTS["session/" + name]
        return await self._runner.run(script, session_keys(session_id), (self._ttl_ms, *args))

    async def own(
        self,
        session_id: str,
        *,
        incarnation: str,
        above: int = 0,
        create: SessionRecord | None = None,
        attempt: str = "",
        taken_from: str = "",
    ) -> Owned | Refused:
        new: tuple[Arg, ...] = _NO_RECORD
        if create is not None:
            new = (
                create.token_digest,
                create.principal,
                create.dialect,
                create.gateway,
                create.generation,
                create.extra,
            )
        reply = await self._run(
            "own", session_id, above, incarnation, attempt, int(create is not None), *new, taken_from
        )
        return _owned(reply)

    async def hand_over(self, session_id: str, owner: Owner, heir: str) -> Owned | Refused:
        reply = await self._run("hand_over", session_id, owner.number, owner.incarnation, heir)
        return Owned(_owner(reply), _record(reply)) if reply[0] == b"ok" else _refused(reply)

    async def checkpoint(self, session_id: str, owner: Owner, number: int, blob: bytes) -> Done | Refused:
        return _done(await self._run("checkpoint", session_id, owner.number, owner.incarnation, number, blob))

    async def read_checkpoint(self, session_id: str) -> Checkpoint | None:
        return _checkpoint(await self._run("recall", session_id))

    async def record(
        self, session_id: str, owner: Owner, entries: Sequence[InputEntry], keep: tuple[int, int] | None = None
    ) -> Done | Refused:
        flat: list[Arg] = [part for entry in entries for part in (entry.owner, entry.unit, entry.blob)]
        first = "" if keep is None else f"{keep[0]}-{keep[1]}"
        return _done(await self._run("record", session_id, owner.number, owner.incarnation, first, *flat))

    async def recorded(self, session_id: str) -> tuple[InputEntry, ...]:
        return _input_entries(await self._run("recorded", session_id))

    async def activate(
        self,
        session_id: str,
        *,
        token_digest: bytes,
        new_digest: bytes,
        principal: str,
        dialect: str,
        gateway: str,
        live_gateways: Collection[str],
    ) -> Activated | ResumeRefused:
        if not new_digest:
            raise ValueError("activate needs the digest of the new token; to look only, use examine")
        return _activation(
            await self._run(
                "activate",
                session_id,
                token_digest,
                new_digest,
                principal,
                dialect,
                gateway,
                *live_gateways,
            )
        )

    async def examine(
        self,
        session_id: str,
        *,
        token_digest: bytes,
        principal: str,
        dialect: str,
        live_gateways: Collection[str],
    ) -> Activated | ResumeRefused:
        args: tuple[Arg, ...] = (token_digest, b"", principal, dialect, "", *live_gateways)
        return _activation(await self._run("activate", session_id, *args))

    async def confirm(self, session_id: str, generation: int) -> Done | Refused:
        return _done(await self._run("confirm", session_id, generation))

    async def let_go(self, session_id: str, generation: int = 0, *, new_digest: bytes = b"") -> Done | Refused:
        return _done(await self._run("let_go", session_id, generation, new_digest))

    async def reassert(self, session_id: str, owner: Owner, record: SessionRecord) -> Done | Refused:
        known: tuple[Arg, ...] = (
            record.generation,
            record.token_digest,
            record.principal,
            record.dialect,
            record.gateway,
            record.extra,
        )
        return _done(await self._run("reassert", session_id, owner.number, owner.incarnation, *known))

    async def touch(self, session_id: str, owner: Owner) -> Done | Refused:
        return _done(await self._run("touch", session_id, owner.number, owner.incarnation))

    async def release(self, session_id: str, owner: Owner) -> Done | Refused:
        return _done(await self._run("release", session_id, owner.number, owner.incarnation))

    async def look_up(self, session_id: str) -> Activated | None:
        return _found(await self._run("look_up", session_id))


@reads_reply
def _input_entries(reply: list[Any]) -> tuple[InputEntry, ...]:
    _, found = reply
    return tuple(_input_entry(id, blob) for id, blob in found)


def _input_entry(id: bytes, blob: bytes) -> InputEntry:
    owner, _, unit = id.partition(b"-")
    return InputEntry(int(owner), int(unit), blob)


@reads_reply
def _owner(reply: list[Any]) -> Owner:
    return Owner(reply[1], reply[2].decode())


@reads_reply
def _record(reply: list[Any]) -> SessionRecord:
    _, _, _, generation, digest, principal, dialect, gateway, extra = reply
    return SessionRecord(principal.decode(), dialect.decode(), digest, gateway.decode(), generation, extra)


@reads_reply
def _refused(reply: list[Any]) -> Refused:
    return Refused(reply[0].decode(), _owner(reply), reply[3])


@reads_reply
def _done(reply: list[Any]) -> Done | Refused:
    return Done() if reply[0] == b"ok" else _refused(reply)


@reads_reply
def _activation(reply: list[Any]) -> Activated | ResumeRefused:
    if reply[0] == b"ok":
        return Activated(_record(reply), _owner(reply))
    return ResumeRefused(reply[0].decode(), reply[1].decode())


@reads_reply
def _owned(reply: list[Any]) -> Owned | Refused:
    return Owned(_owner(reply), _record(reply)) if reply[0] == b"ok" else _refused(reply)


@reads_reply
def _checkpoint(reply: list[Any]) -> Checkpoint | None:
    owner, number, blob = reply
    return None if blob is None else Checkpoint(int(owner), int(number), blob)


@reads_reply
def _found(reply: list[Any]) -> Activated | None:
    return Activated(_record(reply), _owner(reply)) if reply[0] == b"ok" else None
