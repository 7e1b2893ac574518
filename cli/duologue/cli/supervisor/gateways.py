"""Gateways as child processes: what to run, and whether each of them answers for itself.

Rule 1. Those that share a port cannot be told apart by it: each is asked at the address that it registered.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

import httpx
import msgspec

from duologue.cli.supervisor.child import ChildSpec
from duologue.model.records import GatewayRecord
from duologue.store.ports import Registry, StoreUnavailable

#: Numeric libraries start a thread for each core unless told otherwise; every engine counts its own.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def gateway_specs(
    port: int, ids: Sequence[str], arguments: Sequence[str], *, metrics_port: int, env: Mapping[str, str] | None = None
) -> list[ChildSpec]:
    """The gateways of one port, all with these arguments; `metrics_port` is the first one's, 0: as they like."""
    shared = ("--reuse-port",) if len(ids) > 1 else ()
    specs = []
    for n, id in enumerate(ids):
        own = ("--metrics-port", str(metrics_port + n)) if metrics_port else ()
        argv = (*("--id", id, "--port", str(port)), *arguments, *shared, *own)
        specs.append(service_spec("gateway", id, "gateway", argv, env))
    return specs


def service_spec(
    package: str,
    name: str,
    kind: str,
    arguments: Sequence[str],
    env: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> ChildSpec:
    """One of our own processes. `python`: the interpreter of its environment."""
    command = (python, "-m", f"duologue.{package}", *arguments)
    return ChildSpec(name, kind, command, env={**ONE_THREAD, "PYTHONUNBUFFERED": "1", **(env or {})})


async def all_ready(client: httpx.AsyncClient, registry: Registry, ids: Iterable[str]) -> bool:
    """Whether every one of these gateways says of itself that sessions can be opened there."""
    try:
        members = {member.id: member for member in (await registry.members("gateway")).members}
        for id in ids:
            if id not in members:
                return False
            record = msgspec.msgpack.decode(members[id].extra, type=GatewayRecord)
            if (await client.get(f"{record.own_url}/readyz")).status_code != 200:
                return False
    except (StoreUnavailable, httpx.HTTPError):
        return False
    return True
