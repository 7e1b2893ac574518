"""The socket of one upstream session: frames up and down between the engine's thread and an event loop in another.

Rule 1. The engine's thread sends and takes and never waits; the loop's thread reads and writes and never decides.
Rule 2. Both ways are bounded. Up: `send` says that there is no room. Down: that server is not read while what came
        waits to be taken, and TCP tells it so.
Rule 3. One socket at a time; `dial` makes the next. What was queued for an old one is not sent on a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from threading import Lock
from typing import Final, NamedTuple

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from duologue.models.bridge import refusals

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
PING_S: Final = 20.0
CLOSE_S: Final = 3.0


class Frame(NamedTuple):
    text: str | bytes


class Connected(NamedTuple):
    """A socket is open."""


class Quiet(NamedTuple):
    """Nothing came for as long as nothing may."""


class Idle(NamedTuple):
    """Nothing was sent for a while."""


class Closed(NamedTuple):
    """The socket is gone, or there was none. `refused`: that server said no to the upgrade."""

    code: str
    message: str
    refused: bool = False


News = Frame | Connected | Quiet | Idle | Closed


class Address(NamedTuple):
    """Where to, and how long for what."""

    url: str
    headers: Mapping[str, str]
    tls: ssl.SSLContext | None
    connect_s: float
    open_s: float
    idle_s: float
    heartbeat_s: float
    max_up_bytes: int
    max_down_bytes: int


class Connection:
    """`on_news` is called on the loop's thread whenever there is something to `take`. `on_full`: a bound was met, of
    the direction `up` or `down`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: Address,
        on_news: Callable[[], None],
        on_full: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._address = address
        self._on_news = on_news
        self._on_full = on_full
        self._lock = Lock()
        self._news: deque[News] = deque()
        self._news_bytes = 0
        self._up: deque[bytes] = deque()
        self._up_bytes = 0
        self._to_send = asyncio.Event()
        self._room = asyncio.Event()
        self._running: Future[None] | None = None
        self._ws: ClientConnection | None = None
        self._limit: asyncio.Timeout | None = None
        self._settled = False

    # -- the engine's thread ---------------------------------------------------------------------------

    def dial(self, delay_s: float = 0.0) -> None:
        """Connect, after a while."""
        self._settled = False
        with self._lock:
            self._up.clear()
            self._up_bytes = 0
        self._running = asyncio.run_coroutine_threadsafe(self._run(delay_s), self._loop)

    def settled(self) -> None:
        """The session is open there: from now on it may be quiet for longer."""
        self._settled = True
        self._loop.call_soon_threadsafe(self._set_limit)

    def room(self, size: int) -> bool:
        """Whether so many bytes may wait to be sent."""
        if self._up_bytes + size <= self._address.max_up_bytes:
            return True
        self._on_full("up")
        return False

    def send(self, frames: list[bytes]) -> None:
        if not frames:
            return
        with self._lock:
            self._up += frames
            self._up_bytes += sum(map(len, frames))
        self._loop.call_soon_threadsafe(self._to_send.set)

    def take(self) -> list[News]:
        """What came since the last call."""
        with self._lock:
            news, self._news = list(self._news), deque()
            full = self._news_bytes > self._address.max_down_bytes
            self._news_bytes = 0
        if full:
            self._loop.call_soon_threadsafe(self._room.set)
        return news

    def close(self, last: list[bytes]) -> Future[None]:
        """Say the last words and close; nothing is told of it."""
        return asyncio.run_coroutine_threadsafe(self._close(last), self._loop)

    # -- the loop's thread -----------------------------------------------------------------------------

    async def _run(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        try:
            ws = await self._connect()
        except InvalidStatus as refused:
            code, message = refusals.of_handshake(refused.response.status_code)
            return self._tell(Closed(code, message, refused=code != refusals.UNAVAILABLE))
        except (OSError, InvalidHandshake, InvalidURI, TimeoutError, EOFError) as error:
            why = f"the upstream server cannot be reached ({type(error).__name__})"
            return self._tell(Closed(refusals.UNAVAILABLE, why))
        self._ws = ws
        self._tell(Connected())
        writer = asyncio.create_task(self._write(ws))
        try:
            await self._read(ws)
        except ConnectionClosed as closed:
            frame = closed.rcvd
            told = "without a word" if frame is None else f"with {frame.code} {frame.reason}".rstrip()
            self._tell(Closed(refusals.LOST, f"the upstream server closed the connection {told}"))
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            await ws.close()

    async def _connect(self) -> ClientConnection:
        address = self._address
        async with asyncio.timeout(address.connect_s):
            return await connect(
                address.url,
                additional_headers=dict(address.headers),
                ssl=address.tls,
                max_size=MAX_FRAME_BYTES,
                compression=None,
                open_timeout=None,
                ping_interval=PING_S,
                ping_timeout=PING_S,
                close_timeout=CLOSE_S,
            )

    async def _read(self, ws: ClientConnection) -> None:
        address = self._address
        while True:
            try:
                async with asyncio.timeout(None) as self._limit:
                    self._set_limit()
                    frame = await ws.recv()
            except TimeoutError:
                self._tell(Quiet())
                continue
            self._tell(Frame(frame), len(frame))
            while self._news_bytes > address.max_down_bytes:
                self._on_full("down")
                self._room.clear()
                if self._news_bytes > address.max_down_bytes:  # not taken meanwhile
                    await self._room.wait()

    def _set_limit(self) -> None:
        """How long the next frame may take, from now."""
        if self._limit is not None and not self._limit.expired():
            limit_s = self._address.idle_s if self._settled else self._address.open_s
            with contextlib.suppress(RuntimeError):  # between two frames nothing is waited for
                self._limit.reschedule(self._loop.time() + limit_s)

    async def _write(self, ws: ClientConnection) -> None:
        while True:
            try:
                async with asyncio.timeout(self._address.heartbeat_s):
                    await self._to_send.wait()
            except TimeoutError:
                self._tell(Idle())
                continue
            self._to_send.clear()
            await self._flush(ws)

    async def _flush(self, ws: ClientConnection) -> None:
        while True:
            with self._lock:
                if not self._up:
                    return
                frame = self._up.popleft()
                self._up_bytes -= len(frame)
            try:
                await ws.send(frame, text=True)
            except ConnectionClosed:
                return  # the reader tells of it

    async def _close(self, last: list[bytes]) -> None:
        running, ws = self._running, self._ws
        if running is None or running.done():
            return
        if ws is not None:
            # A peer that does not answer any more is left to the operating system.
            with contextlib.suppress(ConnectionClosed, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    for frame in last:
                        await ws.send(frame, text=True)
                    await ws.close()
        running.cancel()

    def _tell(self, news: News, size: int = 0) -> None:
        with self._lock:
            self._news.append(news)
            self._news_bytes += size
        self._on_news()
