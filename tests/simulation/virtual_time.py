"""An asyncio loop whose time passes only when nobody has anything to do, and the machine it believes to run on.

Rule 1. One thread, no sockets, no threads: the order of everything follows from the program alone. Timers of
        the same instant fire in the order in which they were set.
Rule 2. What a process takes from its operating system (random bytes, the time of day, sleep) comes from the
        world while it runs, so one seed gives one history.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import os
import random
import selectors
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import Context
from typing import Any, TypeVarTuple, Unpack

_Ts = TypeVarTuple("_Ts")

EPOCH_S = 1_800_000_000.0
"""The time of day at which a world begins."""


MAX_TURNS = 20_000
"""Turns of the loop at one instant: more is a loop that feeds itself."""


class Stuck(Exception):
    """Nothing will ever happen again and somebody still waits, or time does not pass any more."""


class _Jump(selectors.BaseSelector):
    """Never waits: lets the time that it would have waited pass at once."""

    def __init__(self) -> None:
        self.now = 0.0
        self._turns = 0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        raise NotImplementedError("there are no files in virtual time")

    unregister = register  # type: ignore[assignment]

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("nothing will ever happen again")
        self._turns += 1
        if timeout > 0:
            self.now += timeout
            self._turns = 0
        elif self._turns > MAX_TURNS:
            raise Stuck("time does not pass any more")
        return []


class _Timer(asyncio.TimerHandle):
    """First in, first out among equals."""

    __slots__ = ("order",)
    order: int

    def __lt__(self, other: object) -> bool:
        assert isinstance(other, _Timer)
        return (self._when, self.order) < (other._when, other.order)  # type: ignore[attr-defined]


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module. `time()` starts at 0."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Jump()
        self._order = itertools.count()

    def time(self) -> float:
        return self._selector.now

    def call_at(
        self, when: float, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        timer.order = next(self._order)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._selector.now + delay, callback, *args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

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
