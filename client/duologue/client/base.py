"""What every client of a session is, wherever the session lives: `DuplexClient` dials a server, the in-process
`InlineDuplexClient` (duologue.inline) a system in the same process. Only `_dial` differs.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from abc import abstractmethod
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Final, Self

from duologue.client.commands import Command, SessionCommands
from duologue.client.config import SessionConfig
from duologue.client.errors import DuplexClientError
from duologue.client.events import Event
from duologue.client.lifeline import Lifeline, TraceFrame
from duologue.client.listeners import Listeners
from duologue.client.observer import Observer
from duologue.client.reconnect import ReconnectPolicy
from duologue.client.responses import ResponseHandle
from duologue.client.transport import Transport
from duologue.protocol.duplex import SessionCreated, SessionResumed, SessionUpdated

CLOSE_S: Final = 20.0
DEFAULT_RECONNECT: Final = ReconnectPolicy()
HEARTBEAT_S: Final = 30.0
HANDSHAKE_S: Final = 30.0


class DuplexClientBase(SessionCommands):
    """One session. Use it as a context manager, or call `connect` and `close`."""

    def __init__(
        self,
        *,
        model: str | None,
        config: SessionConfig | None,
        reconnect: ReconnectPolicy | None,
        heartbeat_interval_s: float | None,
        handshake_timeout_s: float,
        trace: TraceFrame | None,
    ) -> None:
        self.model = model
        self.config = config or SessionConfig()
        self.session_info: dict[str, Any] = {}
        """The session object as the server last told it."""
        self._heartbeat_s = heartbeat_interval_s
        self._handshake_s = handshake_timeout_s
        self._listeners = Listeners()
        self._line = Lifeline(
            self._dial,
            self._take,
            self._listeners.finish,
            policy=reconnect,
            handshake_s=handshake_timeout_s,
            trace=trace,
        )
        self._ids = itertools.count(1)
        self._beating: asyncio.Task[None] | None = None

    @abstractmethod
    async def _dial(self) -> Transport:
        """A new connection. Raises DuplexConnectionError."""

    # -- life -------------------------------------------------------------------------------------------

    @property
    def session_id(self) -> str:
        return self._line.cursor.session_id

    @property
    def resume_token(self) -> str:
        """What another client could take the session over with: a secret."""
        return self._line.cursor.token

    @property
    def last_seq(self) -> int:
        """The number of the newest event."""
        return self._line.cursor.last_seq

    @property
    def resumes(self) -> int:
        """How often the connection was lost and found again."""
        return self._line.resumes

    @property
    def dropped_events(self) -> int:
        """Events that listeners did not take in time: each keeps at most `inbox.CAPACITY`, the newest."""
        return self._listeners.dropped_events

    @property
    def dropped_responses(self) -> int:
        """Answers that nobody took from `responses()` in time: the newest `listeners.MAX_RESPONSES` are kept."""
        return self._listeners.dropped_responses

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def connect(self) -> None:
        """Open the session: `session.update`, then wait for `session.created`. Raises DuplexClientError."""
        await self._line.open(self._named({"type": "session.update", "session": self.config.to_realtime(self.model)}))
        if self._heartbeat_s:
            self._beating = asyncio.create_task(self._keep_beating(self._heartbeat_s))

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        """End the session and wait for `session.closed`. Does nothing if it is over."""
        line = self._line
        if line.begun and not line.ended.is_set():
            line.closing = True
            with contextlib.suppress(TimeoutError, DuplexClientError):
                async with asyncio.timeout(timeout_s):
                    await self._say("session.close", reason="client_close")
                    await line.ended.wait()
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        await line.abandon()

    def drop_connection(self) -> None:
        """Cut the connection, as a tunnel does. For tests and demonstrations of resuming."""
        self._line.cut()

    async def _keep_beating(self, interval_s: float) -> None:
        with contextlib.suppress(DuplexClientError):
            while True:
                await asyncio.sleep(interval_s)
                await self.heartbeat()

    # -- sending ----------------------------------------------------------------------------------------

    async def send(self, command: Command) -> str:
        """Send one command; an `event_id` is given to it if it has none. Waits while a resume is under way.

        Raises what ended the session, if it is over.
        """
        named = self._named(command)
        for observer in self._listeners.observers:
            observer.sent(named)
        await self._line.send(named)
        return str(named["event_id"])

    def _named(self, command: Command) -> Command:
        return {**command, "event_id": str(command.get("event_id") or f"evt_{next(self._ids):08x}")}

    # -- receiving --------------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        if isinstance(event, SessionCreated | SessionResumed | SessionUpdated):
            self.session_info = event.session
        self._listeners.publish(event)

    def events(self) -> AsyncIterator[Event]:
        """Every event from now on. A listener that does not keep up loses the oldest (see `dropped_events`)."""
        return self._listeners.events()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self.events()

    async def wait_for(self, *types: str, timeout_s: float | None = 30.0) -> Event:
        """The next event of one of these wire types. Raises TimeoutError, or what ended the session."""
        return await self._listeners.wait_for(types, timeout_s)

    def responses(self) -> AsyncIterator[ResponseHandle]:
        """Each answer as it begins. Ends with the session. May be entered again."""
        return self._listeners.responses()

    def observe(self, observer: Observer) -> None:
        """Tell `observer` of everything from now on."""
        self._listeners.observers.append(observer)

    def forget(self, observer: Observer) -> None:
        """Tell it nothing more. Does nothing if it was not told anything."""
        if observer in self._listeners.observers:
            self._listeners.observers.remove(observer)
