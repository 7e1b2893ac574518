"""The line to one session: frames out, events in, and a new connection whenever one is lost.

Rule 1. What is said while there is no connection waits for the next one. A command that was lost with its
        connection is sent again by the resume, from the cursor.
Rule 2. One task reads, drops what was seen before, and never waits to send: a server that waits for its reader takes
        nothing. Another task acknowledges, the newest number only: it stands for all before it.
Rule 3. The line ends once, for one reason, and everybody who waits for anything here is told that reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET

from duologue.client.cursor import ResumeCursor
from duologue.client.errors import (
    DuplexClientError,
    DuplexConnectionError,
    DuplexReconnectError,
    DuplexSessionClosedError,
    protocol_error,
)
from duologue.client.events import ConnectionResumed, Event
from duologue.client.reconnect import Attempts, ReconnectPolicy
from duologue.client.transport import Transport, TransportClosed
from duologue.protocol.duplex import (
    ErrorEvent,
    RealtimeEvent,
    SessionClosed,
    SessionCreated,
    SessionExpired,
    SessionReplaced,
    SessionResumed,
    SessionResyncRequired,
    UnknownEvent,
    event_from_realtime,
)

Dial = Callable[[], Awaitable[Transport]]
TraceFrame = Callable[[str, str], None]
"""Called with ">" or "<" and every frame as it stands on the wire (see `trace`)."""

_GAP: Final = "session_resync_required"
_NO_EVENT: Final = 1007
"""The close code of a frame whose payload is not what it should be."""


class Lifeline:
    """See the module. `take` is told of every new event."""

    def __init__(
        self,
        dial: Dial,
        take: Callable[[Event], None],
        finished: Callable[[DuplexClientError], None],
        *,
        policy: ReconnectPolicy | None,
        handshake_s: float,
        trace: TraceFrame | None,
    ) -> None:
        self.cursor = ResumeCursor()
        self.resumes = 0
        """How often a connection was lost and found again."""
        self.closing = False
        """This side has asked for the end: a lost connection is not resumed any more."""
        self.ended = asyncio.Event()
        self.end: DuplexClientError | None = None
        self._dial, self._take, self._finished = dial, take, finished
        self._policy, self._handshake_s, self._trace = policy, handshake_s, trace
        self._transport: Transport | None = None
        self._online = asyncio.Event()
        self._created: asyncio.Future[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._unacknowledged = asyncio.Event()
        self._gap = False

    @property
    def begun(self) -> bool:
        """There was a connection."""
        return self._transport is not None

    # -- life ---------------------------------------------------------------------------------------------

    async def open(self, command: dict[str, Any]) -> None:
        """Connect, send `command`, and wait for `session.created`. Raises DuplexClientError."""
        self._created = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._handshake_s):
                self._transport = await self._dial()
                self._online.set()
                self._tasks = [
                    asyncio.create_task(self._keep_reading()),
                    asyncio.create_task(self._keep_acknowledging()),
                ]
                await self.send(command)
                await self._created
        except TimeoutError:
            await self.abandon()
            raise DuplexConnectionError(f"no session.created within {self._handshake_s:g} s") from None
        except BaseException:
            await self.abandon()
            raise

    async def abandon(self) -> None:
        """Let go of everything. What has not ended by itself has been closed by this client."""
        if self._created is not None:
            self._created.cancel()  # if nobody waits for it any more, nobody is to be told how it ended
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._transport is not None:
            await self._transport.close()
        self._finish(DuplexSessionClosedError("client_close", expected=True))

    def cut(self) -> None:
        """Lose the connection, as a network does."""
        if self._transport is not None:
            self._transport.abort()

    def _finish(self, error: DuplexClientError) -> None:
        if self.ended.is_set():
            return
        self.end = error
        self.ended.set()
        self._online.set()
        self._unacknowledged.set()
        if self._created is not None and not self._created.done():
            self._created.set_exception(error)
        self._finished(error)

    # -- out ----------------------------------------------------------------------------------------------

    async def send(self, command: dict[str, Any]) -> None:
        """Send a command that has its `event_id`. Raises what ended the session."""
        frame = json.dumps(command, separators=(",", ":"))
        await self._online.wait()
        if self.ended.is_set():
            raise self.end or DuplexSessionClosedError("client_close", expected=True)
        self.cursor.sent(command["event_id"], command["type"], frame)
        await self._write(frame)

    async def _write(self, frame: str) -> None:
        assert self._transport is not None
        if self._trace is not None:
            self._trace(">", frame)
        with contextlib.suppress(TransportClosed):  # the resume sends it again
            await self._transport.send(frame)

    # -- in -----------------------------------------------------------------------------------------------

    async def _keep_reading(self) -> None:
        while not self.ended.is_set():
            assert self._transport is not None
            closed = await self._read(self._transport)
            if self.ended.is_set():
                return
            self._online.clear()
            lost = DuplexConnectionError(f"the connection was closed ({closed})", code="connection_lost")
            if self.closing or self._policy is None or not self.cursor.resumable:
                self._finish(lost)
            else:
                await self._come_back(self._policy, lost)

    async def _read(self, transport: Transport) -> TransportClosed:
        while True:
            try:
                event = await self._next(transport)
            except TransportClosed as closed:
                return closed
            seq = _seq(event)
            if not self.cursor.is_new(seq):
                continue
            self._note(event)
            if seq is not None:
                self._unacknowledged.set()

    async def _keep_acknowledging(self) -> None:
        while True:
            await self._unacknowledged.wait()
            await self._online.wait()
            if self.ended.is_set():
                return
            self._unacknowledged.clear()
            await self._write(f'{{"type":"session.event_ack","server_event_seq":{self.cursor.last_seq}}}')

    async def _next(self, transport: Transport) -> RealtimeEvent | UnknownEvent:
        """The next event. A frame that is none ends this connection: what it was to say, a resume says again."""
        frame = await transport.receive()
        if self._trace is not None:
            self._trace("<", frame if isinstance(frame, str) else frame.decode(errors="replace"))
        try:
            return event_from_realtime(frame)
        except msgspec.DecodeError as error:
            transport.abort()
            raise TransportClosed(_NO_EVENT, f"a frame that is no event: {error}") from None

    def _note(self, event: RealtimeEvent | UnknownEvent) -> None:
        """What an event means for the line, and then what it means for everybody else."""
        opened = self._created
        match event:
            case SessionCreated():
                self._know(event.session, "" if event.resume_token is UNSET else event.resume_token)
            case SessionResumed():
                self._know(event.session, event.resume_token)
            case ErrorEvent() if opened is not None and not opened.done():
                opened.set_exception(protocol_error(event.error))
            case SessionResyncRequired():
                self.cursor.skip_to(event.head_seq)
                self._gap = True
        self._take(event)
        match event:
            case SessionClosed():
                self._finish(DuplexSessionClosedError(event.reason, expected=True))
            case SessionExpired():
                self._finish(DuplexSessionClosedError(event.reason))
            case SessionReplaced():
                self._finish(DuplexSessionClosedError("session_replaced"))

    def _know(self, session: dict[str, Any], token: str) -> None:
        self.cursor.learn(str(session.get("id") or ""), token)
        if self._created is not None and not self._created.done():
            self._created.set_result(None)

    # -- coming back --------------------------------------------------------------------------------------

    async def _come_back(self, policy: ReconnectPolicy, lost: DuplexClientError) -> None:
        now = asyncio.get_running_loop().time
        attempts, last = Attempts(policy, now()), lost
        while (pause_s := attempts.next_pause_s(now(), last)) is not None:
            await asyncio.sleep(pause_s)
            try:
                transport, resumed = await self._resume()
            except DuplexClientError as error:
                last = error
                continue
            await self._continue_on(transport, resumed, attempts.made)
            return
        self._finish(last if policy.is_final(last) else DuplexReconnectError(attempts.made, last))

    async def _resume(self) -> tuple[Transport, SessionResumed]:
        transport = await self._dial()
        try:
            async with asyncio.timeout(self._handshake_s):
                claim = json.dumps(self.cursor.claim(), separators=(",", ":"))
                if self._trace is not None:
                    self._trace(">", claim)
                await transport.send(claim)
                event = await self._next(transport)
        except (TransportClosed, TimeoutError) as error:
            transport.abort()
            raise DuplexConnectionError(f"the resume was not answered: {error}") from None
        except BaseException:
            transport.abort()
            raise
        if isinstance(event, SessionResumed):
            return transport, event
        await transport.close()
        if isinstance(event, ErrorEvent):
            raise protocol_error(event.error)
        if isinstance(event, SessionResyncRequired):
            self._note(event)
            raise DuplexConnectionError("the server no longer has all that was missed", code=_GAP)
        raise DuplexConnectionError(f"the resume was answered by {event.type}")

    async def _continue_on(self, transport: Transport, resumed: SessionResumed, attempt: int) -> None:
        self._transport = transport
        self._note(resumed)
        last = None if resumed.last_client_event_id is UNSET else resumed.last_client_event_id
        for frame in self.cursor.to_resend(last):
            await self._write(frame)
        self.resumes += 1
        gap, self._gap = self._gap, False
        self._online.set()
        self._take(ConnectionResumed(attempt, gap=gap))


def _seq(event: RealtimeEvent | UnknownEvent) -> int | None:
    """The number of an event. That of `session.created` is the server's head, not a number."""
    if event.server_event_seq is UNSET or isinstance(event, SessionCreated):
        return None
    return event.server_event_seq
