"""A shard built from the settings of the system: which store, which bus address, which limits.

Everything a configuration can have wrong is found here, before anything runs.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from duologue.bus.configured import listening_endpoint
from duologue.model.catalog import find_pipeline
from duologue.runtime.incarnation import process_incarnation
from duologue.runtime.settings import MIB, SessionSettings, StoreSettings, SystemSettings
from duologue.runtime.settings_reading import SettingsError
from duologue.session.core.ears import run_offload
from duologue.session.core.limits import SessionLimits
from duologue.session.core.machine import DuplexSessionMachine
from duologue.session.detector import SpeechDetector, installed
from duologue.session.pipelines import load_served
from duologue.session.shard import Shard, ShardOptions
from duologue.store.journals import JournalLimits
from duologue.store.memory_budget import MemoryShares
from duologue.store.redis import RedisStore


def build_shard(settings: SystemSettings, *, id: str = "", record_to: Path | None = None) -> Shard:
    """Nothing is opened yet. Raises PipelineError, BusError, SettingsError, OSError."""
    name = id or settings.session.id or f"shard-{process_incarnation()[:6]}"
    session = settings.session
    return Shard(
        options_of(settings, name, record_to=record_to),
        pipelines=load_served([find_pipeline(pipeline) for pipeline in settings.pipelines]),
        store=_store(settings.store),
        make_endpoint=partial(listening_endpoint, settings.bus),
        open_machine=DuplexSessionMachine.open,
        offload_job=run_offload,
        detector=_detector(session),
    )


def _detector(session: SessionSettings) -> SpeechDetector | None:
    try:
        return installed(session.voice_model, session.turn_model, session.detector_frames)
    except OSError as error:
        raise SettingsError(f"[session] voice_model or turn_model: {error}") from None


def _store(store: StoreSettings) -> RedisStore:
    limits = JournalLimits(ttl_s=store.session_ttl_s, max_bytes=store.journal_max_bytes, max_age_s=store.journal_ttl_s)
    shares = MemoryShares(store.memory_budget_mb * MIB, store.memory_trim_from, store.memory_refuse_from)
    try:
        return RedisStore(
            store.url,
            store.journal_url,
            limits=limits,
            session_ttl_s=store.session_ttl_s,
            timeout_s=store.timeout_s,
            replicas=store.replicas,
            shares=shares,
        )
    except ValueError as error:
        raise SettingsError(f"[store] url or journal_url: {error}") from None


def options_of(settings: SystemSettings, id: str, *, record_to: Path | None = None) -> ShardOptions:
    session = settings.session
    return ShardOptions(
        id=id,
        max_sessions=session.max_sessions,
        limits=limits_of(settings),
        mailbox=session.mailbox,
        offload_threads=session.offload_threads,
        reaper_interval_s=session.reaper_interval_s,
        beat_s=settings.bus.heartbeat_s,
        expiry_s=settings.bus.expiry_s,
        record_to=record_to,
        usage=settings.usage,
        standby=session.standby,
        shutdown_s=session.drain_s,
    )


def limits_of(settings: SystemSettings) -> SessionLimits:
    session = settings.session
    return SessionLimits(
        idle_ttl_s=session.idle_ttl_s,
        disconnect_grace_s=session.disconnect_grace_s,
        max_session_s=session.max_session_s,
        max_pending_input_bytes=session.max_pending_input_bytes,
        max_input_age_s=session.max_input_age_s,
        max_pending_turns=session.max_pending_turns,
        max_output_bytes=session.max_output_bytes,
        max_output_events=session.max_output_events,
        overflow_policy=session.overflow_policy,
        tool_timeout_s=session.tool_timeout_s,
        journal_deadline_s=settings.gateway.journal_deadline_ms / 1000,
    )
