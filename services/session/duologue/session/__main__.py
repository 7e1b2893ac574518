"""`python -m duologue.session --config FILE --id shard-1`: one session shard.

Exit codes: 0 stopped as asked, 2 it cannot start as configured (one line says why), 3 another process has
taken this shard's id over.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from duologue.bus.errors import BusError
from duologue.model.pipeline import PipelineError
from duologue.runtime import metrics
from duologue.runtime.bus_metrics import BusCollector
from duologue.runtime.exposition import ExpositionServer
from duologue.runtime.health import Readiness
from duologue.runtime.logs import configure_logs
from duologue.runtime.loop_lag import LoopLagProbe
from duologue.runtime.settings import SystemSettings, load_settings
from duologue.runtime.settings_reading import SettingsError
from duologue.runtime.signals import StopSignals
from duologue.runtime.startup import freeze_gc, run_process
from duologue.runtime.store_metrics import StoreCollector
from duologue.session.membership import Replaced
from duologue.session.meters import Meters
from duologue.session.process import build_shard
from duologue.session.shard import Shard
from duologue.store.ports import StoreUnavailable
from duologue.store.redis import RedisStore

_log = logging.getLogger("duologue.session")

CANNOT_START: Final = 2
REPLACED: Final = 3


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m duologue.session", description="One session shard.")
    parser.add_argument("--config", type=Path, help="the system's TOML file")
    parser.add_argument("--id", default="", help="what this shard is called")
    parser.add_argument("--record", type=Path, metavar="DIR", help="record every session there, for replay")
    parser.add_argument("--standby", action="store_true", help="take new sessions only when no other shard does")
    options = parser.parse_args(argv)
    try:
        settings = load_settings(options.config)
        if options.standby:
            session = msgspec.structs.replace(settings.session, standby=True)
            settings = msgspec.structs.replace(settings, session=session)
        shard = build_shard(settings, id=options.id, record_to=options.record)
    except (SettingsError, PipelineError, BusError, OSError) as error:
        return _cannot_start(str(error))
    configure_logs(shard.options.id, settings.log.level, settings.log.format)
    return run_process(lambda: _serve(shard, settings))


async def _serve(shard: Shard, settings: SystemSettings) -> int:
    async with StopSignals() as stop:
        try:
            await shard.start()
        except StoreUnavailable as error:
            return _cannot_start(f"the store ([store] url) does not answer: {error}")
        except BusError as error:
            return _cannot_start(str(error))
        freeze_gc()
        try:
            async with _observed(shard, settings):
                await shard.run(stop.wait())
        except OSError as error:
            return _cannot_start(f"[session] metrics_port {settings.session.metrics_port}: {error.strerror}")
        except Replaced as error:
            _log.error("%s", error)
            return REPLACED
        finally:
            await shard.stop()
    return 0


@asynccontextmanager
async def _observed(shard: Shard, settings: SystemSettings) -> AsyncIterator[None]:
    """Metrics, health and the loop's lag, while it runs. Raises `OSError` if the port cannot be had."""
    readiness = Readiness()
    readiness.add_probe("shard", shard.not_ready_because)
    operator = shard.operator
    server = ExpositionServer(readiness, Meters(shard).render, shard.drain, operator.answer, token=operator.token)
    host, port = await server.start(settings.bus.host or "127.0.0.1", settings.session.metrics_port)
    shard.metrics_url = f"http://{settings.bus.advertise or host}:{port}/metrics"
    _log.info("metrics at %s", shard.metrics_url)
    collectors: list[BusCollector | StoreCollector] = [BusCollector(shard.endpoint.stats)]
    if isinstance(shard.store, RedisStore):
        collectors.append(StoreCollector(shard.store.stats, shard.detacher.pumps, shard.detacher.breaker))
    probe = LoopLagProbe(metrics.PROCESS_LOOP_LAG.observe, on_stall=_stalled)
    probe.start()
    try:
        yield
    finally:
        probe.stop()
        for collector in collectors:
            collector.close()
        await server.close()


def _stalled(lag_s: float) -> None:
    metrics.PROCESS_STALLS.inc()
    _log.warning("the event loop stood still for %.1f s", lag_s)


def _cannot_start(why: str) -> int:
    print(f"session shard: {why}", file=sys.stderr)  # noqa: T201
    return CANNOT_START


if __name__ == "__main__":
    sys.exit(main())
