"""A bounded queue between the reader and whoever listens: the newest events win, the reader never waits."""

from __future__ import annotations

import asyncio
from collections import deque

from duologue.client.events import Event

#: Events that wait for one listener.
CAPACITY = 1024


class Inbox:
    def __init__(self, capacity: int = CAPACITY) -> None:
        self.dropped = 0
        """Events that the listener did not take in time."""
        self._events: deque[Event] = deque()
        self._capacity = capacity
        self._news = asyncio.Event()
        self._end: BaseException | None = None

    def put(self, event: Event) -> bool:
        """False: the oldest event had to go for it."""
        full = len(self._events) >= self._capacity
        if full:
            self._events.popleft()
            self.dropped += 1
        self._events.append(event)
        self._news.set()
        return not full

    def close(self, error: BaseException | None) -> None:
        """No more will come: listeners get what is left, then the end or this error."""
        self._end = error or StopAsyncIteration()
        self._news.set()

    async def get(self) -> Event:
        """The next event. Raises StopAsyncIteration at the expected end, else what ended the session."""
        while not self._events:
            if self._end is not None:
                raise self._end
            self._news.clear()
            await self._news.wait()
        return self._events.popleft()
