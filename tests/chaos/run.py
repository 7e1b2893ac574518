"""One run: a system, its clients, the faults of a seed, and the end of all of it. What it leaves is in a folder."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Final

import msgspec
from chaos.hands import Hands
from chaos.outages import Happened
from chaos.relay import Relay
from chaos.remains import remains
from chaos.schedule import Fault, schedule
from chaos.talker import Talker
from chaos.witness import NAP_S, NOTED_S
from system.running import RunningSystem

GATEWAYS: Final = 2
SHARDS: Final = 2
REPLICAS: Final = 2
"""Workers of each group."""
SETTLE_S: Final = 3.0
OPENING: Final = 8
"""Sessions that are opened at once."""


class Options(msgspec.Struct, frozen=True):
    """What was asked for."""

    seconds: float
    sessions: int
    seed: int
    double: bool = False
    kinds: tuple[str, ...] = ()


class Run(msgspec.Struct):
    """What a run leaves beside its recordings."""

    began: float = 0.0
    happened: list[Happened] = []
    left: dict[str, float] = {}
    wrong: str = ""
    """Why the run came to an early end."""


async def run(options: Options, folder: Path) -> Run:
    """Raises what keeps the system from starting."""
    result = Run()
    with _system(folder) as system, _witness(folder):
        async with _clients(options, folder, system) as (relay, talkers, until), _own_stalls(folder):
            hands = Hands(system, relay, options.sessions)
            result.began = time.monotonic()
            talking = [asyncio.create_task(talker.talk(until)) for talker in talkers]
            try:
                await _faults(options, hands, result)
            except AssertionError as error:
                result.wrong = str(error)
            await asyncio.sleep(SETTLE_S)
            until.set()
            await asyncio.gather(*talking)
            if not result.wrong:
                result.left = await remains(system)
    return result


async def _faults(options: Options, hands: Hands, result: Run) -> None:
    ends = result.began + options.seconds
    kinds = {"kinds": options.kinds} if options.kinds else {}
    for faults in schedule(options.seed, double=options.double, **kinds):
        await asyncio.sleep(max(0.0, min(faults[0].after_s, ends - time.monotonic())))
        if time.monotonic() >= ends:
            return
        carried = await asyncio.gather(*(_one(fault, hands, wait=n > 0) for n, fault in enumerate(faults)))
        result.happened += sorted(carried, key=lambda happened: happened.began)
        for happened in carried:
            print(f"{happened.began - result.began:8.1f} s  {happened.told()}", flush=True)


async def _one(fault: Fault, hands: Hands, *, wait: bool) -> Happened:
    if wait:
        await asyncio.sleep(fault.after_s)
    return await hands.carry_out(fault)


@contextlib.contextmanager
def _system(folder: Path) -> Iterator[RunningSystem]:
    """Two gateways, two shards, and two workers of each group of the loopback model."""
    written = (files("duologue.models.loopback") / "loopback.toml").read_text()
    pipeline = folder / "loopback.toml"
    for group in ("loopback-a", "loopback-b"):
        written = written.replace(f'worker = "{group}"\n', f'worker = "{group}"\nreplicas = {REPLICAS}\n')
    pipeline.write_text(written)
    options = ("--pipelines", str(pipeline), "--gateways", str(GATEWAYS), "--shards", str(SHARDS))
    with RunningSystem(folder / "home", *options) as system:
        yield system


@contextlib.asynccontextmanager
async def _clients(
    options: Options, folder: Path, system: RunningSystem
) -> AsyncIterator[tuple[Relay, list[Talker], asyncio.Event]]:
    """The relay and all sessions, opened."""
    relay = Relay([system.port + n for n in range(GATEWAYS)])
    await relay.open()
    try:
        await relay.all_ready.wait()
        talkers = [
            Talker(n, f"ws://127.0.0.1:{await relay.listen(n)}", folder, options.seed) for n in range(options.sessions)
        ]
        for first in range(0, len(talkers), OPENING):
            await asyncio.gather(*(talker.open() for talker in talkers[first : first + OPENING]))
        yield relay, talkers, asyncio.Event()
    finally:
        await relay.close()


@contextlib.contextmanager
def _witness(folder: Path) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "chaos.witness", str(folder / "witness.log")], cwd=Path(__file__).parents[1]
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)


@contextlib.asynccontextmanager
async def _own_stalls(folder: Path) -> AsyncIterator[None]:
    """The same of this process's event loop: while it does something else, no client can hear."""

    async def watch() -> None:
        with (folder / "clients.log").open("w", buffering=1) as file:
            while True:
                before = time.monotonic()
                await asyncio.sleep(NAP_S)
                now = time.monotonic()
                if (excess := now - before - NAP_S) >= NOTED_S:
                    file.write(f"{now:.6f} {excess:.6f}\n")

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
