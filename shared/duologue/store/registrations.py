"""`Registry` on any server that runs the scripts of `lua/registry`."""

from __future__ import annotations

from typing import Any

import msgspec

from duologue.store.ports import Registration, Registry, Roster
from duologue.store.replies import reads_reply
from duologue.store.scripts import REGISTRY_KEYS, SCRIPTS, Arg, ScriptRunner

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Registration).decode


class ScriptedRegistry(Registry):
    def __init__(self, runner: ScriptRunner) -> None:
        self._runner = runner

    async def _run(self, name: str, *args: Arg) -> list[Any]:
        return await self._runner.run(SCRIPTS["registry/" + name], REGISTRY_KEYS, args)

    async def beat(self, own: Registration, *, expiry_s: float = 2.0, join: bool = False) -> Roster:
        member = f"{own.kind}/{own.id}"
        reply = await self._run("beat", member, own.incarnation, _encode(own), int(expiry_s * 1000), int(join))
        return _roster(reply)

    async def members(self, kind: str = "") -> Roster:
        return _roster(await self._run("members"), kind)

    async def remove(self, kind: str, id: str, incarnation: str) -> None:
        await self._run("remove", f"{kind}/{id}", incarnation)


@reads_reply
def _roster(reply: list[Any], kind: str = "") -> Roster:
    """A record that this version cannot read is somebody of another version: left out, not fatal."""
    replaced, records = reply
    members: list[Registration] = []
    for record in records:
        try:
            member = _decode(record.partition(b"\n")[2])
        except (msgspec.DecodeError, RecursionError):
            continue
        if not kind or member.kind == kind:
            members.append(member)
    members.sort(key=lambda m: (m.kind, m.id))
    return Roster(tuple(members), bool(replaced))
