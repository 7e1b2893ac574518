"""`duologue drain NAME`: take one process out of service without ending what it serves.

A gateway tells its clients to come back elsewhere, a shard hands its sessions over, a worker has them move at
the end of their turns. It goes on running, empty, until it is stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from pathlib import Path
from typing import Final

import httpx

from duologue.cli.errors import UserError
from duologue.cli.home import Home
from duologue.cli.status import operator_token, record_of
from duologue.cli.store_address import shown, store_at
from duologue.model.records import GatewayRecord
from duologue.store.ports import Registration, Registry, StoreUnavailable

LOOK_S: Final = 0.3
GRACE_S: Final = 3.0
"""Longer than its last registration takes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the process: an id as `duologue status` shows it")
    parser.add_argument("--deadline-s", type=float, default=30.0, help="how long it may take (30)")
    parser.add_argument("--home", type=Path, help="the home of the system (.duologue)")
    parser.add_argument("--redis-url", help="look for it in this store instead")
    parser.add_argument("--key", default=os.environ.get("DUOLOGUE_API_KEY", ""), help="an API key, for a gateway")


def run(options: argparse.Namespace) -> int:
    if not 0 <= options.deadline_s <= 3600:
        raise UserError("--deadline-s is from 0 to 3600")
    home = Home(options.home)
    state = None if options.redis_url else home.read_state()
    if state is None and not options.redis_url:
        raise UserError(f"no system runs in {home.path}; start one with `duologue up`, or give --redis-url")
    url = options.redis_url or (state.redis_url if state else "")
    return asyncio.run(_drain(url, options.name, options.deadline_s, options.key))


async def _drain(url: str, name: str, deadline_s: float, key: str) -> int:
    store = store_at(url)
    try:
        member = await _find(store.registry, name)
        if member is None:
            raise UserError(f"no process {name} is registered; `duologue status` shows those that are")
        await _ask(member, deadline_s, key)
        until = time.monotonic() + deadline_s + GRACE_S
        while time.monotonic() < until:
            await asyncio.sleep(LOOK_S)
            now = await _find(store.registry, name, member.incarnation)
            if now is None or not now.load:
                print(f"{name} is empty")
                return 0
            member = now
        print(f"{name} still has {member.load} sessions")
        return 1
    except StoreUnavailable as error:
        raise UserError(f"the store at {shown(url)} does not answer: {error}") from None
    finally:
        await store.close()


async def _find(registry: Registry, name: str, incarnation: str = "") -> Registration | None:
    found = [member for member in (await registry.members()).members if member.id == name]
    return next((member for member in found if not incarnation or member.incarnation == incarnation), None)


async def post_drain(member: Registration, deadline_s: float, key: str = "") -> httpx.Response:
    """What the process answers (202: it begins). A gateway wants an API key where it has any; shards and workers want
    the token of their registration. Raises httpx.HTTPError."""
    token = key if member.kind == "gateway" else operator_token(member)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(timeout=5.0, trust_env=False) as client:
        return await client.post(f"{_base(member)}/drain", params={"deadline_s": deadline_s}, headers=headers)


def _base(member: Registration) -> str:
    record = record_of(member)
    if isinstance(record, GatewayRecord):
        return record.own_url
    return str(record.metrics_url).removesuffix("/metrics")


async def _ask(member: Registration, deadline_s: float, key: str) -> None:
    try:
        answer = await post_drain(member, deadline_s, key)
    except httpx.HTTPError as error:
        raise UserError(f"{member.id} does not answer at {_base(member)}: {error}") from None
    if answer.status_code != 202:
        raise UserError(f"{member.id} refuses to drain: {answer.status_code} {answer.text[:200]}")
