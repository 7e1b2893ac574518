"""Sessions that come and go in every way, with processes killed between: nothing may be left of them.

`make leaks CYCLES=5000`. A system of its own, two gateways, two shards; the cycles are dealt out in batches. After each
batch the system must come to rest exactly as it began: no session, no slot taken in any stage, no socket, no
key of a session in the store. The kills are spread over the first half, so that whoever is started again has a life
long enough to be judged by: `memory` says of what part of it. The slope of each process is told, and more than
`--slope` kB a cycle fails; of a run too short for a slope nothing is said.

A resume that is told of a gap in the journal is no failure where the gateway has said in its log why, as it must.

Exit code 1: something is left, or grows. The seed decides the order of the endings and who is killed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from soak.endings import DISTURBED, ENDINGS, GRACE_S, OPENED, Ending, Gap
from soak.memory import Memory
from system.conftest import TwoGateways
from system.held import held
from system.running import RunningSystem, until
from system.wire import Wire

BATCHES = 20
SETTINGS = f"""
pipelines = ["loopback"]
[gateway]
ping_interval_s = 1.0
first_message_timeout_s = 2.0
[session]
disconnect_grace_s = {GRACE_S}
[stages]
orphan_slots_s = 3.0
[log]
level = "warning"
"""
PATIENCE_S = 90.0
SLOW_S = 8.0
"""Whatever takes longer to come back is named, although it is no fault."""
WHY = "has a gap: "
"""How a gateway begins to say in its log why a resume finds one."""


class Failure(Exception):
    """What is wrong, in words."""


class Soak:
    """One run against one system."""

    def __init__(self, served: TwoGateways, options: argparse.Namespace) -> None:
        self.served = served
        self.options = options
        self.random = random.Random(options.seed)
        self.memory = Memory()
        self.done: Counter[str] = Counter()
        self.disturbed: Counter[str] = Counter()
        self.killed: Counter[str] = Counter()
        self.faults: list[str] = []
        self.gaps: list[Gap] = []
        self._kills_left = options.kills
        self._victims = itertools.cycle(("shard-1", "gateway-1", "worker", "shard-2", "gateway-2", "worker"))

    # -- one batch -------------------------------------------------------------------------------------

    async def batch(self, endings: list[Ending], kills: int) -> None:
        """Carry these out, several at once, and kill so many processes meanwhile."""
        queue = iter(endings)
        clients = [asyncio.create_task(self._client(queue, bool(kills))) for _ in range(self.options.parallel)]
        for _ in range(kills):
            await asyncio.sleep(0.5)
            self._kill(next(self._victims))
            await asyncio.to_thread(self.served.system.wait_ready)
        await asyncio.gather(*clients)

    async def _client(self, queue: Any, shaken: bool) -> None:
        for ending in queue:
            name, url = ending.__name__, self.random.choice(self.served.urls)
            opened: list[Wire] = []
            OPENED.set(opened)
            try:
                await ending(url)
                self.done[name] += 1
            except Gap as gap:
                self.gaps.append(gap)
            except DISTURBED as error:
                self.disturbed[name] += 1
                if not shaken:
                    self.faults.append(f"{name}: {error!r}"[:300])
            finally:
                for wire in opened:
                    wire.ws.transport.abort()

    def _kill(self, kind: str) -> None:
        found = [process for process in self.served.system.state.processes if process.name.startswith(kind)]
        victim = self.random.choice(found)
        os.kill(victim.pid, signal.SIGKILL)
        self.killed[victim.name] += 1

    # -- at rest ---------------------------------------------------------------------------------------

    def rest(self) -> None:
        """Wait until all is back. Raises Failure."""
        began = time.monotonic()
        last: dict[str, Any] = {}
        while (left := self._left()) != {}:
            last = left
            if time.monotonic() - began > PATIENCE_S:
                raise Failure(f"after {PATIENCE_S:g} s these are still held: {left}")
            time.sleep(0.3)
        if (waited := time.monotonic() - began) > SLOW_S:
            print(f"       waited {waited:.1f} s for the last of it: {str(last)[:300]}", flush=True)

    def _left(self) -> dict[str, Any]:
        now = held(self.served.system.home)
        left = {what: now[what] for what in ("sessions", "slots", "sockets", "keys") if now[what]}
        if now["processes"] != {"shard": 2, "worker": 2, "gateway": 2}:
            left["processes"] = now["processes"]
        return left

    # -- all of it -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Raises Failure."""
        total = self.options.cycles
        endings = [ENDINGS[n % len(ENDINGS)] for n in range(total)]
        self.random.shuffle(endings)
        size = max(1, -(-total // BATCHES))
        for n, start in enumerate(range(0, total, size)):
            began = time.monotonic()
            kills = self._kills_of(n)
            await self.batch(endings[start : start + size], kills)
            await asyncio.to_thread(self.rest)
            cycles = min(start + size, total)
            pids = {process.name: process.pid for process in self.served.system.state.processes}
            self.memory.sample(cycles, {**pids, "supervisor": self.served.system.process.pid})
            print(f"{cycles:>6} cycles, all back, {kills} killed, {time.monotonic() - began:.1f} s", flush=True)

    def _kills_of(self, batch: int) -> int:
        """From the second batch to the tenth."""
        rounds = BATCHES // 2 - 1
        if not 1 <= batch <= rounds:
            return 0
        kills: int = self.options.kills
        each, more = divmod(kills, rounds)
        return each + (batch <= more)

    def report(self) -> list[str]:
        """Prints the figures; what is wrong."""
        print(f"carried out: {dict(sorted(self.done.items()))}")
        print(f"cut short by a kill: {dict(sorted(self.disturbed.items()))}; killed: {dict(self.killed)}")
        untold = self._gaps()
        slopes = self.memory.slopes()
        for (name, pid), points in sorted(self.memory.samples.items()):
            shown = f"{slopes[name, pid]:+.3f} kB a cycle" if (name, pid) in slopes else ""
            if self.options.series:
                print(f"  {name} {' '.join(f'{rss / 1024:.1f}' for _, rss in points)}")
            lived = f"{points[0][0]:>6} .. {points[-1][0]:>6}"
            print(f"  {name:18} {pid:>8} {lived} {points[0][1] / 1024:7.1f} -> {points[-1][1] / 1024:7.1f} MB {shown}")
        for name, pid in self.memory.unjudged():
            print(f"  {name} {pid} has not lived long enough for a slope")
        growing = [f"{n} {pid} grows by {s:.3f} kB a cycle" for (n, pid), s in slopes.items() if s > self.options.slope]
        return self.faults + untold + growing

    def _gaps(self) -> list[str]:
        """Prints why resumes were told of a gap; those of which nobody says why."""
        print(f"resumes that were told of a gap: {len(self.gaps)}")
        lines = self.served.system.log.read_text(errors="replace").splitlines()
        why = {gap: [line for line in lines if WHY in line and gap.session_id in line] for gap in self.gaps}
        for said in why.values():
            print("\n".join(f"  {line.strip()[:400]}" for line in said))
        return [f"{gap.session_id}: a gap, and no word of it in the log" for gap, said in why.items() if not said]


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m soak.leaks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cycles", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--parallel", type=int, default=16)
    parser.add_argument("--slope", type=float, default=0.5, help="kB a cycle that a process may grow")
    parser.add_argument("--series", action="store_true", help="print the memory after each batch")
    parser.add_argument("--seed", type=int, default=1)
    return parser


def main() -> int:
    options = parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="duologue-leaks-") as folder:
        config = Path(folder) / "leaks.toml"
        config.write_text(SETTINGS)
        told = ("--config", str(config), "--gateways", "2", "--standby", "0")  # each shard has a life to be judged by
        with RunningSystem(Path(folder) / "home", *told) as system:
            soak = Soak(TwoGateways(system), options)
            until(lambda: soak._left() == {}, "the system is at rest before it begins", system.log)
            try:
                asyncio.run(soak.run())
                wrong: list[str] = []
            except Failure as failure:
                wrong = [str(failure)]
            wrong += soak.report()
    for line in wrong:
        print(f"WRONG {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
