"""What it costs to keep the input of sessions for rebuilds (`rebuild = "input"`), beside everything else.

    python bench/recording.py [--sessions 32] [--seconds 10] [--unit-ms 80]

Sessions that hear a unit each period, an embedded Valkey, no bus and no model: CPU of this process (a shard's share)
and of the store for one unit, and what is kept. What the pacing alone costs is taken off.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import time

import psutil
import uvloop

from duologue.model.pipeline import PipelineSpec, StageSpec
from duologue.model.plugin import RecordedUnit
from duologue.session.background import Background
from duologue.session.core.effects import RecordInput
from duologue.session.input_tape import InputTape
from duologue.session.tallies import Tallies
from duologue.store.embedded import EmbeddedStore
from duologue.store.ports import Owned, SessionRecord
from duologue.store.redis import RedisStore

RATE_HZ = 16_000


async def measure(options: argparse.Namespace, server: EmbeddedStore) -> None:
    store, background, tallies = RedisStore(server.url), Background(), Tallies()
    await store.open()
    pipeline = PipelineSpec("p", "x:y", (StageSpec("s", "x:y", "w"),), rebuild="input")
    tapes = []
    for n in range(options.sessions):
        owned = await store.sessions.own(f"s{n}", incarnation="i", create=SessionRecord("p", "d", b"t", "g"))
        assert isinstance(owned, Owned)
        tape = InputTape(
            store.sessions,
            background,
            f"s{n}",
            owned.owner,
            pipeline=pipeline,
            unit_ms=options.unit_ms,
            tallies=tallies,
        )
        tapes.append(tape)
    sound, there = bytes(RATE_HZ * options.unit_ms // 1000 * 4), psutil.Process(server.pid)
    before, store_before = _cpu(), sum(there.cpu_times()[:2])
    pause_s = options.unit_ms / 1000 / options.sessions
    units = round(options.seconds * 1000 / options.unit_ms)
    due = time.monotonic()
    for unit in range(units):
        for tape in tapes:
            tape.record(RecordInput(RecordedUnit(unit, 1, 0, b"h" * 20, (sound,))))
            due += pause_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
    await background.settle()
    idle = _cpu()
    for _ in range(units):
        for _ in tapes:
            due += pause_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
    idle_s, spent_s = _cpu() - idle, idle - before
    store_s, total = sum(there.cpu_times()[:2]) - store_before, units * options.sessions
    kept = sum(len(entry.blob) for entry in await store.sessions.recorded("s0"))
    for tape in tapes:
        tape.stop()
    await store.close()
    print(f"{options.sessions} sessions, {tallies.input_recorded} units of {options.unit_ms} ms recorded")
    print(f"shard: {(spent_s - idle_s) / total * 1e6:.0f} us of CPU for a unit; store: {store_s / total * 1e6:.0f} us")
    print(f"kept of one session: {kept / 1024:.0f} KiB")


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--unit-ms", type=int, default=80)
    with EmbeddedStore() as server:
        uvloop.run(measure(parser.parse_args(), server))


if __name__ == "__main__":
    main()
