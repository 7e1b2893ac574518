"""`duologue sessions`: who holds what."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from duologue.cli import system_store
from duologue.cli.held_sessions import HeldSession, held_sessions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    system_store.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="for programs")


def run(options: argparse.Namespace) -> int:
    sessions = asyncio.run(_sessions(options))
    if options.json:
        print(msgspec.json.encode({"sessions": sessions}).decode())
    else:
        Console().print(_table(sessions))
    return 0


async def _sessions(options: argparse.Namespace) -> list[HeldSession]:
    async with system_store.system_store(options) as store:
        return await held_sessions(store)


def _table(sessions: Sequence[HeldSession]) -> Table:
    table = Table(title=f"{len(sessions)} sessions", title_justify="left")
    for column in ("session", "key", "model", "shard", "gateway", "age", "state", "lag"):
        table.add_column(column, justify="right" if column in ("age", "lag") else "left", overflow="fold")
    for session in sessions:
        table.add_row(
            session.session_id,
            session.key_id,
            session.model,
            session.shard or "(gone)",
            session.gateway if session.attached else "(detached)",
            _age(session.age_s),
            session.state,
            "" if session.lag_s is None else f"{session.lag_s * 1000:.0f} ms",
        )
    return table


def _age(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
