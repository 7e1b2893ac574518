"""`python -m duologue.gateway --config FILE --id gateway-1 --port 8080`: one gateway.

Exit codes: 0 stopped as asked, 2 it cannot start as configured (one line says why), 3 another process has
taken this gateway's id over. SIGTERM drains for `[gateway] drain_s`; a second signal does not wait.
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
from typing import Final

from msgspec.structs import replace

from duologue.bus.errors import BusError
from duologue.bus.zmq import ZmqEndpoint
from duologue.gateway.fleet import Replaced
from duologue.gateway.process import (
    CannotStart,
    bind,
    check_exposure,
    endpoint_maker,
    granted_limits,
    make_store,
)
from duologue.gateway.service import GatewayService, serving
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
    options = _parser().parse_args(argv)
    try:
        settings = _overridden(load_settings(options.config), options)
        gateway = settings.gateway
        check_exposure(gateway)
        listening = bind(gateway.host, gateway.port)
    except (SettingsError, CannotStart) as error:
        return _cannot_start(str(error))
    configure_logs(gateway.id, settings.log.level, settings.log.format)
    with listening:
        return run_process(lambda: _run(settings, listening))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m duologue.gateway", description="One gateway.")
    parser.add_argument("--config", type=Path, help="the system's TOML file")
    parser.add_argument("--id", default="", help="what this gateway is called")
    parser.add_argument("--host", help="the address to listen on")
    parser.add_argument("--port", type=int, help="the port to listen on; 0: a free one")
    parser.add_argument("--insecure", action="store_true", help="listen without keys where others can connect")
    return parser


def _overridden(settings: SystemSettings, options: argparse.Namespace) -> SystemSettings:
    gateway = settings.gateway
    port = gateway.port if options.port is None else options.port
    if not 0 <= port <= 65535:
        raise CannotStart(f"--port {port}: a port is a number from 0 to 65535")
    changed = replace(
        gateway,
        id=options.id or gateway.id or f"gateway-{secrets.token_hex(3)}",
        host=options.host or gateway.host,
        port=port,
        insecure=options.insecure or gateway.insecure,
    )
    return replace(settings, gateway=changed)


async def _run(settings: SystemSettings, listening: socket.socket) -> int:
    """From the store's first answer to the last socket."""
    gateway = settings.gateway
    host, port = listening.getsockname()[:2]
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
                url=f"http://{host}:{port}",
            )
            await stack.enter_async_context(_measured(service, store.stats))
            await stack.enter_async_context(service.running())
        except StoreUnavailable as error:
            return _cannot_start(f"the store at [store] url does not answer: {error}")
        except BusError as error:
            return _cannot_start(str(error))
        await stack.enter_async_context(serving(service, listening))
        _log.info("listening on %s:%d", host, port)
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
            service.drain(service.gateway.settings.drain_s)
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
