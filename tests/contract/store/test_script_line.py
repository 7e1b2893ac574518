"""What a line of calls does when a server answers late, wrongly or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from duologue.store.script_line import ScriptLine, pack

pytestmark = pytest.mark.contract

Answer = Callable[[int, bytes], bytes]
"""To the nth connection and one of its commands."""


@asynccontextmanager
async def a_server(path: Path, answer: Answer) -> AsyncIterator[tuple[str, list[int]]]:
    """Its url, and the connection of each command that it got."""
    got: list[int] = []
    serving: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.append(task)
        number = len(serving)
        try:
            while await reader.readline():
                await reader.readline()
                said = (await reader.readline()).strip()
                got.append(number)
                if said == b"bye":
                    break
                writer.write(answer(number, said))
        finally:
            writer.close()

    server = await asyncio.start_unix_server(serve, path)
    try:
        yield f"unix://{path}", got
    finally:
        server.close()
        if serving:
            await asyncio.wait(serving)


async def test_what_waits_behind_a_call_that_is_never_answered_is_asked_again(tmp_path: Path) -> None:
    def answer(number: int, said: bytes) -> bytes:
        return b"" if number == 1 else b"+" + said + b"\r\n"

    async with a_server(tmp_path / "s", answer) as (url, got):
        line = ScriptLine(url, 0.4)
        first = asyncio.create_task(line.call(pack(("first",))))
        await asyncio.sleep(0.2)
        assert line.waiting == 1
        second = asyncio.create_task(line.call(pack(("second",))))
        with pytest.raises(TimeoutError):
            await first
        assert await second == b"second"
        assert got == [1, 1, 2]
        await line.close()


async def test_a_call_is_sent_again_once(tmp_path: Path) -> None:
    async with a_server(tmp_path / "s", lambda number, said: b"+" + said + b"\r\n") as (url, got):
        line = ScriptLine(url, 5.0)
        assert await line.call(pack(("hello",))) == b"hello"
        with pytest.raises(ConnectionError):
            await line.call(pack(("bye",)))
        assert got == [1, 1, 2]
        assert await line.call(pack(("hello",))) == b"hello"
        await line.close()


async def test_a_cancelled_caller_leaves_its_reply_to_nobody(tmp_path: Path) -> None:
    async with a_server(tmp_path / "s", lambda number, said: b"+" + said + b"\r\n") as (url, got):
        line = ScriptLine(url, 5.0)
        assert await line.call(pack(("zero",))) == b"zero"
        calls = [asyncio.create_task(line.call(pack((name,)))) for name in ("one", "two", "three")]
        await asyncio.sleep(0)
        calls[1].cancel()
        assert [await calls[0], await calls[2]] == [b"one", b"three"]
        assert got == [1, 1, 1, 1]
        await line.close()


async def test_a_reply_that_nobody_asked_for_ends_the_connection(tmp_path: Path) -> None:
    def answer(number: int, said: bytes) -> bytes:
        return b"+" + said + b"\r\n" + (b"+stray\r\n" if number == 1 else b"")

    async with a_server(tmp_path / "s", answer) as (url, got):
        line = ScriptLine(url, 5.0)
        assert await line.call(pack(("one",))) == b"one"
        assert await line.call(pack(("two",))) == b"two"
        assert got == [1, 2]
        await line.close()


async def test_a_call_on_a_connection_that_was_lost_before_it_ends_at_once(tmp_path: Path) -> None:
    async with a_server(tmp_path / "s", lambda number, said: b"+" + said + b"\r\n") as (url, _):
        line = ScriptLine(url, 60.0)
        connection = await line._connected()
        connection.close()  # as when the server dies between its accept and the caller's turn
        with pytest.raises(ConnectionResetError):
            async with asyncio.timeout(5):
                await connection.ask(pack(("late",)))
        assert line.waiting == 0
        async with asyncio.timeout(5):
            await line.close()
