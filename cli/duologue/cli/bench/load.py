"""N sessions against one URL, measured over a steady window.

Unit latency: the time from sending the append that completes a unit to the arrival of its first audio delta.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import deque
from collections.abc import Callable

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from duologue.cli.bench.workload import Workload

AUDIO = '"type":"response.output_audio.delta"'
LISTEN = '"type":"response.listen"'
DONE = '"type":"response.done"'
ERROR = '"type":"error"'
SEQ = '"server_event_seq":'

SETTLE_S = 0.5
"""How long the sessions go on after the window: the last units that it counts have to be answered."""


class Result(msgspec.Struct):
    """What a run measured. Latencies in seconds."""

    sessions: int = 0
    steady_s: float = 0.0
    unit_latency: list[float] = []
    cancel_latency: list[float] = []
    units_sent: int = 0
    units_answered: int = 0
    holes: int = 0
    errors: list[str] = []
    disconnects: int = 0
    late_sends: list[float] = []

    def add(self, other: Result) -> None:
        """One session more."""
        self.sessions += 1
        self._take(other)

    def go_on(self, other: Result) -> None:
        """A further window of as many sessions."""
        self.steady_s += other.steady_s
        self._take(other)

    def _take(self, other: Result) -> None:
        self.unit_latency += other.unit_latency
        self.cancel_latency += other.cancel_latency
        self.units_sent += other.units_sent
        self.units_answered += other.units_answered
        self.holes += other.holes
        self.errors += other.errors
        self.disconnects += other.disconnects
        self.late_sends += other.late_sends


def percentile(values: list[float], share: float) -> float | None:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else None


class _Session:
    """One client. `steady` tells whether the window is open."""

    def __init__(self, workload: Workload, appends: list[str], steady: Callable[[], bool]) -> None:
        self.result = Result()
        self._workload, self._appends, self._steady = workload, appends, steady
        self._waiting: deque[tuple[float, bool]] = deque()
        self._seq = 0
        self._cancelled_at: float | None = None
        self._speaking = self._stopping = False

    async def run(self, url: str, offset_s: float, opened: asyncio.Event, stop: asyncio.Event) -> None:
        async with connect(url, max_size=None, compression=None, ping_interval=None, open_timeout=30) as ws:
            await ws.send(json.dumps({"type": "session.update", "session": self._workload.session()}))
            reading = asyncio.create_task(self._read(ws))
            opened.set()
            await asyncio.sleep(offset_s)
            try:
                await self._append(ws, stop)
                self._stopping = True
                await ws.send('{"type":"session.close"}')
                await asyncio.wait([reading], timeout=5)
            except ConnectionClosed:
                self.result.disconnects += 1
            finally:
                reading.cancel()

    async def _append(self, ws: ClientConnection, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        due, sent = loop.time(), 0
        next_cancel = due + self._workload.cancel_every_s * (1 + random.random())
        while not stop.is_set():
            if self._steady():
                self.result.late_sends.append(loop.time() - due)
            await ws.send(self._appends[sent % len(self._appends)])
            sent += 1
            if sent % self._workload.appends_per_unit == 0:
                self._waiting.append((time.perf_counter(), self._steady()))
                self.result.units_sent += self._steady()
            if self._workload.cancel_every_s and loop.time() >= next_cancel:
                next_cancel += self._workload.cancel_every_s
                await self._cancel(ws)
            due += self._workload.append_ms / 1000
            await asyncio.sleep(max(0.0, due - loop.time()))

    async def _cancel(self, ws: ClientConnection) -> None:
        if self._speaking and self._cancelled_at is None:
            self._cancelled_at = time.perf_counter()
            await ws.send('{"type":"response.cancel","event_id":"evt_cancel"}')

    async def _read(self, ws: ClientConnection) -> None:
        try:
            async for frame in ws:
                self._event(str(frame), time.perf_counter())
        except ConnectionClosed:
            if not self._stopping:
                self.result.disconnects += 1

    def _event(self, frame: str, now: float) -> None:
        self._count(frame)
        head = frame[:64]
        if AUDIO in head:
            self._speaking = True
            self._answered(now, is_audio=True)
        elif LISTEN in head:
            self._answered(now, is_audio=False)
        elif DONE in head:
            self._speaking = False
            if self._cancelled_at is not None:
                if self._steady():
                    self.result.cancel_latency.append(now - self._cancelled_at)
                self._cancelled_at = None
                self._waiting.clear()
        elif ERROR in head:
            self.result.errors.append(frame[:300])

    def _answered(self, now: float, *, is_audio: bool) -> None:
        if not self._waiting or self._cancelled_at is not None:
            return
        sent_at, counted = self._waiting.popleft()
        if counted and is_audio:
            self.result.unit_latency.append(now - sent_at)
            self.result.units_answered += 1

    def _count(self, frame: str) -> None:
        at = frame.rfind(SEQ)
        if at < 0:
            return
        end = at + len(SEQ)
        seq = int(frame[end:].partition(",")[0].rstrip("}"))
        self.result.holes += seq != self._seq + 1
        self._seq = seq


async def drive(
    url: str,
    workload: Workload,
    sessions: int,
    *,
    warmup_s: float,
    seconds: float,
    on_window: Callable[[bool], None],
) -> Result:
    """Run the load; `on_window(True)` opens the steady window and `on_window(False)` closes it."""
    appends, state, stop = workload.appends(), {"steady": False}, asyncio.Event()
    clients = [_Session(workload, appends, lambda: state["steady"]) for _ in range(sessions)]
    tasks = []
    for client in clients:
        opened = asyncio.Event()
        offset_s = random.random() * workload.unit_ms / 1000
        tasks.append(asyncio.create_task(client.run(url, offset_s, opened, stop)))
        await asyncio.wait([tasks[-1], asyncio.ensure_future(opened.wait())], return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(warmup_s)
    state["steady"] = True
    on_window(True)
    started = time.perf_counter()
    await asyncio.sleep(seconds)
    on_window(False)
    state["steady"] = False
    total = Result(steady_s=time.perf_counter() - started)
    await asyncio.sleep(SETTLE_S)
    stop.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for client, outcome in zip(clients, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            client.result.errors.append(repr(outcome)[:300])
        total.add(client.result)
    return total
