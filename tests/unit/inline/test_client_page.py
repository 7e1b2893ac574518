"""docs/client.md says what the code says, and every example in it runs: against a system behind a real WebSocket.

The system is that of `duologue.inline`, so that no other process is needed; a WebSocket server passes its frames on.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import re
from collections.abc import AsyncIterator
from pathlib import Path

import generate_client
import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from duologue.client import inbox, listeners, responses
from duologue.client.transport import TransportClosed
from duologue.inline import DuplexOmni

pytestmark = pytest.mark.unit

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "client.md").read_text()
ADDRESS = "ws://127.0.0.1:8080"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


async def _pass_on(omni: DuplexOmni, outside: ServerConnection) -> None:
    """Until either end has closed."""
    inside = omni.connect()

    async def out() -> None:
        try:
            while True:
                await outside.send((await inside.receive()).decode())
        except TransportClosed as closed:
            await outside.close(closed.code if closed.code != 1006 else 1011, closed.reason)

    writing = asyncio.create_task(out())
    try:
        async for frame in outside:
            await inside.send(str(frame))
    except (ConnectionClosed, TransportClosed):
        pass
    finally:
        inside.abort()
        with contextlib.suppress(ConnectionClosed):
            await writing


@pytest.fixture
async def address() -> AsyncIterator[str]:
    """Of a server that has the model of the page."""
    async with (
        DuplexOmni("loopback") as omni,
        serve(lambda outside: _pass_on(omni, outside), "127.0.0.1", 0, compression=None) as server,
    ):
        yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"


def test_the_tables_are_up_to_date() -> None:
    assert generate_client.page(PAGE) == PAGE, "run: python docs/generate_client.py"


def test_the_bounds_are_those_of_the_code() -> None:
    assert inbox.CAPACITY == listeners.MAX_RESPONSES == 1024 and responses.MAX_CHUNKS == 4096
    assert PAGE.count("| 1024 ") == 2 and "| 4096 deltas |" in PAGE


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) >= 6


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
async def test_an_example_runs(number: int, address: str, tmp_path: Path) -> None:
    source = EXAMPLES[number].replace(ADDRESS, address)
    code = compile(source, f"docs/client.md, example {number + 1}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names = {"asyncio": asyncio, "folder": tmp_path}
    async with asyncio.timeout(30):
        result = eval(code, names)
        if inspect.isawaitable(result):
            await result
