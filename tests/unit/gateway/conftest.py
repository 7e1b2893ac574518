"""A gateway in front of a fake shard, for the pages that need nothing special of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from unit.gateway.running import System


@pytest_asyncio.fixture
async def system() -> AsyncIterator[System]:
    async with System() as running:
        await running.gateway()
        yield running
