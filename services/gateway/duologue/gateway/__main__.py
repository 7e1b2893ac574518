"""`python -m duologue.gateway --config FILE --id gateway-1 --port 8080`: one gateway.

Exit codes: 0 stopped as asked, 2 it cannot start as configured (one line says why), 3 another process has
taken this gateway's id over. SIGTERM drains for `[gateway] drain_s`; a second signal does not wait.
Several on one port (`--reuse-port`) are started and watched by `duologue gateway --workers`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import secrets
import socket
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from duologue.bus.errors import BusError
from duologue.bus.zmq import ZmqEndpoint
from duologue.gateway.certificate import Certificate, certificate_of
from duologue.gateway.fleet import Replaced
from duologue.gateway.listening import address_of, bind, serving
from duologue.gateway.process import (
    CannotStart,
    check_exposure,
    endpoint_maker,
    granted_limits,
    make_store,
)
from duologue.gateway.service import GatewayService
from duologue.runtime import metrics
from duologue.runtime.bus_metrics import BusCollector
from duologue.runtime.incarnation import process_incarnation
from duologue.runtime.logs import configure_logs
from duologue.runtime.loop_lag import LoopLagProbe
from duologue.runtime.settings import SystemSettings, load_settings
from duologue.runtime.settings_reading import SettingsError
from duologue.runtime.signals import StopSignals
from duologue.runtime.startup import freeze_gc, run_process
from duologue.runtime.store_metrics import StoreCollector
from duologue.store.ports import StoreUnavailable
from duologue.store.stats import StoreStats

_log = logging.getLogger("duologue.gateway")

CANNOT_START: Final = 2
REPLACED: Final = 3


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m duologue.gateway", description="One gateway.")
    add_arguments(parser)
    parser.add_argument("--reuse-port", action="store_true", help="share the port with other gateways")
    options = parser.parse_args(argv)
    return serve(options, reuse_port=options.reuse_port)


def serve(options: argparse.Namespace, *, reuse_port: bool = False) -> int:
    """One gateway, with the options of `add_arguments`, until it is stopped. The exit code."""
    try:
        settings = overridden(load_settings(options.config), options)
        gateway = settings.gateway
        check_exposure(gateway)
        tls = certificate_of(gateway.tls_cert, gateway.tls_key)
        with contextlib.ExitStack() as sockets:
            clients = sockets.enter_context(bind(gateway.host, gateway.port, reuse_port=reuse_port))
            operator = None
            if gateway.metrics_port or reuse_port or tls is not None:
                operator = sockets.enter_context(bind(settings.bus.host or "127.0.0.1", gateway.metrics_port))
            configure_logs(gateway.id, settings.log.level, settings.log.format)
            ports = _Ports(clients, operator, tls, reuse_port)
            return run_process(lambda: _run(settings, ports))
    except (SettingsError, CannotStart) as error:
        return _cannot_start(str(error))


class _Ports(NamedTuple):
    """What it listens on."""

    clients: socket.socket
    operator: socket.socket | None
    tls: Certificate | None
    reuse_port: bool

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://{address_of(self.clients)}"

    def metrics_url(self, advertise: str) -> str:
        if self.operator is None:
            return ""
        port = self.operator.getsockname()[1]
        return f"http://{f'{advertise}:{port}' if advertise else address_of(self.operator)}/metrics"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What may be said of one gateway on a command line; it wins over the settings."""
    parser.add_argument("--config", type=Path, help="the system's TOML file")
    parser.add_argument("--id", default="", help="what this gateway is called")
    parser.add_argument("--host", help="the address to listen on")
    parser.add_argument("--port", type=int, help="the port to listen on; 0: a free one")
    parser.add_argument("--metrics-port", type=int, help="where this process alone answers its operator")
    parser.add_argument("--insecure", action="store_true", help="listen without keys where others can connect")
    parser.add_argument("--tls-cert", help="certificate chain (PEM): speak https and wss")
    parser.add_argument("--tls-key", help="the private key of --tls-cert (PEM)")


def overridden(settings: SystemSettings, options: argparse.Namespace) -> SystemSettings:
    """The settings under the command line. Raises `CannotStart`."""
    gateway = settings.gateway
    port = gateway.port if options.port is None else options.port
    metrics_port = gateway.metrics_port if options.metrics_port is None else options.metrics_port
    for name, number in (("--port", port), ("--metrics-port", metrics_port)):
        if not 0 <= number <= 65535:
            raise CannotStart(f"{name} {number}: a port is a number from 0 to 65535")
    try:
        changed = replace(
            gateway,
            id=options.id or gateway.id or f"gateway-{secrets.token_hex(3)}",
            host=options.host or gateway.host,
            port=port,
            metrics_port=metrics_port,
            insecure=options.insecure or gateway.insecure,
            tls_cert=options.tls_cert or gateway.tls_cert,
            tls_key=options.tls_key or gateway.tls_key,
        )
    except ValueError as error:
        raise CannotStart(f"[gateway] {error}") from None
    return replace(settings, gateway=changed)


async def _run(settings: SystemSettings, ports: _Ports) -> int:
    """From the store's first answer to the last socket."""
    gateway = settings.gateway
    try:
        store = make_store(settings)
    except CannotStart as error:
        return _cannot_start(str(error))
    incarnation = process_incarnation()
    async with contextlib.AsyncExitStack() as stack:
        try:
            stack.push_async_callback(store.close)
            await store.open()
            service = GatewayService(
                gateway,
                store,
                endpoint_maker(settings.bus, gateway.id, incarnation),
                name=gateway.id,
                incarnation=incarnation,
                limits=granted_limits(settings),
                url=ports.url,
                metrics_url=ports.metrics_url(settings.bus.advertise),
            )
            await stack.enter_async_context(_measured(service, store.stats))
            await stack.enter_async_context(service.running())
        except StoreUnavailable as error:
            return _cannot_start(f"the store at [store] url does not answer: {error}")
        except BusError as error:
            return _cannot_start(str(error))
        tls = None if ports.tls is None else ports.tls.context
        listening = serving(service, ports.clients, operator=ports.operator, tls=tls, reuse_port=ports.reuse_port)
        await stack.enter_async_context(listening)
        if ports.tls is not None:
            await stack.enter_async_context(ports.tls.watched())
        _log.info("listening at %s", ports.url)
        if service.metrics_url:
            _log.info("metrics at %s", service.metrics_url)
        freeze_gc()
        return await _until_stopped(service)


async def _until_stopped(service: GatewayService) -> int:
    async with StopSignals() as stop:
        asked = asyncio.create_task(stop.wait())
        ended = asyncio.create_task(service.failed.wait())
        try:
            await asyncio.wait((asked, ended), return_when=asyncio.FIRST_COMPLETED)
            if service.failure is not None:
                _log.error("%s", service.failure)
                return REPLACED if isinstance(service.failure, Replaced) else 1
            service.drain(service.gateway.settings.drain_s, with_all=True)
            await service.drained.wait()
        finally:
            asked.cancel()
            ended.cancel()
    return 0


@contextlib.asynccontextmanager
async def _measured(service: GatewayService, store: StoreStats) -> AsyncGenerator[None, None]:
    """What this process tells of itself."""
    metrics.PROCESS_UP_SINCE.set_to_current_time()
    metrics.PROCESS_INFO.labels("gateway", service.name, service.incarnation).set(1)
    probe = LoopLagProbe(metrics.PROCESS_LOOP_LAG.observe, on_stall=_stalled)
    endpoint = service.endpoint
    assert isinstance(endpoint, ZmqEndpoint)
    gateway = service.gateway
    collectors = BusCollector(endpoint.stats), StoreCollector(store, gateway.pumps, gateway.breaker)
    probe.start()
    try:
        yield
    finally:
        probe.stop()
        for collector in collectors:
            collector.close()


def _stalled(lag_s: float) -> None:
    metrics.PROCESS_STALLS.inc()
    _log.warning("the event loop stood still for %.1f s", lag_s)


def _cannot_start(why: str) -> int:
    print(f"gateway: {why}", file=sys.stderr)  # noqa: T201
    return CANNOT_START


if __name__ == "__main__":
    sys.exit(main())
