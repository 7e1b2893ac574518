"""What a model can do, as `session.capabilities` tells it."""

from __future__ import annotations

import msgspec

from duologue.protocol.realtime.json_types import JsonObject


class DuplexCapabilities(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Enforced: barge_in, session_resume, image_input, text_only_turn, input_append, function_calls, output_speed and
    the modality sets.

    The rest is told to the client and decides nothing.
    """

    supports_session_adapter: bool = True
    supports_model_native_turn_policy: bool = False
    supports_external_turn_signal: bool = True
    supports_client_commit: bool = True
    supports_barge_in: bool = True
    supports_playback_ack: bool = True
    supports_input_append: bool = False
    supports_replace_latest_chunk: bool = True
    supports_reencode_context: bool = True
    supports_rollback_to_checkpoint: bool = False
    supports_turn_commit_only: bool = True
    supports_kv_lease: bool = False
    supports_core_kv_lease: bool = False
    supports_model_internal_state: bool = False
    supports_stage_resumption: bool = False
    supports_scheduler_native_append: bool = False
    supports_core_resumable_request: bool = False
    supports_concurrent_turn_requests: bool = False
    required_input_modalities: tuple[str, ...] = ("audio",)
    optional_input_modalities: tuple[str, ...] = ("video",)
    supports_stage_connector_handoff: bool = False
    supports_independent_io_streams: bool = False
    supports_realtime_endpoint: bool = False
    supports_multi_session: bool = False
    supports_multi_session_same_replica: bool = False
    supports_session_lease: bool = False
    supports_session_resume: bool = False
    session_admission_mode: str = "serving_managed"
    supports_audio_truncate: bool = False
    supports_image_input: bool = False
    supports_text_only_turn: bool = False
    requires_model_runner_kv: bool = False
    requires_native_stage_role: bool = False
    adapter_patterns: tuple[str, ...] = ("chunk_group_append",)
    input_modes: tuple[str, ...] = ("append_audio_chunk",)
    signal_sources: tuple[str, ...] = ("client_event", "server_policy", "model_native")
    stage_handoff_transport: str | None = None
    chunk_period_ms: int = 1000
    target_barge_in_latency_ms: int | None = 1000
    supports_chat_completions: bool = False
    """It also answers single turns, by `POST /v1/chat/completions`."""
    supports_function_calls: bool = False
    """It calls the session's `tools`."""
    supports_output_speed: bool = False
    """It speaks at the session's `speed`."""

    @property
    def implementation_level(self) -> str:
        """Derived: whether one model listens and speaks at once, or turns are told apart and answered one by one,
        by whomever. Ears that decide for a model that keeps nothing of what it heard make no native duplex."""
        native = self.supports_model_native_turn_policy and self.supports_model_internal_state
        return "model_native_duplex" if native else "turn_based_duplex"

    def to_realtime(self) -> JsonObject:
        """The wire object; modality lists are sorted."""
        told: JsonObject = msgspec.to_builtins(self)
        for key in ("required_input_modalities", "optional_input_modalities"):
            told[key] = sorted(told[key])
        told["implementation_level"] = self.implementation_level
        return {key: list(value) if isinstance(value, tuple) else value for key, value in told.items()}
