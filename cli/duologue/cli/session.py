"""`duologue session show ID` tells the story of a session; `duologue session kill ID` ends it.

Both ask the shard that owns it, wherever it moves meanwhile. A kill waits until the session's keys are gone.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import httpx
import msgspec
from rich.console import Console

from duologue.cli import system_store
from duologue.cli.errors import UserError
from duologue.cli.held_sessions import addresses
from duologue.session.operator_routes import KILLED
from duologue.store.redis import RedisStore

PATIENCE_S: Final = 15.0
"""Longer than an adoption takes, and than a session's last event may wait for its client."""
LOOK_S: Final = 0.2
ASK_AGAIN_S: Final = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="its last commands, effects and fences, without content")
    show.add_argument("--json", action="store_true", help="for programs")
    kill = actions.add_parser("kill", help="end it")
    kill.add_argument("--reason", default=KILLED, help="what its client is told: a code (%(default)s)")
    for action in (show, kill):
        action.add_argument("id", help="the session, as `duologue sessions` shows it")
        system_store.add_arguments(action)


def run(options: argparse.Namespace) -> int:
    if options.action == "kill":
        return asyncio.run(_kill(options))
    told = asyncio.run(_show(options))
    if options.json:
        print(msgspec.json.encode(told).decode())
    else:
        _print(told)
    return 0


async def _show(options: argparse.Namespace) -> Mapping[str, Any]:
    async with system_store.system_store(options) as store:
        until = time.monotonic() + PATIENCE_S
        while True:
            answer = await _ask(store, "GET", options.id)
            if answer is not None:
                told: Mapping[str, Any] = answer.json()
                return told
            if time.monotonic() > until:
                raise UserError(f"no shard answers for session {options.id}")
            await asyncio.sleep(LOOK_S)


async def _kill(options: argparse.Namespace) -> int:
    async with system_store.system_store(options) as store:
        until, ask_at = time.monotonic() + PATIENCE_S, 0.0
        asked = False
        while time.monotonic() < until:
            if time.monotonic() >= ask_at:
                try:
                    asked |= await _ask(store, "POST", options.id, {"reason": options.reason}) is not None
                except UnknownSession:
                    if not asked:
                        raise
                    break
                ask_at = time.monotonic() + ASK_AGAIN_S
            await asyncio.sleep(LOOK_S)
            if asked and await store.sessions.look_up(options.id) is None:
                break
        else:
            raise UserError(f"session {options.id} has not ended: " + ("it was asked to" if asked else "nobody has it"))
    print(f"{options.id} has ended: {options.reason}")
    return 0


class UnknownSession(UserError):
    """The store has no such session."""


async def _ask(
    store: RedisStore, method: str, session_id: str, params: Mapping[str, str] | None = None
) -> httpx.Response | None:
    """The answer of the shard that owns it. None: not now (it moves, or its shard is lost). Raises UserError."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", session_id):
        raise UserError(f"{session_id[:80]!r} is no session")
    found = await store.sessions.look_up(session_id)
    if found is None:
        raise UnknownSession(f"there is no session {session_id}")
    shard = addresses((await store.registry.members("shard")).members).get(found.owner.incarnation)
    if shard is None:
        return None
    path = f"/sessions/{session_id}" + ("/kill" if method == "POST" else "")
    try:
        answer = await shard.ask(method, path, params)
    except httpx.HTTPError as error:
        raise UserError(f"{shard.id} does not answer at {shard.base}: {error}") from None
    if answer.status_code == HTTPStatus.NOT_FOUND:
        return None
    if answer.status_code >= 400:
        raise UserError(f"{shard.id} refuses: {answer.json().get('error', answer.status_code)}")
    return answer


def _print(told: Mapping[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for name, value in told.items():
        if name != "story":
            console.print(f"{name:>22}  {value}", markup=False)
    console.print()
    for step in told["story"]:
        fence = step["fence"]
        where = f"{fence['owner']}/{fence['binding']}/{fence['epoch']}"
        fact = {name: value for name, value in step.items() if name not in ("at", "fact", "fence", "effects")}
        console.print(f"{step['at']:>10.3f}  {where:<9} {step['fact']}{_fields(fact)}", markup=False)
        for effect in step["effects"]:
            rest = {name: value for name, value in effect.items() if name != "effect"}
            console.print(f"{'':>22}  -> {effect['effect']}{_fields(rest)}", markup=False)


def _fields(named: Mapping[str, Any]) -> str:
    return "".join(f" {name}={value}" for name, value in named.items())
