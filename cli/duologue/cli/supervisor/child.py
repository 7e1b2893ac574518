"""One supervised process: started, its log lines passed on, restarted with back-off, stopped.

Rule 1. A child is started from the supervisor's main thread with PR_SET_PDEATHSIG, so that the kernel ends it
        when the supervisor dies, `kill -9` included. The signal is tied to the thread that forked.
Rule 2. A child has a session of its own: Ctrl-C reaches the supervisor alone, which stops children in order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping

import msgspec

from duologue.cli.supervisor.backoff import Backoff
from duologue.runtime.processes import die_with_parent
from duologue.runtime.settings_reading import PREFIX

#: A child that logs longer lines than this has them passed on in pieces: a line is for a person to read.
MAX_LINE_BYTES = 16 * 1024


class ChildSpec(msgspec.Struct, frozen=True):
    """What to run. `kind` groups processes for people and for the accounting of CPU."""

    name: str
    kind: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = {}
    death_signal: int = signal.SIGKILL
    """What the kernel sends when the supervisor dies. Valkey gets SIGTERM, so that it closes its log."""


class Child:
    """The life of one process across restarts. `on_change`: it has another `pid` than before, or none."""

    def __init__(
        self,
        spec: ChildSpec,
        on_line: Callable[[str, str], None],
        on_exit: Callable[[Child, int, float], None],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.spec = spec
        self.process: asyncio.subprocess.Process | None = None
        self.started_at = 0.0
        self.restarts = 0
        self._on_line, self._on_exit, self._on_change = on_line, on_exit, on_change
        self._backoff = Backoff()
        self._stopping = asyncio.Event()

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process and self.process.returncode is None else None

    async def keep_running(self) -> None:
        """Run until `stop`; each end that was not asked for is followed by a pause and a new start."""
        while not self._stopping.is_set():
            code = await self._one_life()
            if self._stopping.is_set():
                return
            lived_s = time.monotonic() - self.started_at
            pause_s = self._backoff.after(lived_s)
            self._on_exit(self, code, pause_s)
            try:
                await asyncio.wait_for(self._stopping.wait(), pause_s)
            except TimeoutError:
                self.restarts += 1

    async def _one_life(self) -> int:
        parent = os.getpid()
        death_signal = self.spec.death_signal
        self.started_at = time.monotonic()
        self.process = await asyncio.create_subprocess_exec(
            *self.spec.argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**inherited(os.environ), **self.spec.env},
            start_new_session=True,
            limit=MAX_LINE_BYTES,
            preexec_fn=lambda: die_with_parent(parent, death_signal),
        )
        self._on_change()
        assert self.process.stdout is not None
        await self._pass_on(self.process.stdout)
        code = await self.process.wait()
        self._on_change()
        return code

    async def _pass_on(self, lines: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await lines.readuntil(b"\n")
            except asyncio.IncompleteReadError as end:
                if end.partial:
                    self._on_line(self.spec.name, end.partial.decode(errors="replace"))
                return
            except asyncio.LimitOverrunError as long:
                line = await lines.readexactly(long.consumed)
            for at in range(0, len(line), MAX_LINE_BYTES):  # the reader may hold more than its limit
                self._on_line(self.spec.name, line[at : at + MAX_LINE_BYTES].decode(errors="replace").rstrip())

    def ask_to_stop(self) -> None:
        self._stopping.set()
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._stopping.set()
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """What a child gets of our environment. Settings in it are in the child's configuration already, under the
    command line: read again by the child, they would win over it."""
    return {name: value for name, value in environment.items() if not (name.startswith(PREFIX) and "__" in name)}
