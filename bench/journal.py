"""What journaling costs: batches of two events as the gateway sends them, against a bare pipelined XADD.

    python bench/journal.py [--sessions 100] [--seconds 5] [--url redis://...]

Prints CPU microseconds per batch (one 80 ms unit: 2 events) in this process and in the server, and the
ratio to the same bytes as plain XADDs on the same kind of connection. Without --url it embeds a server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import hiredis
import psutil

from duologue.fence import DeliveryId, Owner
from duologue.store.embedded import EmbeddedStore
from duologue.store.journals import JournalLimits
from duologue.store.ports import Appended, AppendOutcome
from duologue.store.redis import RedisStore
from duologue.store.redis_address import parse_address

TICK_S = 0.008
AUDIO = b'{"type":"response.output_audio.delta","delta":"' + b"A" * 5120 + b'"}'
TEXT = b'{"type":"response.output_audio_transcript.delta","delta":"a few words"}'
OWNER = Owner(1, "bench")
pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command


class Bare(asyncio.Protocol):
    """Counts replies of plain XADDs."""

    def __init__(self) -> None:
        self.reader = hiredis.Reader()
        self.replies = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.reader.feed(data)
        while self.reader.gets() is not False:
            self.replies += 1


async def paced(sessions: int, seconds: float, batch: Callable[[int, int], None]) -> int:
    """A tenth of the sessions each 8 ms, as 80 ms units arrive; returns the number of batches."""
    seq, start, share = 1, time.monotonic(), max(1, sessions // 10)
    count = ticks = 0
    while time.monotonic() - start < seconds:
        for k in range(share):
            batch(k + share * (ticks % 10), seq)
            count += 1
        ticks += 1
        seq += 2 * (ticks % 10 == 0)
        await asyncio.sleep(max(0.0, start + ticks * TICK_S - time.monotonic()))
    await asyncio.sleep(0.2)
    return count


class Meter:
    """CPU seconds of this process and of the server."""

    def __init__(self, server: psutil.Process | None) -> None:
        self._server = server
        self._before = self._read()

    def _read(self) -> tuple[float, float]:
        there = self._server.cpu_times() if self._server is not None else None
        return time.process_time(), there.user + there.system if there is not None else 0.0

    def per(self, batches: int) -> tuple[float, float]:
        """Microseconds per batch, here and there."""
        now = self._read()
        return tuple((b - a) / batches * 1e6 for a, b in zip(self._before, now, strict=True))  # type: ignore[return-value]


async def bare(url: str, sessions: int, seconds: float, server: psutil.Process | None) -> tuple[float, float]:
    address = parse_address(url)
    connection = await address.connect(Bare)
    for command in address.greeting():
        connection.transport.write(pack(command))
    out: list[bytes] = []

    def flush() -> None:
        connection.transport.write(b"".join(out))
        out.clear()

    def batch(k: int, seq: int) -> None:
        if not out:
            asyncio.get_running_loop().call_soon(flush)
        for i, body in enumerate((AUDIO, TEXT)):
            out.append(pack(("XADD", f"bare:{k}", f"{seq + i}-0", "b", body)))

    meter = Meter(server)
    count = await paced(sessions, seconds, batch)
    connection.transport.close()
    return meter.per(count)


async def journaled(url: str, sessions: int, seconds: float, server: psutil.Process | None) -> tuple[float, float]:
    store = RedisStore(url, limits=JournalLimits())
    await store.open()
    for k in range(sessions):
        await store.journal.claim(f"bench-{k}", owner=OWNER)
    bad: list[AppendOutcome] = []

    def on_outcome(outcome: AppendOutcome) -> None:
        if type(outcome) is not Appended:
            bad.append(outcome)

    def batch(k: int, seq: int) -> None:
        entries = [(DeliveryId(1, seq), AUDIO), (DeliveryId(1, seq + 1), TEXT)]
        if not store.appender.submit(f"bench-{k}", OWNER, 1, seq, entries, on_outcome):
            raise SystemExit("the journal connection takes no more")

    meter = Meter(server)
    count = await paced(sessions, seconds, batch)
    result = meter.per(count)
    await store.close()
    if bad:
        raise SystemExit(f"{len(bad)} batches were not appended; the first: {bad[0]}")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--url", help="a server that is there; its own CPU is then not measured")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        server = None
        url = args.url
        if url is None:
            embedded = stack.enter_context(EmbeddedStore(max_memory_mb=1024))
            url, server = embedded.url, psutil.Process(embedded.pid)
        floor = asyncio.run(bare(url, args.sessions, args.seconds, server))
        ours = asyncio.run(journaled(url, args.sessions, args.seconds, server))
    print(f"{'us per batch of 2 events':28}{'client':>8}{'server':>8}")
    print(f"{'bare pipelined XADD':28}{floor[0]:8.1f}{floor[1]:8.1f}")
    print(f"{'journal':28}{ours[0]:8.1f}{ours[1]:8.1f}")
    print(f"ratio {sum(ours) / sum(floor):.2f}")


if __name__ == "__main__":
    main()
