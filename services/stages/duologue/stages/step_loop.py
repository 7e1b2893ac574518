"""The thread of one engine. The link thread decides what a step holds; this thread only does it.

Rule 1. At most one step is out. While it is, the link thread leaves the engine alone; between two steps the
        link thread may run a short one itself and spare both switches.
Rule 2. The thread is a daemon: a step that never ends does not keep a process that gives up on it.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import SimpleQueue

from duologue.model.engine import StageEngine
from duologue.stages.step import Done, Work, perform


class Steps(ABC):
    """Where the steps of one engine are done. `on_done` is called on the loop's thread, once for each `start`."""

    busy_since: float | None = None
    """When the step that is out began, by the loop's clock."""

    @abstractmethod
    def run(self, work: Work) -> Done:
        """Do a short step here and now."""

    @abstractmethod
    def start(self, work: Work) -> None:
        """Begin a step that may take its time."""

    @abstractmethod
    def stop(self, timeout_s: float) -> bool:
        """Let the step that is out end. False: it did not, in this time."""


MakeSteps = Callable[[str, StageEngine, asyncio.AbstractEventLoop, Callable[[Done], None]], Steps]


class StepLoop(Steps):
    """In a thread of its own, which starts with the first long step."""

    def __init__(
        self, name: str, engine: StageEngine, loop: asyncio.AbstractEventLoop, on_done: Callable[[Done], None]
    ) -> None:
        self._name = name
        self._engine = engine
        self._loop = loop
        self._on_done = on_done
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, work: Work) -> Done:
        return perform(self._engine, work)

    def start(self, work: Work) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._main, name=self._name, daemon=True)
            self._thread.start()
        self.busy_since = self._loop.time()
        self._work.put(work)

    def stop(self, timeout_s: float) -> bool:
        if self._thread is None:
            return True
        self._work.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _main(self) -> None:
        while (work := self._work.get()) is not None:
            done = perform(self._engine, work)
            try:
                self._loop.call_soon_threadsafe(self._finished, done)
            except RuntimeError:
                return  # the loop is closed: the process is ending

    def _finished(self, done: Done) -> None:
        self.busy_since = None
        self._on_done(done)
