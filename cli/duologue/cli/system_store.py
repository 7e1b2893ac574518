"""The store of the system that a command is about: that of a home, or one by its address."""

from __future__ import annotations

import argparse
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from duologue.cli.errors import UserError
from duologue.cli.home import Home
from duologue.cli.store_address import shown, store_at
from duologue.store.ports import StoreUnavailable
from duologue.store.redis import RedisStore


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--home", type=Path, help="the home of the system (.duologue)")
    parser.add_argument("--redis-url", help="look in this store instead")


@asynccontextmanager
async def system_store(options: argparse.Namespace) -> AsyncGenerator[RedisStore, None]:
    """Raises UserError: no system runs there, or the store does not answer."""
    home = Home(options.home)
    state = None if options.redis_url else home.read_state()
    if state is None and not options.redis_url:
        raise UserError(f"no system runs in {home.path}; start one with `duologue up`, or give --redis-url")
    url = options.redis_url or (state.redis_url if state else "")
    store = store_at(url)
    try:
        yield store
    except StoreUnavailable as error:
        raise UserError(f"the store at {shown(url)} does not answer: {error}") from None
    finally:
        await store.close()
