"""Who reads a client's events: any number of listeners, whoever takes the answers, and observers.

Rule 1. The reader never waits for any of them. Each queue is bounded; the oldest entries go, and are counted.
Rule 2. All of them end with the session: in silence if that was expected, else with its error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from duologue.client.errors import DuplexClientError, DuplexSessionClosedError
from duologue.client.events import ConnectionResumed, Event
from duologue.client.inbox import Inbox
from duologue.client.observer import Observer
from duologue.client.responses import ResponseBook, ResponseHandle

#: Answers that wait for `responses()`; beyond it the oldest are dropped.
MAX_RESPONSES: Final = 1024


class Listeners:
    """See the module."""

    def __init__(self) -> None:
        self.dropped_responses = 0
        """Answers that nobody took in time."""
        self.dropped_events = 0
        """Events that listeners did not take in time."""
        self.observers: list[Observer] = []
        self._book = ResponseBook()
        self._inboxes: list[Inbox] = []
        self._handles: asyncio.Queue[ResponseHandle] = asyncio.Queue(MAX_RESPONSES)
        self._ended = asyncio.Event()
        self._end: DuplexClientError | None = None

    def publish(self, event: Event) -> None:
        """Give an event to everybody."""
        for observer in self.observers:
            observer.received(event)
        if isinstance(event, ConnectionResumed) and event.gap:
            self._book.fail_all()  # how they ended is among what was missed
        elif (handle := self._book.feed(event)) is not None:
            if self._handles.full():
                self._handles.get_nowait()
                self.dropped_responses += 1
            self._handles.put_nowait(handle)
        for inbox in self._inboxes:
            if not inbox.put(event):
                self.dropped_events += 1

    def finish(self, error: DuplexClientError) -> None:
        """The session is over."""
        self._end = error
        self._ended.set()
        self._book.fail_all()
        for inbox in self._inboxes:
            inbox.close(self._visible_end())

    def _visible_end(self) -> DuplexClientError | None:
        expected = isinstance(self._end, DuplexSessionClosedError) and self._end.expected
        return None if expected else self._end

    def _listen(self) -> Inbox:
        inbox = Inbox()
        if self._ended.is_set():
            inbox.close(self._visible_end())
        self._inboxes.append(inbox)
        return inbox

    # -- for the caller ---------------------------------------------------------------------------------

    async def events(self) -> AsyncIterator[Event]:
        """Every event from now on."""
        inbox = self._listen()
        try:
            while True:
                try:
                    event = await inbox.get()
                except StopAsyncIteration:
                    return
                yield event
        finally:
            self._inboxes.remove(inbox)

    async def wait_for(self, types: tuple[str, ...], timeout_s: float | None) -> Event:
        """The next event of one of these types. Raises TimeoutError, or what ended the session."""
        inbox = self._listen()
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        event = await inbox.get()
                    except StopAsyncIteration:
                        raise DuplexSessionClosedError("client_close", expected=True) from None
                    if event.type in types:
                        return event
        finally:
            self._inboxes.remove(inbox)

    async def responses(self) -> AsyncIterator[ResponseHandle]:
        """Each answer as it begins. Ends with the session. May be entered again."""
        while True:
            getting = asyncio.ensure_future(self._handles.get())
            ended = asyncio.ensure_future(self._ended.wait())
            try:
                await asyncio.wait((getting, ended), return_when=asyncio.FIRST_COMPLETED)
                if not getting.done():
                    return
                handle = getting.result()
            finally:
                getting.cancel()
                ended.cancel()
            yield handle
