"""`duologue bench`: N sessions in real time; latency, holes, errors, and CPU of every process group.

Without `--url` the system that runs in the home is measured; if none does, one is started for the run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from duologue.cli.bench.accounting import CpuMeter
from duologue.cli.bench.load import Result, drive, percentile
from duologue.cli.bench.workload import WORKLOADS, Workload
from duologue.cli.errors import UserError
from duologue.cli.home import Home, SystemState
from duologue.cli.server_address import add_ca_argument, trust
from duologue.cli.temporary import free_port, temporary_system

KINDS = ("gateway", "shard", "worker", "store")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", choices=sorted(WORKLOADS), default="loopback", help="units of 80 ms or of 1 s")
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a steady window (%(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=1, help="windows of each; with --floor in turn, for a machine that is not quiet"
    )
    parser.add_argument("--warmup", type=float, default=4.0, help="seconds before it (%(default)s)")
    parser.add_argument("--cancel-every", type=float, default=0.0, help="seconds between cancels of a session")
    parser.add_argument("--url", help="a system elsewhere: no CPU is counted")
    add_ca_argument(parser)
    parser.add_argument("--home", type=Path, help="the home of the running system (.duologue)")
    parser.add_argument("--floor", action="store_true", help="run the bare server too and print the ratio")
    parser.add_argument("--json", action="store_true", help="for programs")


class Figures(msgspec.Struct):
    """One or several windows, as the table shows them."""

    name: str
    result: Result
    cpu_s: dict[str, float]

    def add(self, other: Figures) -> None:
        """A further window of the same."""
        self.result.go_on(other.result)
        self.cpu_s = {kind: used + other.cpu_s[kind] for kind, used in self.cpu_s.items()}

    @property
    def total_cpu_s(self) -> float:
        return sum(self.cpu_s.values())

    def per_session_ms(self, cpu_s: float) -> float:
        """CPU milliseconds for one second of one session."""
        return 1000 * cpu_s / self.result.steady_s / max(1, self.result.sessions)


def run(options: argparse.Namespace) -> int:
    if options.sessions < 1 or options.seconds <= 0 or options.rounds < 1:
        raise UserError("--sessions, --seconds and --rounds must be positive")
    workload = msgspec.structs.replace(WORKLOADS[options.model], cancel_every_s=options.cancel_every)
    with contextlib.ExitStack() as stack:
        url, state = stack.enter_context(_target(options, workload.model))
        groups = {kind: state.pids(kind) for kind in KINDS} if state else {}
        targets = [("duologue", f"{url}/v1/realtime?duplex=1", groups)]
        if options.floor:
            floor_url, pid = stack.enter_context(_floor(workload))
            targets.append(("floor", floor_url, {"floor": [pid]}))
        rounds = [
            [_measure(name, at, workload, CpuMeter(pids), options) for name, at, pids in targets]
            for _ in range(options.rounds)
        ]
    ratios = ratios_of(rounds)
    runs = rounds[0]
    for of_round in rounds[1:]:
        for figures, further in zip(runs, of_round, strict=True):
            figures.add(further)
    if options.json:
        print(msgspec.json.encode([_summary(figures) for figures in runs]).decode())
    else:
        _show(runs, workload, ratios)
    result = runs[0].result
    return 1 if result.errors or result.holes or result.disconnects else 0


def ratios_of(rounds: list[list[Figures]]) -> list[float]:
    """How many times the floor each round took. None of a round without a floor, of a system elsewhere, or of windows
    that are too short for the kernel to have counted anything."""
    pairs = [of_round for of_round in rounds if len(of_round) > 1 and all(one.total_cpu_s for one in of_round)]
    return [product.total_cpu_s / floor.total_cpu_s for product, floor in pairs]


@contextlib.contextmanager
def _target(options: argparse.Namespace, model: str) -> Iterator[tuple[str, SystemState | None]]:
    running = None if options.url else Home(options.home).read_state()
    trust(options.ca, running)
    if options.url:
        _answers(options.url)
        yield options.url.rstrip("/"), None
        return
    if running is not None:
        yield running.url, running
        return
    with temporary_system(model) as state:
        yield state.url, state


def _answers(url: str) -> None:
    """Raises UserError if nobody listens there: no figures come of that."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("ws", "wss") or not parts.hostname:
            raise UserError(f"--url: {url!r} is not a ws:// or wss:// address")
        port = parts.port or (443 if parts.scheme == "wss" else 80)
        socket.create_connection((parts.hostname, port), timeout=10).close()
    except (OSError, ValueError) as error:
        raise UserError(f"cannot connect to {url}: {error}") from None


@contextlib.contextmanager
def _floor(workload: Workload) -> Iterator[tuple[str, int]]:
    """The bare server's URL and process."""
    port = free_port()
    command = [sys.executable, "-m", "duologue.cli.bench.floor", "--port", str(port)]
    command += ["--appends", str(workload.appends_per_unit), "--audio-chars", str(workload.audio_chars)]
    server = subprocess.Popen(command)
    try:
        _wait_http(port)
        yield f"ws://127.0.0.1:{port}/v1/realtime", server.pid
    finally:
        server.terminate()
        server.wait(10)


def _wait_http(port: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, http.client.HTTPException):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1).close()
            return
        time.sleep(0.02)  # polling another process; there is nothing to wait on
    raise UserError("the floor server did not start")


def _measure(name: str, url: str, workload: Workload, meter: CpuMeter, options: argparse.Namespace) -> Figures:
    load = drive(
        url,
        workload,
        options.sessions,
        warmup_s=options.warmup,
        seconds=options.seconds,
        on_window=meter.window,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(load)
    return Figures(name, result, meter.used)


def _summary(figures: Figures) -> dict[str, object]:
    result = figures.result
    return {
        "name": figures.name,
        "sessions": result.sessions,
        "steady_s": result.steady_s,
        "unit_ms": {name: _ms(result.unit_latency, share) for name, share in SHARES},
        "cancel_ms": {name: _ms(result.cancel_latency, share) for name, share in SHARES},
        "units_sent": result.units_sent,
        "units_answered": result.units_answered,
        "holes": result.holes,
        "errors": result.errors[:5],
        "disconnects": result.disconnects,
        "cpu_s": figures.cpu_s,
        "cpu_total_s": figures.total_cpu_s,
    }


SHARES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


def _ms(values: list[float], share: float) -> float | None:
    value = percentile(values, share)
    return None if value is None else round(value * 1000, 2)


def _show(runs: list[Figures], workload: Workload, ratios: list[float]) -> None:
    first = runs[0].result
    title = f"{workload.model}: {first.sessions} sessions, units of {workload.unit_ms} ms, {first.steady_s:.0f} s"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for figures in runs:
        table.add_column(figures.name, justify="right")
    for name, share in SHARES:
        table.add_row(f"unit to audio, {name}, ms", *(_text(_ms(f.result.unit_latency, share)) for f in runs))
    for name, share in SHARES[:2]:
        table.add_row(f"cancel to done, {name}, ms", *(_text(_ms(f.result.cancel_latency, share)) for f in runs))
    table.add_row("units answered", *(f"{f.result.units_answered}/{f.result.units_sent}" for f in runs))
    table.add_row("holes in the numbers", *(str(f.result.holes) for f in runs))
    table.add_row("errors", *(str(len(f.result.errors)) for f in runs))
    table.add_row("lost connections", *(str(f.result.disconnects) for f in runs))
    for kind in (*KINDS, "floor"):
        if any(kind in f.cpu_s for f in runs):
            cells = (_text(f.per_session_ms(f.cpu_s[kind]) if kind in f.cpu_s else None) for f in runs)
            table.add_row(f"CPU {kind}, ms per session second", *cells)
    table.add_row("CPU in all, ms per session second", *(f"{f.per_session_ms(f.total_cpu_s):.2f}" for f in runs))
    console = Console()
    console.print(table)
    for error in first.errors[:3]:
        console.print(error, style="red", markup=False)
    if ratios:
        ratio = runs[0].total_cpu_s / runs[1].total_cpu_s
        each = f"; by rounds {', '.join(f'{one:.2f}' for one in ratios)}" if len(ratios) > 1 else ""
        console.print(
            f"CPU of all processes: {ratio:.2f} times the floor of the same run{each}", highlight=False, soft_wrap=True
        )


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
