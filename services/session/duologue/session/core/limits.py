"""What one session may use, and how long it may last. Given by the shard at open, kept with the session."""

from __future__ import annotations

from typing import Literal

import msgspec

KIB, MIB = 1024, 1024 * 1024


class SessionLimits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Times in seconds, sizes in bytes. A session may lower `idle_ttl_s`, `disconnect_grace_s` and choose
    `overflow_policy`."""

    idle_ttl_s: float = 300.0
    disconnect_grace_s: float = 30.0
    max_session_s: float = 3600.0
    max_pending_input_bytes: int = 16 * MIB
    max_input_age_s: float = 8.0
    """How long sound may wait for a model that hears all the time; beyond it further sound is refused."""
    max_pending_turns: int = 4
    max_output_bytes: int = 2 * MIB
    max_output_events: int = 512
    reserve_output_bytes: int = 64 * KIB
    reserve_output_events: int = 8
    close_slot_bytes: int = 4096
    overflow_policy: Literal["close", "fail_response"] = "close"
    tool_timeout_s: float = 60.0
    journal_deadline_s: float = 0.25
    """How long structural events wait for their checkpoint, once; then they go until one is confirmed."""
    checkpoint_interval_s: float = 1.0
    abort_wait_s: float = 1.0
    """How long the input waits for a worker to tell what it had consumed before a cancel."""
    inline_audio_ms: float = 200.0
    """Longer payloads are converted outside the loop."""
    max_history_items: int = 4096
    max_ledgers: int = 64
    max_stage_deaths: int = 2
    max_rebuild_queue_s: float = 2.0
    """By how much live sound may grow while a lost context is rebuilt; then the rebuild is cut short."""
    detects_speech: bool = True
    """The server has a speech detector,"""
    judges_turns: bool = True
    """and a model that tells whether a turn is finished."""
    max_paced_bytes: int = 8 * MIB
    """Sound that waits because it was made faster than it is heard."""
