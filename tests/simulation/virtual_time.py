"""An asyncio loop whose time passes only when nobody has anything to do, and the machine it believes to run on.

Rule 1. One thread, no sockets, no threads: the order of everything follows from the program alone. Timers of
        the same instant fire in the order in which they were set.
Rule 2. What a process takes from its operating system (random bytes, the time of day, sleep) comes from the
        world while it runs, so one seed gives one history.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import Context, copy_context
from heapq import heappop, heappush
from typing import Any, TypeVarTuple, Unpack

_Ts = TypeVarTuple("_Ts")

EPOCH_S = 1_800_000_000.0
"""The time of day at which a world begins."""


MAX_TURNS = 20_000
"""Turns of the loop at one instant: more is a loop that feeds itself."""


class Stuck(Exception):
    """Nothing will ever happen again and somebody still waits, or time does not pass any more."""


class _Soon(asyncio.Handle):
    """A handle without what debugging needs: half of a world's time would go there."""

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., object], args: Any, loop: asyncio.AbstractEventLoop, context: Context | None
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]


class _Timer(asyncio.TimerHandle):
    """The same for later."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: Any,
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._when = when
        self._scheduled = True

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module. `time()` starts at 0."""

    _ready: deque[asyncio.Handle]

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._turns = 0
        self._orders = 0
        self.stands_still: Callable[[asyncio.Handle], bool] | None = None
        """Takes a handle whose process is stopped; it is to be given back with `go_on`."""
        self._timers: list[tuple[float, int, _Timer]] = []
        """A heap: first in, first out among equals."""

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Soon(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        self._orders += 1
        heappush(self._timers, (when, self._orders, timer))
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _run_once(self) -> None:
        """Let time pass if nobody has anything to do; then do what is due, but nothing that this brings up."""
        ready, timers = self._ready, self._timers
        while timers and timers[0][2]._cancelled:
            heappop(timers)
        if ready or self._stopping:  # type: ignore[attr-defined]
            self._turns += 1
            if self._turns > MAX_TURNS:
                raise Stuck("time does not pass any more")
        elif not timers:
            raise Stuck("nothing will ever happen again")
        elif timers[0][0] > self._now:
            self._now = timers[0][0]
            self._turns = 0
        now = self._now
        while timers and timers[0][0] <= now:
            ready.append(heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled or (self.stands_still is not None and self.stands_still(handle)):
                continue
            try:
                handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler({"message": f"a callback failed: {handle}", "exception": error})

    def go_on(self, handles: Iterable[asyncio.Handle]) -> None:
        """What a stopped process was about to do, it does now."""
        self._ready.extend(handles)

    def _process_events(self, event_list: list[Any]) -> None:
        """Nothing is ever ready but timers."""

    def _write_to_self(self) -> None:
        """Nobody else could have to be woken."""


class Machine:
    """What the operating system gives. `slept` adds up what was slept: whoever runs a step in virtual time
    takes it from here."""

    def __init__(self, seed: int, loop: asyncio.AbstractEventLoop) -> None:
        self._random = random.Random(f"machine {seed}")
        self._loop = loop
        self.slept = 0.0

    def urandom(self, size: int) -> bytes:
        return self._random.randbytes(size)

    def time(self) -> float:
        return EPOCH_S + self._loop.time()

    def sleep(self, seconds: float) -> None:
        self.slept += seconds

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Everything in this thread runs on this machine."""
        names: list[tuple[Any, str, Any]] = [
            (os, "urandom", self.urandom),
            (random, "_urandom", self.urandom),  # `secrets` draws through it
            (time, "time", self.time),
            (time, "sleep", self.sleep),
        ]
        before = [getattr(module, name) for module, name, _ in names]
        for module, name, mine in names:
            setattr(module, name, mine)
        try:
            yield
        finally:
            for (module, name, _), real in zip(names, before, strict=True):
                setattr(module, name, real)
