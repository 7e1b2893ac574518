"""Work in threads beside an engine's step loop: a bounded queue in, finished work out.

Rule 1. The smallest priority goes first, equal ones in order. A full queue refuses, and says so.
Rule 2. Work never touches an engine's state: it returns a value, which the engine takes in its own thread.
Rule 3. An exception of the work is its result.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT")
ResultT = TypeVar("ResultT")


class Workshop(Generic[KeyT, ResultT]):
    """`done` is called from a worker thread after each piece of work, to have `take` called soon."""

    def __init__(self, name: str, *, threads: int, capacity: int, done: Callable[[], None]) -> None:
        self.capacity = capacity
        self._done = done
        self._count = 0
        self._waiting: list[tuple[int, int, KeyT, Callable[[], ResultT]]] = []
        self._finished: deque[tuple[KeyT, ResultT | Exception]] = deque()
        self._changed = Condition()
        self._open = True
        self._busy = 0
        self._threads = [Thread(target=self._run, name=f"{name}-{i}", daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    @property
    def working(self) -> bool:
        """Something waits or is being done."""
        with self._changed:
            return bool(self._waiting or self._busy)

    @property
    def busy(self) -> bool:
        """Something waits, is being done, or is not taken yet."""
        with self._changed:
            return bool(self._waiting or self._busy or self._finished)

    def submit(self, priority: int, key: KeyT, work: Callable[[], ResultT]) -> bool:
        """False: the queue is full, and the work will not be done."""
        with self._changed:
            if len(self._waiting) >= self.capacity or not self._open:
                return False
            self._count += 1
            heapq.heappush(self._waiting, (priority, self._count, key, work))
            self._changed.notify()
        return True

    def withdraw(self, unwanted: Callable[[KeyT], bool]) -> list[KeyT]:
        """Forget what has not begun. What is being done finishes, and its result comes."""
        with self._changed:
            gone = [entry[2] for entry in self._waiting if unwanted(entry[2])]
            self._waiting = [entry for entry in self._waiting if not unwanted(entry[2])]
            heapq.heapify(self._waiting)
        return gone

    def take(self) -> list[tuple[KeyT, ResultT | Exception]]:
        """What was finished since the last call, in the order in which it was finished."""
        taken = []
        while self._finished:
            taken.append(self._finished.popleft())
        return taken

    def close(self) -> None:
        """Forget what waits and end the threads."""
        with self._changed:
            self._open = False
            self._waiting.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=10)

    def _run(self) -> None:
        while (entry := self._next()) is not None:
            _, _, key, work = entry
            result: ResultT | Exception
            try:
                result = work()
            except Exception as error:
                result = error
            with self._changed:
                self._finished.append((key, result))
                self._busy -= 1
            self._done()

    def _next(self) -> tuple[int, int, KeyT, Callable[[], ResultT]] | None:
        with self._changed:
            while self._open and not self._waiting:
                self._changed.wait()
            if not self._open:
                return None
            self._busy += 1
            return heapq.heappop(self._waiting)
