"""Faults, carried out on a running system: signals to its processes, cuts of its clients' lines, drains.

Rule 1. A fault is over when every process of the system is registered again, by an incarnation that is meant to live,
        and every gateway says that it is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Final

import httpx
from chaos.outages import Happened
from chaos.relay import Relay
from chaos.schedule import Fault
from system.running import RunningSystem

from duologue.cli.drain import GRACE_S, post_drain
from duologue.cli.status import record_of
from duologue.cli.store_address import store_at
from duologue.model.records import ShardRecord
from duologue.store.ports import Registration, StoreUnavailable

LOOK_S: Final = 0.2
WHOLE_S: Final = 60.0
DRAIN_S: Final = 6.0
CUT_SHARE: Final = 0.3
"""Of the sessions, at least one."""


class Hands:
    """`carry_out` one fault."""

    def __init__(self, system: RunningSystem, relay: Relay, sessions: int) -> None:
        self._system, self._relay = system, relay
        self._sessions = sessions
        self.names = {
            kind: sorted(process.name for process in system.state.processes if process.kind == kind)
            for kind in ("gateway", "shard", "worker", "store")
        }

    async def carry_out(self, fault: Fault) -> Happened:
        """Returns when it is over (rule 1). Raises AssertionError if the system does not become whole."""
        what, _, kind = fault.kind.partition(" ")
        began = time.monotonic()
        if kind == "sockets":
            return await self._cut(fault, began)
        members = await self._members()
        target = fault.of(self._loaded(kind, members))
        before = {member.id: member.incarnation for member in members}
        pid = self._system.pid_of(target)
        match what:
            case "kill":
                _signal(pid, signal.SIGKILL)
            case "pause" | "stall":
                _signal(pid, signal.SIGSTOP)
                try:
                    await asyncio.sleep(fault.seconds)
                finally:
                    _signal(pid, signal.SIGCONT)
            case "drain":
                await self._drain(target, members)
                _signal(pid, signal.SIGTERM)
        ended = time.monotonic()
        renewed = {target} if what in ("kill", "drain") else set()
        await self.until_whole({name: before.get(name, "") for name in renewed})
        told = f"{target} {fault.seconds:g} s" if fault.seconds else target
        return Happened(fault.kind, told, began, ended, time.monotonic())

    async def _drain(self, target: str, members: Sequence[Registration]) -> None:
        """What `duologue drain` does: ask, and wait until it is empty or its deadline is over."""
        deadline = time.monotonic() + DRAIN_S + GRACE_S
        for member in members:
            if member.id == target:
                with contextlib.suppress(httpx.HTTPError):  # another fault was faster
                    answer = await post_drain(member, DRAIN_S)
                    still = {now.incarnation for now in await self._members()}
                    assert answer.status_code == 202 or member.incarnation not in still, answer.text
        while time.monotonic() < deadline:
            await asyncio.sleep(LOOK_S)
            if not any(member.id == target and member.load for member in await self._members()):
                return

    async def _cut(self, fault: Fault, began: float) -> Happened:
        count = max(1, round(CUT_SHARE * self._sessions * fault.share))
        chosen = random.Random(fault.seed).sample(range(self._sessions), count)
        if fault.kind == "reset sockets":
            for session in chosen:
                self._relay.reset(session)
        else:
            lines = [self._relay.freeze(session) for session in chosen]
            await asyncio.sleep(fault.seconds)
            for line in lines:
                line.reset()
        ended = time.monotonic()
        return Happened(fault.kind, f"of sessions {sorted(chosen)}", began, ended, ended)

    # -- whether everything runs ------------------------------------------------------------------------

    async def until_whole(self, not_these: Mapping[str, str] | None = None) -> None:
        """Until all are there; of some, another incarnation than this one."""
        deadline = time.monotonic() + WHOLE_S
        missing = await self._missing(not_these or {})
        while missing:
            assert time.monotonic() < deadline, f"{', '.join(sorted(missing))} did not come back within {WHOLE_S:g} s"
            await asyncio.sleep(LOOK_S)
            missing = await self._missing(not_these or {})

    async def _missing(self, not_these: Mapping[str, str]) -> set[str]:
        members = {member.id: member for member in await self._members()}
        missing = {name for name in self.names["store"] if not self._system.pid_of(name)}
        for kind in ("gateway", "shard", "worker"):
            for name in self.names[kind]:
                member = members.get(name)
                if member is None or member.incarnation == not_these.get(name) or not _serves(member):
                    missing.add(name)
        if not self._relay.all_ready.is_set():
            missing.add("a gateway that is ready")
        return missing

    def _loaded(self, kind: str, members: Sequence[Registration]) -> list[str]:
        """Those of a kind that have anything to lose, if any has."""
        loaded = {member.id for member in members if member.load}
        return [name for name in self.names[kind] if name in loaded] or self.names[kind]

    async def _members(self) -> tuple[Registration, ...]:
        """Asked beside the loop of the clients: a store that starts or stands still is not to hold them up."""
        url = self._system.state.redis_url
        return await asyncio.to_thread(lambda: asyncio.run(_registered(url)))


async def _registered(url: str) -> tuple[Registration, ...]:
    store = store_at(url)
    try:
        return (await store.registry.members()).members
    except StoreUnavailable:
        return ()
    finally:
        await store.close()


def _serves(member: Registration) -> bool:
    """It takes sessions."""
    record = record_of(member)
    return not isinstance(record, ShardRecord) or record.accepting


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # another fault was faster
        if pid:
            os.kill(pid, number)
