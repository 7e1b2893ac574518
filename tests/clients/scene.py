"""What the programs of all Python clients share: a microphone, a log to wait on, and how a scene is told.

Rule 1. Standard library only: it runs in every client's environment.
Rule 2. A program plays one scene against one server and says what became of it in one line of JSON; lines before it
        ask the runner for what only the world can do (`{"do": "cut"}`).
Rule 3. Deadlines are generous and end a scene as failed; nothing is judged by how long it took.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

RATE_HZ = 24_000
PIECE_MS = 50
PIECE_BYTES = RATE_HZ * 2 * PIECE_MS // 1000


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scene", required=True)
    parser.add_argument("--url", required=True, help="ws://host:port")
    parser.add_argument("--model", required=True)
    parser.add_argument("--sounds", type=Path, required=True)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds that one step may take")
    return parser.parse_args()


def ask(what: str) -> None:
    """Have the runner do something to the world."""
    print(json.dumps({"do": what}), flush=True)


def play(scenes: dict[str, Callable[[argparse.Namespace], Awaitable[str]]]) -> None:
    """Play the scene that the command line names, print its outcome, and exit."""
    options = arguments()
    try:
        note = asyncio.run(_within(scenes[options.scene](options), options.patience * 4))
    except BaseException as error:
        traceback.print_exc()
        print(json.dumps({"passed": False, "note": f"{type(error).__name__}: {error}"[:600]}), flush=True)
        sys.exit(1)
    print(json.dumps({"passed": True, "note": note}), flush=True)


async def _within(scene: Awaitable[str], seconds: float) -> str:
    async with asyncio.timeout(seconds):
        return await scene


class Microphone:
    """Sends sound at the pace of speech, silence between the sentences, as a microphone does."""

    def __init__(self, options: argparse.Namespace, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._sounds, self._send = options.sounds, send
        self._due = bytearray()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Microphone:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        try:
            await self._task
        except asyncio.CancelledError:
            return
        except Exception as error:  # the scene has its own word for a lost socket
            print(f"the microphone stopped: {error!r}", file=sys.stderr)

    def say(self, name: str) -> None:
        self._due += (self._sounds / f"{name}.pcm").read_bytes()
        self._quiet.clear()

    async def said(self) -> None:
        """When all of it has been sent."""
        await self._quiet.wait()

    async def _run(self) -> None:
        start, pieces = time.monotonic(), 0
        while True:
            piece = bytes(self._due[:PIECE_BYTES])
            del self._due[:PIECE_BYTES]
            if not self._due:
                self._quiet.set()
            await self._send(piece.ljust(PIECE_BYTES, b"\0"))
            pieces += 1
            await asyncio.sleep(max(0.0, start + pieces * PIECE_MS / 1000 - time.monotonic()))


class Log:
    """What a client handed to its application, in order, for a scene to wait on."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self.seen: list[tuple[str, Any]] = []
        self._next = 0
        self._came = asyncio.Event()
        self._over: str | None = None

    def add(self, kind: str, event: Any) -> None:
        self.seen.append((kind, event))
        self._came.set()

    def end(self, why: str) -> None:
        self._over = why
        self._came.set()

    async def next(self, *kinds: str, where: Callable[[Any], bool] = lambda _: True, also: tuple[str, ...] = ()) -> Any:
        """The next event of one of these kinds. An `error` on the way is a failure, unless `also` names it."""
        try:
            async with asyncio.timeout(self._patience):
                while True:
                    while self._next < len(self.seen):
                        kind, event = self.seen[self._next]
                        self._next += 1
                        if kind in kinds and where(event):
                            return event
                        assert kind != "error" or kind in also, f"an error while waiting for {kinds}: {event}"
                    assert self._over is None, f"over ({self._over}) while waiting for {kinds}"
                    await self._wait()
        except TimeoutError:
            last = [kind for kind, _ in self.seen[-12:]]
            raise AssertionError(f"{kinds} did not come in {self._patience:g} s; the last were {last}") from None

    async def ended(self) -> str:
        """Why it is over."""
        async with asyncio.timeout(self._patience):
            while self._over is None:
                await self._wait()
        return self._over

    async def _wait(self) -> None:
        """Until something more has come. One scene waits at a time."""
        self._came.clear()
        await self._came.wait()

    def mark(self) -> int:
        """Where the scene is in the log."""
        return self._next

    def since(self, mark: int) -> list[tuple[str, Any]]:
        """What the scene has gone through since."""
        return self.seen[mark : self._next]
