"""`duologue up`: the whole system on this machine, until it is told to stop.

Order: the store, then workers and shards, then gateways; ready when `GET /readyz` of each
answers 200. It stops in the opposite order. Nothing outlives it: see `supervisor.child`.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import errno
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import msgspec
from rich.console import Console

from duologue.cli.errors import UserError
from duologue.cli.home import Home, ProcessState, SystemState
from duologue.cli.store_address import shown, store_at
from duologue.cli.supervisor.child import Child
from duologue.cli.supervisor.gateways import all_ready
from duologue.cli.supervisor.obituaries import Obituaries
from duologue.cli.supervisor.plan import SystemPlan, plan_system, standby_by_default, usable_cpus, write_config
from duologue.cli.supervisor.supervisor import Supervisor
from duologue.gateway.process import CannotStart, check_exposure
from duologue.gateway.tls import server_context
from duologue.runtime.settings import StoreSettings, SystemSettings, load_document, settings_from
from duologue.runtime.settings_reading import SettingsError
from duologue.store.ports import StoreUnavailable

READY_S = 120.0
STYLES = {"gateway": "green", "shard": "cyan", "worker": "magenta", "store": "blue"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, help="settings (TOML); see docs/operations.md")
    parser.add_argument("--home", type=Path, help="where data and sockets are kept (.duologue)")
    parser.add_argument("--host", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (8080)")
    parser.add_argument("--redis-url", help="use this Redis instead of the embedded Valkey")
    parser.add_argument("--pipelines", help="models to serve, with commas: names or TOML files")
    parser.add_argument("--gateways", type=int, help="gateways, on ports from --port on (1)")
    parser.add_argument("--gateway-workers", type=int, help="processes that share the port of a gateway (1)")
    parser.add_argument("--shards", type=int, help="session shards (2)")
    parser.add_argument(
        "--standby",
        type=int,
        help="of these, take new sessions only when the others take none (0; where neither is given, 1 on few CPUs)",
    )
    parser.add_argument("--ready-s", type=float, default=READY_S, help="how long everything may take to start (120)")
    parser.add_argument("--insecure", action="store_true", help="serve without keys on an open address")
    parser.add_argument("--tls", action="store_true", help="speak https and wss, with a certificate made here")
    parser.add_argument("--tls-cert", help="speak https and wss with this certificate chain (PEM)")
    parser.add_argument("--tls-key", help="the private key of --tls-cert (PEM)")


def run(options: argparse.Namespace) -> int:
    settings = effective_settings(options)
    home = Home(options.home)
    try:
        check_exposure(settings.gateway)
        server_context(settings.gateway.tls_cert, settings.gateway.tls_key)
    except CannotStart as error:
        raise UserError(str(error)) from None
    _ports_are_free(settings)
    home.take()
    told = options.redis_url or "DUOLOGUE_STORE__URL" in os.environ
    embedded = not told and settings.store.url == StoreSettings().url
    try:
        settings, ca = with_certificate(settings, home)
        return asyncio.run(_System(settings, home, embedded=embedded, ca=ca, ready_s=options.ready_s).run())
    finally:
        home.leave()


def with_certificate(settings: SystemSettings, home: Home) -> tuple[SystemSettings, str]:
    """With `[supervisor] tls` and no certificate of one's own: the home's, and the path of its authority."""
    if not settings.supervisor.tls or settings.gateway.tls_cert:
        return settings, ""
    try:
        from duologue.cli.certificates import local_certificate, names_for
    except ImportError as error:
        raise UserError(f"--tls needs the package cryptography: {error}") from None
    files = local_certificate(home.tls_dir, names_for(settings.gateway.host), datetime.datetime.now(datetime.UTC))
    gateway = msgspec.structs.replace(settings.gateway, tls_cert=str(files.cert), tls_key=str(files.key))
    return msgspec.structs.replace(settings, gateway=gateway), str(files.ca)


def effective_settings(options: argparse.Namespace, cpus: int = 0) -> SystemSettings:
    """The file and the environment under the command line. `cpus`: for those that there are. Raises UserError."""
    try:
        document = load_document(options.config)
    except SettingsError as error:
        raise UserError(str(error)) from None
    given = {
        "gateway": ("host", "port", "insecure", "tls_cert", "tls_key"),
        "supervisor": ("gateways", "gateway_workers", "shards", "standby", "tls"),
    }
    for section, keys in given.items():
        # False is a flag that was not given: the settings may have set it.
        document[section] = document.get(section, {}) | {
            key: value for key in keys if (value := getattr(options, key)) is not None and value is not False
        }
    if not document["supervisor"].keys() & {"shards", "standby"}:
        document["supervisor"]["standby"] = standby_by_default(cpus or usable_cpus())
    if options.redis_url:
        document["store"] = document.get("store", {}) | {"url": options.redis_url}
    if options.pipelines:
        document["pipelines"] = list(dict.fromkeys(options.pipelines.split(",")))
    try:
        return settings_from(document, "command line")
    except SettingsError as error:
        raise UserError(str(error)) from None


def _ports_are_free(settings: SystemSettings) -> None:
    for n in range(settings.supervisor.gateways):
        port = settings.gateway.port + n
        if not 0 < port <= 65_535:
            raise UserError(f"there is no port {port} to serve at; each gateway takes the next one from --port on")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((settings.gateway.host, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise UserError(
                        f"port {port} is in use; stop what listens there, or choose another --port"
                    ) from None
                raise UserError(f"cannot listen on {settings.gateway.host}:{port}: {error.strerror}") from None


class _System:
    def __init__(
        self, settings: SystemSettings, home: Home, *, embedded: bool, ca: str = "", ready_s: float = READY_S
    ) -> None:
        self._home, self._embedded, self._ca, self._ready_s = home, embedded, ca, ready_s
        self._console = Console(highlight=False, soft_wrap=True)
        self._obituaries = Obituaries(lambda: store_at(self.settings.store.url, self.settings.store.journal_url))
        self._stop = asyncio.Event()
        self._news = asyncio.Event()
        """Set when a process has started or ended, and with `_stop`: nothing else wakes a system that is up."""
        self._supervisor = Supervisor(self._say, self._obituaries.tell, self._news.set)
        replace = msgspec.structs.replace
        url = f"unix://{home.store_socket}" if embedded else settings.store.url
        bus = replace(settings.bus, socket_dir=settings.bus.socket_dir or str(home.socket_dir))
        # A child writes to a pipe, which is no terminal: it is told that a person reads.
        log = replace(settings.log, format="text") if settings.log.format == "auto" else settings.log
        # Who drains has to be through before the supervisor's patience ends, or its clients get no close frame.
        # Gateways and then shards do, one after the other; and nobody is left here whom a client could go to.
        most_s = settings.supervisor.stop_s / 4
        drains = {
            "gateway": replace(settings.gateway, drain_s=min(settings.gateway.drain_s, most_s)),
            # Which shard is on standby is told to each: one key of the file they share cannot.
            "session": replace(settings.session, drain_s=min(settings.session.drain_s, most_s), standby=False),
            # Nobody has a session in a worker once the shards are gone: only one that ends by itself waits.
            "stages": replace(settings.stages, drain_s=min(settings.stages.drain_s, settings.supervisor.stop_s / 2)),
        }
        self.settings = replace(settings, store=replace(settings.store, url=url), bus=bus, log=log, **drains)
        self._config = home.run_dir / "duologue.toml"

    def url(self, scheme: str) -> str:
        """Where clients on this machine find the system; `scheme` http or ws."""
        gateway = self.settings.gateway
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(gateway.host, gateway.host)
        secure = "s" if gateway.tls_cert else ""
        return f"{scheme}{secure}://{f'[{host}]' if ':' in host else host}:{gateway.port}"

    async def run(self) -> int:
        write_config(self.settings, self._config)
        plan = plan_system(self.settings, self._home, self._config, embedded=self._embedded)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._end)
        started = time.monotonic()
        try:
            await self._start(plan)
            await self._until_ready(started, [spec.name for spec in plan.gateways])
            while not self._stop.is_set():
                self._news.clear()
                self._write_state()
                await self._news.wait()
            self._say("duologue", "stopping")
        finally:
            await self._supervisor.stop(self.settings.supervisor.stop_s)
            await self._obituaries.settle()
        return 0

    def _end(self) -> None:
        self._stop.set()
        self._news.set()

    async def _start(self, plan: SystemPlan) -> None:
        self._supervisor.start(plan.store)
        await self._store_answers()
        # Groups of their own: a shard stops while its workers still answer it.
        for group in (plan.workers, plan.shards, plan.gateways):
            self._supervisor.start(group)
        self._write_state()

    async def _store_answers(self) -> None:
        deadline = time.monotonic() + (10.0 if self._embedded else 2.0)
        while not self._stop.is_set():
            store = store_at(self.settings.store.url, self.settings.store.journal_url)
            try:
                await store.open()
                return
            except StoreUnavailable as error:
                if time.monotonic() > deadline:
                    where = "the embedded Valkey" if self._embedded else shown(self.settings.store.url)
                    raise UserError(f"the store at {where} does not answer: {error}") from None
                await self._wait(0.02)
            finally:
                await store.close()

    async def _until_ready(self, started: float, gateways: Sequence[str]) -> None:
        store = store_at(self.settings.store.url, self.settings.store.journal_url)
        try:
            async with httpx.AsyncClient(timeout=2.0, trust_env=False) as client:
                while not self._stop.is_set():
                    self._fail_if_useless()
                    self._write_state()
                    if time.monotonic() - started > self._ready_s:
                        raise UserError(
                            f"not ready after {self._ready_s:g} s (--ready-s); the log above says what is missing"
                        )
                    if await all_ready(client, store.registry, gateways):
                        return self._say_ready(time.monotonic() - started)
                    await self._wait(0.1)
        finally:
            await store.close()

    def _say_ready(self, seconds: float) -> None:
        models = ", ".join(self.settings.pipelines)
        self._say("duologue", f"ready after {seconds:.1f} s at {self.url('http')} with {models}; Ctrl-C stops it")
        if self._ca:
            self._say("duologue", f"clients trust it with SSL_CERT_FILE={self._ca} (Node: NODE_EXTRA_CA_CERTS)")

    def _fail_if_useless(self) -> None:
        """A process that ends with code 2 has said what a person must mend: starting it again is no use."""
        for child in self._supervisor.exited_early():
            raise UserError(f"{child.spec.name} cannot run; its last line above says why")

    async def _wait(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return

    def _write_state(self) -> None:
        processes = tuple(_state_of(child) for child in self._supervisor.children if child.pid)
        state = SystemState(os.getpid(), self.url("ws"), self.settings.store.url, processes, self._ca)
        self._home.write_state(state)

    def _say(self, name: str, line: str) -> None:
        kind = next((child.spec.kind for child in self._supervisor.children if child.spec.name == name), "")
        self._console.print(f"[{STYLES.get(kind, 'bold')}]{name:>22}[/] ", end="")
        self._console.print(line, markup=False)
        sys.stdout.flush()


def _state_of(child: Child) -> ProcessState:
    assert child.pid is not None
    return ProcessState(child.spec.name, child.spec.kind, child.pid, child.restarts)
