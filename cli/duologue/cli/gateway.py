"""`duologue gateway`: one gateway of a system whose other parts run elsewhere, or `--workers` of them on one port.

Each worker is a complete gateway: an id, links and an operator's port of its own. The kernel deals connections
out among them (SO_REUSEPORT). This process only watches: it starts them, starts those that end by themselves
again, and stops all. Nothing outlives it: see `supervisor.child`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator, Sequence

import httpx

from duologue.cli.errors import UserError
from duologue.cli.store_address import store_at
from duologue.cli.supervisor.child import ChildSpec
from duologue.cli.supervisor.gateways import all_ready, gateway_specs
from duologue.cli.supervisor.supervisor import Supervisor
from duologue.gateway.__main__ import add_arguments as add_gateway_arguments
from duologue.gateway.__main__ import overridden, serve
from duologue.gateway.process import CannotStart, check_exposure
from duologue.gateway.tls import server_context
from duologue.runtime.logs import configure_logs
from duologue.runtime.settings import GatewaySettings, SystemSettings, load_settings
from duologue.runtime.settings_reading import PREFIX, SettingsError
from duologue.runtime.signals import StopSignals

_log = logging.getLogger("duologue.gateway")

END_S = 10.0
"""What a gateway may take to end after its drain."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_gateway_arguments(parser)
    parser.add_argument("--workers", type=int, help="gateways that share the port ([supervisor] gateway_workers: 1)")


def run(options: argparse.Namespace) -> int:
    try:
        settings = overridden(load_settings(options.config), options)
        check_exposure(settings.gateway)
        server_context(settings.gateway.tls_cert, settings.gateway.tls_key)
    except (SettingsError, CannotStart) as error:
        raise UserError(str(error)) from None
    workers = settings.supervisor.gateway_workers if options.workers is None else options.workers
    if workers < 1:
        raise UserError(f"--workers {workers}: at least one")
    if workers == 1:
        return serve(options)
    name = options.id or settings.gateway.id or f"gateway-{secrets.token_hex(3)}"
    configure_logs(name, settings.log.level, settings.log.format)
    with reserved(settings.gateway.host, settings.gateway.port) as port:
        specs = worker_specs(options, settings, [f"{name}-{n}" for n in range(1, workers + 1)], port)
        return asyncio.run(_Workers(settings, specs).run())


def worker_specs(
    options: argparse.Namespace, settings: SystemSettings, ids: Sequence[str], port: int
) -> list[ChildSpec]:
    """The workers with what this command was told. Settings of the environment are theirs as well."""
    given = {"--config": options.config, "--host": options.host}
    given |= {"--tls-cert": options.tls_cert, "--tls-key": options.tls_key}
    arguments = [part for name, value in given.items() if value for part in (name, str(value))]
    if options.insecure:
        arguments.append("--insecure")
    env = {name: value for name, value in os.environ.items() if name.startswith(PREFIX) and "__" in name}
    if settings.log.format == "auto" and sys.stderr.isatty():
        env[f"{PREFIX}LOG__FORMAT"] = "text"  # a worker writes to a pipe: it is told that a person reads
    return gateway_specs(port, ids, arguments, metrics_port=settings.gateway.metrics_port, env=env)


@contextlib.contextmanager
def reserved(host: str, port: int) -> Iterator[int]:
    """The port for the workers alone. Raises UserError if anybody listens there: sharing would be silent."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
        with socket.socket(family, kind, protocol) as held:  # bound and not listening: it is dealt no connection
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind(address)
            yield int(held.getsockname()[1])
    except OSError as error:
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from None


class _Workers:
    """Watched until a signal; a second one does not wait, and the kernel ends the workers."""

    def __init__(self, settings: SystemSettings, specs: Sequence[ChildSpec]) -> None:
        self._settings, self._specs = settings, specs
        self._supervisor = Supervisor(_say)

    async def run(self) -> int:
        gateway = self._settings.gateway
        async with StopSignals() as stop:
            try:
                self._supervisor.start(self._specs)
                started = asyncio.create_task(self._started(gateway))
                asked = asyncio.create_task(stop.wait())
                try:
                    await asyncio.wait((started, asked), return_when=asyncio.FIRST_COMPLETED)
                    if started.done():
                        started.result()
                    await asked
                finally:
                    started.cancel()
                    asked.cancel()
                _log.info("stopping %d workers", len(self._specs))
            finally:
                await self._supervisor.stop(gateway.drain_s + END_S)
        return 0

    async def _started(self, gateway: GatewaySettings) -> None:
        """Until all say that they are ready. Raises UserError when one says that it never will be."""
        began = time.monotonic()
        store = store_at(self._settings.store.url, self._settings.store.journal_url)
        ids = [spec.name for spec in self._specs]
        try:
            async with httpx.AsyncClient(timeout=2.0, trust_env=False) as client:
                while not await all_ready(client, store.registry, ids):
                    for child in self._supervisor.exited_early():
                        raise UserError(f"{child.spec.name} cannot run; its last line above says why")
                    await asyncio.sleep(0.1)  # polling other processes; there is nothing to wait on
        finally:
            await store.close()
        _log.info("%d workers are ready after %.1f s", len(ids), time.monotonic() - began)


def _say(name: str, line: str) -> None:
    """A worker's line is a log line with its name in it already; what is said of one is a line of ours."""
    if name == "duologue":
        _log.info("%s", line)
    else:
        print(line, file=sys.stderr, flush=True)
