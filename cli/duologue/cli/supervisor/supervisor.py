"""Runs a set of processes until it is told to stop, in groups: a group starts when the one before is up, and
stops before it does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from duologue.cli.supervisor.child import Child, ChildSpec

STOP_S = 10.0


class Supervisor:
    """`say(name, line)` is told what the processes print and what happens to them, `lost(child)` which of them has
    ended by itself, `changed` that one has started or ended."""

    def __init__(
        self,
        say: Callable[[str, str], None],
        lost: Callable[[Child], None] = lambda child: None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._say, self._lost, self._changed = say, lost, changed
        self.children: list[Child] = []
        self._groups: list[list[Child]] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, specs: Sequence[ChildSpec]) -> list[Child]:
        """Start one group. They run until `stop`, each restarted with back-off if it ends by itself."""
        group = [Child(spec, self._say, self._ended, self._changed) for spec in specs]
        if group:
            self._groups.append(group)
        self.children += group
        for child in group:
            self._tasks[child.spec.name] = asyncio.create_task(child.keep_running(), name=child.spec.name)
        return group

    def _ended(self, child: Child, code: int, pause_s: float) -> None:
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        self._say("duologue", f"{child.spec.name} ended ({how}); starting it again in {pause_s:.1f} s")
        self._lost(child)

    def exited_early(self) -> list[Child]:
        """Children that ended with code 2 again and again: what a user has to mend."""
        return [
            child
            for child in self.children
            if child.process is not None and child.process.returncode == 2 and child.pid is None
        ]

    async def stop(self, within_s: float = STOP_S) -> None:
        """Stop the groups, the last one first; what has not ended in time is killed."""
        for group in reversed(self._groups):
            for child in group:
                child.ask_to_stop()
            await self._gone(group, within_s)
        self._groups.clear()

    async def _gone(self, group: Sequence[Child], within_s: float) -> None:
        tasks = [self._tasks[child.spec.name] for child in group]
        _, late = await asyncio.wait(tasks, timeout=within_s)
        for child in group:
            if self._tasks[child.spec.name] in late:
                self._say("duologue", f"{child.spec.name} did not stop within {within_s:.0f} s: killed")
                child.kill()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
