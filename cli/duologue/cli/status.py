"""`duologue status`: processes, sessions and load of the running system."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psutil
from rich.console import Console
from rich.table import Table

from duologue.cli.errors import UserError
from duologue.cli.home import Home, SystemState
from duologue.cli.store_address import shown, store_at
from duologue.model.records import GatewayRecord, ShardRecord, WorkerRecord
from duologue.store.ports import Registration, StoreUnavailable

RECORDS: dict[str, Any] = {"gateway": GatewayRecord, "shard": ShardRecord, "worker": WorkerRecord}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--home", type=Path, help="the home of the system (.duologue)")
    parser.add_argument("--redis-url", help="look at the registrations in this store instead")
    parser.add_argument("--json", action="store_true", help="for programs")


def run(options: argparse.Namespace) -> int:
    home = Home(options.home)
    state = None if options.redis_url else home.read_state()
    if state is None and not options.redis_url:
        raise UserError(f"no system runs in {home.path}; start one with `duologue up`, or give --redis-url")
    url = options.redis_url or (state.redis_url if state else "")
    members = asyncio.run(_members(url))
    if options.json:
        print(msgspec.json.encode(_as_json(state, members)).decode())
        return 0
    console = Console()
    if state is not None:
        console.print(_processes(state))
    console.print(_load(members))
    return 0


async def _members(url: str) -> tuple[Registration, ...]:
    store = store_at(url)
    try:
        return (await store.registry.members()).members
    except StoreUnavailable as error:
        raise UserError(f"the store at {shown(url)} does not answer: {error}") from None
    finally:
        await store.close()


def _as_json(state: SystemState | None, members: tuple[Registration, ...]) -> dict[str, Any]:
    return {
        "system": state,
        "members": [
            {"kind": m.kind, "id": m.id, "load": m.load, "capacity": m.capacity, "record": record_of(m)}
            for m in members
        ],
    }


def record_of(member: Registration) -> Any:
    """What it says of itself, by its kind."""
    record = _recorded(member)
    if isinstance(record, (ShardRecord, WorkerRecord)):  # what is shown may be kept: see `operator_token` for the rest
        record = msgspec.structs.replace(record, operator_token="")
    return record


def operator_token(member: Registration) -> str:
    """What the process wants to see of its operator. Empty: nothing, as a gateway and processes of older releases."""
    record = _recorded(member)
    return record.operator_token if isinstance(record, (ShardRecord, WorkerRecord)) else ""


def _recorded(member: Registration) -> Any:
    kind = RECORDS.get(member.kind)
    return msgspec.msgpack.decode(member.extra, type=kind) if kind and member.extra else None


def _kind(member: Registration) -> str:
    record = _recorded(member)
    return f"{member.kind} (standby)" if isinstance(record, ShardRecord) and record.standby else member.kind


def _metrics_at(member: Registration) -> str:
    """Host and port that answer `/metrics`."""
    record = record_of(member)
    url = record.own_url if isinstance(record, GatewayRecord) else getattr(record, "metrics_url", "")
    return urlsplit(url).netloc


def _processes(state: SystemState) -> Table:
    table = Table(title=f"processes of {state.url}", title_justify="left")
    for column in ("process", "pid", "restarts", "RSS MB", "CPU s"):
        table.add_column(column, justify="left" if column == "process" else "right")
    for process in state.processes:
        try:
            live = psutil.Process(process.pid)
            rss, times = live.memory_info().rss / 2**20, live.cpu_times()
            figures = (f"{rss:.0f}", f"{times.user + times.system:.1f}")
        except psutil.NoSuchProcess:
            figures = ("gone", "")
        table.add_row(process.name, str(process.pid), str(process.restarts), *figures)
    return table


def _load(members: tuple[Registration, ...]) -> Table:
    table = Table(title="registered", title_justify="left")
    for column in ("kind", "id", "load", "capacity", "serves", "metrics at"):
        table.add_column(column, justify="right" if column in ("load", "capacity") else "left", overflow="fold")
    for member in sorted(members, key=lambda member: (member.kind, member.id)):
        serves = ", ".join(member.pipelines)
        load, capacity = str(member.load), str(member.capacity)
        table.add_row(_kind(member), member.id, load, capacity, serves, _metrics_at(member))
    return table
