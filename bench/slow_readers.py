"""Clients that stop reading beside others that go on: what do the others notice, and what does it cost?

    PYTHONPATH=tests python bench/slow_readers.py --healthy 60 --slow 20 --window 30 --rounds 5

A system of its own. Windows without and with slow clients alternate; in a window with them, each opens a session, asks
for a long answer in a large format (float32 at 48 kHz) and reads nothing of it. When its session is over it reads
what was sent to it, and the next one comes. Told are the latencies of the healthy of all windows of a kind and their
ratios, the memory of each process after each window, and how the slow ones ended. Exit code 1: a ratio is beyond its
limit, memory grows beyond `--growth`, or a slow one missed something without being told.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path

import psutil
from system.running import RunningSystem
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from duologue.cli.bench.load import Result, drive, percentile
from duologue.cli.bench.workload import WORKLOADS

MEDIAN_LIMIT, P95_LIMIT = 1.2, 1.5
MODEL = "loopback-1s"
LONG = [{"speak": {"units": 4000, "text": "on and on"}}]
APPENDS = 600


class Slow:
    """Clients that do not read; each session that ends is followed by another one, until `stop`."""

    def __init__(self, url: str, appends: list[str]) -> None:
        self.url = url
        self.ends: Counter[str] = Counter()
        self.holes = 0
        self._appends = appends

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                ws = await self._open()
            except (InvalidStatus, ConnectionClosed, OSError) as error:
                self.ends[f"not let in: {type(error).__name__}"] += 1
                await asyncio.sleep(1)
                continue
            await self._starve(ws, stop)

    async def _open(self) -> ClientConnection:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        host, port = self.url.removeprefix("ws://").split("/")[0].split(":")
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        ws = await connect(self.url, sock=sock, compression=None, max_size=None, ping_interval=None)
        session = {
            "model": MODEL,
            "modalities": ["audio", "text"],
            "input_audio_format": "pcm16",
            "sample_rate_hz": 16_000,
            "output_audio_format": "pcm_f32le",
            "audio": {"output": {"format": {"type": "pcm_f32le", "rate": 48_000}}},
            "turn_detection": None,
            "disconnect_grace_s": 1,
            "extra_body": {"auto_response": True, "loopback": {"script": LONG}},
        }
        await ws.send(json.dumps({"type": "session.update", "session": session}))
        await ws.recv()
        return ws

    async def _starve(self, ws: ClientConnection, stop: asyncio.Event) -> None:
        ws.transport.pause_reading()
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            for n in range(APPENDS):
                if stop.is_set():
                    break
                async with asyncio.timeout(20):
                    await ws.send(self._appends[n % len(self._appends)])
                await asyncio.sleep(0.05)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 10)
        ws.transport.resume_reading()
        told, seq = "nothing", 0
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            while True:
                event = json.loads(await asyncio.wait_for(ws.recv(), 20))
                number = event.get("server_event_seq")
                if number is not None:
                    self.holes += seq != 0 and number != seq + 1
                    seq = number
                if event["type"] == "error":
                    told = event["error"]["code"]
        self.ends[f"{told}, close {ws.close_code or 'none: it still lived'}"] += 1
        ws.transport.abort()


async def window(url: str, appends: list[str], seconds: float, healthy: int, slow: Slow | None, count: int) -> Result:
    stop = asyncio.Event()
    deaf = [asyncio.create_task(slow.run(stop)) for _ in range(count)] if slow is not None else []
    result = await drive(url, WORKLOADS[MODEL], healthy, warmup_s=4, seconds=seconds, on_window=lambda is_open: None)
    stop.set()
    if deaf:
        await asyncio.gather(*deaf)
    return result


def memory(system: RunningSystem) -> dict[str, float]:
    """MB of each process."""
    found = {}
    for process in system.state.processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found[process.name] = psutil.Process(process.pid).memory_info().rss / 2**20
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--healthy", type=int, default=60)
    parser.add_argument("--slow", type=int, default=20)
    parser.add_argument("--window", type=float, default=30.0, help="seconds")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of windows")
    parser.add_argument(
        "--growth", type=float, default=40.0, help="MB that a process may grow from the second round on"
    )
    options = parser.parse_args()
    results = {"without": Result(), "with": Result()}
    memories: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="duologue-slow-") as folder:
        with RunningSystem(Path(folder), "--pipelines", MODEL) as system:
            url = f"{system.url}/v1/realtime?duplex=1&autostart=0"
            appends = WORKLOADS[MODEL].appends()
            slow = Slow(url, appends)
            for _ in range(options.rounds):
                for kind, deaf in (("without", None), ("with", slow)):
                    done = asyncio.run(window(url, appends, options.window, options.healthy, deaf, options.slow))
                    results[kind].add(done)
                    memories.append(memory(system))
                    median, p95 = figures(done)
                    print(f"{kind:8} median {median:.1f} ms, p95 {p95:.1f} ms, errors {len(done.errors)}", flush=True)
    return verdict(results, memories, slow, options.growth)


def figures(result: Result) -> tuple[float, float]:
    """Median and p95 in ms."""
    latencies = result.unit_latency
    return statistics.median(latencies) * 1000, (percentile(latencies, 0.95) or 0.0) * 1000


def verdict(results: dict[str, Result], memories: list[dict[str, float]], slow: Slow, growth: float) -> int:
    """Prints all; the exit code."""
    wrong = []
    alone, beside = figures(results["without"]), figures(results["with"])
    for name, limit, without, with_them in zip(
        ("median", "p95"), (MEDIAN_LIMIT, P95_LIMIT), alone, beside, strict=True
    ):
        ratio = with_them / without
        print(f"{name}: {without:.1f} ms without, {with_them:.1f} ms with, ratio {ratio:.2f} (at most {limit})")
        if ratio > limit:
            wrong.append(f"the {name} of the healthy is {ratio:.2f} times as long")
    for kind, result in results.items():
        if result.holes or result.errors or result.disconnects:
            wrong.append(f"healthy, {kind}: {result.holes} holes, {result.disconnects} cut off, {result.errors[:3]}")
    settled = memories[min(2, len(memories) - 1)]
    for name, now in memories[-1].items():
        print(f"  {name:22} {' '.join(f'{m.get(name, 0):.0f}' for m in memories)} MB")
        if now - settled.get(name, now) > growth:
            wrong.append(f"{name} grew by {now - settled[name]:.0f} MB")
    print(f"the slow ones: {dict(slow.ends)}, holes {slow.holes}")
    if slow.holes:
        wrong.append("a slow client missed something silently")
    for line in wrong:
        print(f"WRONG {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
