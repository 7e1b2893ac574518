"""What a session's model heard, kept in the store for whoever rebuilds its context: appended in batches, read back.

Rule 1. Off the way of a unit: what comes is gathered for `GATHER_S`, or until a checkpoint is due, then one call of
        the store takes all of it.
Rule 2. Bounded twice: the store keeps the pipeline's window, here waits at most a window's worth. What no longer fits
        because the store is away is forgotten, oldest first, and counted.
Rule 3. A recall is answered, whatever the store does; what waits here is written before it is asked.
Rule 4. A unit that an heir heard again stands twice in the store: the newest owner's counts, and what an older owner
        had heard beyond the heir's first unit never happened.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from duologue.fence import Owner
from duologue.model.pipeline import PipelineSpec
from duologue.model.plugin import RecordedUnit
from duologue.session.background import Background
from duologue.session.core import commands as facts
from duologue.session.core import effects as orders
from duologue.session.tallies import Tallies
from duologue.store.ports import InputEntry, Refused, SessionStore, StoreUnavailable

GATHER_S: Final = 0.5
MAX_BYTES: Final = 8 * 1024 * 1024
"""Of one session's window, whatever its pipeline says: camera frames are large."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RecordedUnit).decode
Post = Callable[[facts.SessionCommand], None]


class InputTape:
    """See the module. `unit_ms`: how long a unit of the model is."""

    def __init__(
        self,
        store: SessionStore,
        background: Background,
        session_id: str,
        owner: Owner,
        *,
        pipeline: PipelineSpec,
        unit_ms: int,
        tallies: Tallies,
        gather_s: float = GATHER_S,
    ) -> None:
        self.post: Post
        self._store = store
        self._background = background
        self._session_id = session_id
        self._owner = owner
        self._max_units = max(round(pipeline.rebuild_window_s * 1000 / unit_ms), 1)
        self._tallies = tallies
        self._gather_s = gather_s
        self._window: deque[tuple[int, int]] = deque()
        """Unit and size of everything that is recorded, or waits to be."""
        self._window_bytes = 0
        self._forgets = False
        self._last = -1
        self._waiting: deque[InputEntry] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def waiting(self) -> int:
        """Units that are not in the store yet."""
        return len(self._waiting)

    def record(self, order: orders.RecordInput) -> None:
        """Keep one unit."""
        if self._stopped or order.unit.unit <= self._last:
            return
        self._last = order.unit.unit
        unit, blob = order.unit.unit, _encode(order.unit)
        self._window.append((unit, len(blob)))
        self._window_bytes += len(blob)
        self._waiting.append(InputEntry(self._owner.number, unit, blob))
        while len(self._window) > self._max_units or (self._window_bytes > MAX_BYTES and len(self._window) > 1):
            self._window_bytes -= self._window.popleft()[1]
            self._forgets = True
        while self._waiting[0].unit < self._window[0][0]:
            self._waiting.popleft()
            self._tallies.input_unrecorded += 1
        if self._timer is None and self._writing is None:
            self._timer = asyncio.get_running_loop().call_later(self._gather_s, self._write_soon)

    def recall(self, order: orders.RecallInput) -> None:
        """Read back what is there; the answer is posted from the loop, never from inside."""
        self._background.start(self._recall(order), f"recall of {self._session_id}")

    async def flush(self) -> None:
        """Write what waits: whoever goes on with the session reads it there. Raises StoreUnavailable."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
        await self._write()

    def stop(self) -> None:
        """Nothing is written any more, and nothing answered."""
        self._stopped = True
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            self._writing.cancel()

    # -- inside ----------------------------------------------------------------------------------------

    def _write_soon(self) -> None:
        self._timer = None
        if self._waiting and self._writing is None and not self._stopped:
            self._writing = self._background.start(self._write_once(), f"input of {self._session_id}")

    async def _write_once(self) -> None:
        try:
            await self._write()
        except StoreUnavailable:
            self._tallies.input_failures += 1
        finally:
            self._writing = None
        if self._waiting and not self._stopped and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._gather_s, self._write_soon)

    async def _write(self) -> None:
        """Everything that waits. Raises StoreUnavailable: what of it is there is not known, and it still waits."""
        batch = tuple(self._waiting)
        if not batch:
            return
        keep = (self._owner.number, self._window[0][0]) if self._forgets else None
        result = await self._store.record(self._session_id, self._owner, batch, keep)
        if isinstance(result, Refused):
            return self.stop()  # another shard has the session: its checkpoints will say so
        last = batch[-1].unit
        while self._waiting and self._waiting[0].unit <= last:
            self._waiting.popleft()
            self._tallies.input_recorded += 1
        return None

    async def _recall(self, order: orders.RecallInput) -> None:
        try:
            await self.flush()
            entries = await self._store.recorded(self._session_id)
            fact = facts.InputRecalled(order.ticket, self._heard(entries, order.below))
        except StoreUnavailable:
            fact = facts.InputRecalled(order.ticket, error="store_away")
        except msgspec.DecodeError:
            fact = facts.InputRecalled(order.ticket, error="unreadable")
        if not self._stopped:
            self.post(fact)

    def _heard(self, entries: tuple[InputEntry, ...], below: int) -> tuple[RecordedUnit, ...]:
        """The units before `below` that were heard, in order, at most a window of them."""
        heard: list[RecordedUnit] = []
        size = 0
        for entry in reversed(entries):
            if entry.unit >= below:
                continue
            below, size = entry.unit, size + len(entry.blob)
            if len(heard) >= self._max_units or (size > MAX_BYTES and heard):
                break
            heard.append(_decode(entry.blob))
        return tuple(reversed(heard))
