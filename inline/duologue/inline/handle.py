"""DuplexSessionHandle: one session of a `DuplexOmni`. Typed commands in, typed events out.

Rule 1. One reader: `events` may be entered once at a time. What it has not read waits in the session, bounded by the
        session's output limits, exactly as for a client that does not read its socket.
Rule 2. A handle holds no state of the session: only where its reader is, and what a resume needs.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from msgspec import UNSET

from duologue.client.errors import DuplexConnectionError, DuplexSessionClosedError, protocol_error
from duologue.client.transport import TransportClosed
from duologue.inline.commands import HandleCommands
from duologue.inline.local_socket import LocalSocket
from duologue.protocol.duplex import (
    DuplexCommand,
    DuplexEvent,
    ErrorEvent,
    SessionClosed,
    SessionCreated,
    SessionEventAck,
    SessionExpired,
    SessionReplaced,
    SessionResumed,
    SessionResyncRequired,
    SessionUpdated,
    UnknownEvent,
    event_from_realtime,
)

HandleEvent = DuplexEvent | UnknownEvent


class DuplexSessionHandle(HandleCommands):
    """Made by `DuplexOmni.open_session` and `resume_session`."""

    def __init__(self) -> None:
        self.session_id = ""
        self.session: dict[str, Any] = {}
        """The session object, as last told."""
        self.resume_token = ""
        """What another connection could take the session over with: a secret."""
        self.generation = 0
        """Of the attachment: it grows with each resume."""
        self.last_seq = 0
        """The number of the newest event that was read."""
        self.end_reason = ""
        """Why the session is over; empty while it is not."""
        self._socket: LocalSocket | None = None
        self._first: deque[HandleEvent] = deque()
        self._reading = False
        self._ids = itertools.count(1)

    @property
    def attached(self) -> bool:
        """Commands are taken and events come. False: detached, replaced, or over."""
        return self._socket is not None and self._socket.is_open

    @property
    def capabilities(self) -> dict[str, Any]:
        """What the session's model can do."""
        found = self.session.get("capabilities")
        return found if isinstance(found, dict) else {}

    # -- for whoever holds it -----------------------------------------------------------------------------

    async def submit(self, command: DuplexCommand) -> str:
        """Give one command to the session; an `event_id` is given to it if it has none. Waits while the session takes
        no more input. Raises DuplexSessionClosedError when it is over or detached."""
        event_id = command.event_id
        if event_id is None:
            event_id = f"evt_{next(self._ids):08x}"
            command = msgspec.structs.replace(command, event_id=event_id)
        if self._socket is None:
            raise DuplexSessionClosedError("detached")
        try:
            await self._socket.submit(command)
        except TransportClosed as closed:
            raise DuplexSessionClosedError(self.end_reason or closed.reason or "detached") from None
        return event_id

    def events(self) -> AsyncIterator[HandleEvent]:
        """Every event from where the reader is, beginning with `session.created` (or `session.resumed`). Ends when the
        session ends, or when this connection to it does (detached, replaced). May be left and entered again.

        Raises RuntimeError while somebody else waits for an event."""
        return _Events(self, self._socket)

    async def next_event(self, socket: LocalSocket) -> HandleEvent:
        """For `events`. Raises StopAsyncIteration."""
        if self._reading:
            raise RuntimeError("the events of a session are read by one reader at a time")
        if self._first and socket is self._socket:
            return self._first.popleft()
        self._reading = True
        try:
            while True:
                event = event_from_realtime(await socket.receive())
                if self._note(socket, event):
                    return event
        except TransportClosed:
            raise StopAsyncIteration from None
        finally:
            self._reading = False

    def _note(self, socket: LocalSocket, event: HandleEvent) -> bool:
        """False: it was read before, on an earlier connection."""
        if event.server_event_seq is not UNSET:
            if event.server_event_seq <= self.last_seq:
                return False
            self.last_seq = event.server_event_seq
            socket.acknowledge(SessionEventAck(server_event_seq=self.last_seq))  # or the next one does
        match event:
            case SessionUpdated():
                self.session = event.session
            case SessionClosed() | SessionExpired():
                self.end_reason = event.reason
            case SessionReplaced():
                self.end_reason = "session_replaced"
        return True

    # -- for DuplexOmni -----------------------------------------------------------------------------------

    async def begin(self, socket: LocalSocket, first_frame: str) -> None:
        """Open or resume the session on this connection. Raises DuplexProtocolError, DuplexConnectionError; the
        handle is then as it was."""
        try:
            await socket.send(first_frame)
            event = event_from_realtime(await socket.receive())
        except TransportClosed as closed:
            raise DuplexConnectionError(f"the system has closed the connection ({closed})") from None
        except BaseException:
            socket.abort()
            raise
        match event:
            case SessionCreated() | SessionResumed():
                self._attached_by(socket, event)
            case ErrorEvent():
                raise protocol_error(event.error)
            case SessionResyncRequired():
                self.last_seq = event.head_seq
                raise DuplexConnectionError("events were lost: resume again", code="session_resync_required")
            case _:
                socket.abort()
                raise DuplexConnectionError(f"the first event was {event.type}")

    def _attached_by(self, socket: LocalSocket, event: SessionCreated | SessionResumed) -> None:
        self.detach()
        self._socket = socket
        self.session = event.session
        self.session_id = str(event.session.get("id") or self.session_id)
        self.end_reason = ""
        if event.resume_token is not UNSET:
            self.resume_token = event.resume_token
        if event.attachment_generation is not UNSET:
            self.generation = event.attachment_generation
        self._first = deque((event,))

    def detach(self) -> None:
        """Let go of the connection. What was not read comes again after a resume."""
        if self._socket is not None:
            self._socket.abort()
            self._socket = None

    async def gone(self) -> None:
        """Until its connection has ended. Whether somebody reads or not, the end gets through."""
        if self._socket is not None:
            self._socket.let_pass()
            await self._socket.gone()


class _Events(AsyncIterator[HandleEvent]):
    """An object and not a generator: one that is left in the middle holds nothing."""

    def __init__(self, handle: DuplexSessionHandle, socket: LocalSocket | None) -> None:
        self._handle = handle
        self._socket = socket

    async def __anext__(self) -> HandleEvent:
        if self._socket is None:
            raise StopAsyncIteration
        return await self._handle.next_event(self._socket)
