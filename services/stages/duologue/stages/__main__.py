"""`python -m duologue.stages --worker GROUP [--id ID] [--config FILE] [--pipelines a,b]`: one stage worker.

SIGTERM drains it for `[stages] drain_s`; a second signal does not wait. What a user can mend is one line and exit
code 2. A worker that hung ends with 75, one whose id was taken over with 3; a supervisor starts them again.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from duologue.bus.configured import listening_endpoint
from duologue.bus.errors import BusError
from duologue.bus.zmq import ZmqEndpoint
from duologue.model.catalog import find_pipeline
from duologue.model.pipeline import PipelineError, PipelineSpec
from duologue.runtime.bus_metrics import BusCollector
from duologue.runtime.exposition import ExpositionServer
from duologue.runtime.health import Readiness
from duologue.runtime.incarnation import process_incarnation
from duologue.runtime.logs import configure_logs
from duologue.runtime.loop_lag import LoopLagProbe
from duologue.runtime.metric_registry import render
from duologue.runtime.metrics import PROCESS_INFO, PROCESS_LOOP_LAG, PROCESS_STALLS, PROCESS_UP_SINCE
from duologue.runtime.processes import die_with_parent
from duologue.runtime.settings import SystemSettings, load_settings
from duologue.runtime.settings_reading import SettingsError
from duologue.runtime.signals import StopSignals
from duologue.runtime.startup import run_process
from duologue.stages.loading import stages_of
from duologue.stages.process import WorkerOptions, WorkerProcess
from duologue.store.ports import StoreUnavailable
from duologue.store.redis import RedisRunner
from duologue.store.registrations import ScriptedRegistry

_log = logging.getLogger("duologue.stages")
_SHOWN = ("worker", "bus", "process")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = _parser().parse_args(arguments)
    try:
        settings = load_settings(options.config)
        names = options.pipelines.split(",") if options.pipelines else None
        pipelines = [find_pipeline(name) for name in names or settings.stages.pipelines or settings.pipelines]
        stages_of(pipelines, options.worker)
    except (SettingsError, PipelineError) as error:
        return _refuse(str(error))
    id = options.id or settings.stages.id or f"worker-{options.worker}-{process_incarnation()[:6]}"
    configure_logs(id, settings.log.level, settings.log.format)
    return run_process(lambda: _serve(settings, id, options.worker, pipelines))


async def _serve(settings: SystemSettings, id: str, group: str, pipelines: Sequence[PipelineSpec]) -> int:
    try:
        store = RedisRunner(settings.store.url, timeout_s=settings.store.timeout_s)
    except ValueError as error:
        return _refuse(f"[store] url: {error}")
    process = WorkerProcess(
        WorkerOptions(
            id=id,
            group=group,
            orphan_s=settings.stages.orphan_slots_s,
            max_kept_bytes=settings.stages.pending_output_bytes,
            expiry_s=settings.bus.expiry_s,
            drain_s=settings.stages.drain_s,
            max_export_bytes=settings.stages.max_export_bytes,
        ),
        pipelines,
        registry=ScriptedRegistry(store),
        make_endpoint=partial(listening_endpoint, settings.bus),
    )
    readiness = Readiness("registered")
    readiness.add_probe("drain", lambda: "it is being drained" if process.worker.draining_s >= 0 else "")
    exposition = ExpositionServer(
        readiness, lambda: _metrics(process), process.worker.drain, token=process.operator_token
    )
    try:
        async with StopSignals() as stop:
            await process.start()
            host, port = await exposition.start(settings.bus.host or "127.0.0.1", settings.stages.metrics_port)
            process.metrics_url = f"http://{settings.bus.advertise or host}:{port}/metrics"
            readiness.meet("registered")
            return await _until_stopped(process, stop)
    except StoreUnavailable as error:
        return _refuse(f"the store ([store] url) does not answer: {error}")
    except (PipelineError, BusError, OSError) as error:
        return _refuse(str(error))
    except ImportError as error:
        return _refuse(f"worker {group} needs a package that is not installed: {error}")
    finally:
        await exposition.close()
        await store.close()


async def _until_stopped(process: WorkerProcess, stop: StopSignals) -> int:
    collector = BusCollector(process.endpoint.stats) if isinstance(process.endpoint, ZmqEndpoint) else None
    probe = LoopLagProbe(PROCESS_LOOP_LAG.observe, on_stall=lambda lag_s: PROCESS_STALLS.inc())
    PROCESS_UP_SINCE.set_to_current_time()
    PROCESS_INFO.labels("worker", process.options.id, process.incarnation).set(1)
    probe.start()
    try:
        code = await process.run(stop)
        await process.stop(code)
        return code
    finally:
        probe.stop()
        if collector is not None:
            collector.close()


def _metrics(process: WorkerProcess) -> bytes:
    process.worker.show()
    return render(_SHOWN)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m duologue.stages", description="One stage worker.")
    parser.add_argument("--config", type=Path, help="the settings file (TOML)")
    parser.add_argument("--id", default="", help="the name of this worker in the fleet")
    parser.add_argument("--worker", required=True, help="the worker group of the pipelines to run")
    parser.add_argument("--pipelines", default="", help="names or paths, with commas; default: the settings'")
    return parser


def _refuse(why: str) -> int:
    sys.stderr.write(f"duologue stage worker: {why}\n")
    return 2


if __name__ == "__mp_main__":
    # A process that a library of the model made (`multiprocessing` imports this again): it must not outlive the worker.
    die_with_parent(os.getppid())
if __name__ == "__main__":
    sys.exit(main())
