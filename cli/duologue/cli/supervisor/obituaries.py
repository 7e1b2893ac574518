"""A supervisor knows at once which process has died: it takes its registration back, so that nobody waits for that to
expire. The sessions of a shard that was killed go on within a second.

Rule 1. What is taken back is the registration as it stands when the process has ended: the next life of the same name
        comes later, by the pause before it is started.
Rule 2. A store that does not answer is let be: the registration expires by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from duologue.cli.supervisor.child import Child
from duologue.store.ports import Registry, StoreUnavailable

KINDS = ("gateway", "shard", "worker")


class OpenStore(Protocol):
    """A store of its own for one report."""

    @property
    def registry(self) -> Registry: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...


class Obituaries:
    """`tell` never waits; `settle` before the end."""

    def __init__(self, open_store: Callable[[], OpenStore]) -> None:
        self._open_store = open_store
        self._tasks: set[asyncio.Task[None]] = set()

    def tell(self, child: Child) -> None:
        if child.spec.kind in KINDS:
            task = asyncio.create_task(self._tell(child.spec.kind, child.spec.name))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _tell(self, kind: str, name: str) -> None:
        store = self._open_store()
        try:
            await store.open()
            for member in (await store.registry.members(kind)).members:
                if member.id == name:
                    await store.registry.remove(kind, name, member.incarnation)
        except StoreUnavailable:
            return
        finally:
            await store.close()

    async def settle(self) -> None:
        if self._tasks:
            await asyncio.wait(set(self._tasks))
