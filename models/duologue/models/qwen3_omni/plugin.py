"""The session half of Qwen3-Omni, turn by turn. SANS-I/O: see `model.plugin`.

Rule 1. The session in front tells turns apart and hears interruptions (Silero VAD, or the end of the thought); the
        model is given a turn whole, once it is over and to be answered.
Rule 2. The engine keeps the conversation, since the sound of a turn is part of it: it is told of every item, and of how
        much of an answer was heard. After a loss it is given what was written of it.
Rule 3. An answer is made as the session is configured when it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from duologue.model.pipeline import PipelineSpec
from duologue.model.plugin import AppendPlan, DuplexModelPlugin, InputUnit, ModelTraits, Rebuild, StageControl
from duologue.models.qwen3_omni import heads
from duologue.models.qwen3_omni.heads import SlotConfig, UnitHead
from duologue.models.qwen3_omni.options import RATE_HZ, read_options
from duologue.protocol.duplex import DuplexCapabilities, Item, RealtimeProtocolError, SessionConfig

ANSWER_S: Final = 900
"""How long an answer may be made and told: the session's own limit of silent units."""
_REFUSED_OPTIONS: Final = (
    "instructions",
    "voice",
    "temperature",
    "max_output_tokens",
    "max_response_output_tokens",
    "max_tokens",
    "tools",
    "tool_choice",
    "prompt",
    "extra_body",
)


class Qwen3OmniState(msgspec.Struct):
    """What a session remembers of the model: that a turn begins which the engine was not told of yet."""

    ask: bool = False


class Qwen3Omni(DuplexModelPlugin[Qwen3OmniState]):
    """A model that hears, sees and speaks, one turn at a time, at any OpenAI-compatible server that takes sound."""

    state_type = Qwen3OmniState

    def __init__(self, pipeline: PipelineSpec) -> None:
        super().__init__(pipeline)
        self._options = options = read_options(pipeline)
        self.traits = ModelTraits(
            unit_ms=options.unit_ms,
            input_rate_hz=RATE_HZ,
            output_rate_hz=options.output_rate_hz,
            native_turns=False,
            continuation_turn=ANSWER_S * 1000 // options.unit_ms,
            locks_instructions=False,
            turn_detection=options.turn_detection,
        )

    def capabilities(self, max_sessions: int) -> DuplexCapabilities:
        options = self._options
        return DuplexCapabilities(
            supports_input_append=True,
            supports_replace_latest_chunk=False,
            supports_reencode_context=True,
            supports_turn_commit_only=True,
            supports_stage_connector_handoff=True,
            supports_realtime_endpoint=True,
            supports_multi_session=max_sessions > 1,
            supports_multi_session_same_replica=max_sessions > 1,
            supports_session_lease=True,
            supports_session_resume=True,
            session_admission_mode="engine_managed",
            optional_input_modalities=(),
            supports_audio_truncate=True,
            supports_text_only_turn=True,
            supports_image_input=options.images,
            supports_function_calls=options.tools,
            adapter_patterns=("turn_request",),
            signal_sources=("client_event", "server_policy"),
            stage_handoff_transport="zeromq",
            chunk_period_ms=options.unit_ms,
            target_barge_in_latency_ms=1000,
        )

    # -- configuration ---------------------------------------------------------------------------------

    def validate(self, config: SessionConfig, current: SessionConfig | None) -> None:
        if config.auto_response:
            raise RealtimeProtocolError(
                "unsupported", "this model answers turns: nothing of it listens by itself", param="auto_response"
            )
        if config.ref_audio is not None:
            raise RealtimeProtocolError("unsupported", "this model imitates no voice", param="ref_audio")
        if config.tools and not self._options.tools:
            raise RealtimeProtocolError("unsupported", "this server calls no functions", param="tools")

    def check_options(self, options: dict[str, Any], config: SessionConfig | None = None) -> None:
        for name in _REFUSED_OPTIONS:
            if options.get(name) is not None:
                raise RealtimeProtocolError(
                    "unsupported_native_response_options",
                    f"{name} is the session's: send a session.update before the response",
                    param=f"response.{name}",
                )

    def new_state(self, config: SessionConfig) -> Qwen3OmniState:
        return Qwen3OmniState()

    def stage_configs(self, config: SessionConfig, state: Qwen3OmniState) -> tuple[bytes, ...]:
        options = self._options
        wanted = SlotConfig(
            instructions=options.instructions if config.instructions is None else config.instructions,
            speaks=config.speaks and options.audio,
            voice=config.voice or options.voice,
            max_tokens=config.max_output_tokens or options.max_tokens,
            temperature=options.temperature if config.temperature is None else config.temperature,
            tools=config.tools or (),
            tool_choice=config.tool_choice,
            extra_body={**options.extra_body, **config.extra_body},
        )
        return (heads.encode(wanted),)

    # -- the life of a session -------------------------------------------------------------------------

    def plan_unit(self, state: Qwen3OmniState, unit: InputUnit) -> AppendPlan:
        flags = heads.FINAL if unit.final else 0
        if unit.continuation:
            flags |= heads.CONTINUATION
        if state.ask and (unit.final or unit.continuation):
            flags |= heads.ASK
            state.ask = False
        return AppendPlan(heads.encode(UnitHead(flags)), () if unit.continuation else (unit.pcm,))

    def on_turn_start(self, state: Qwen3OmniState, turn_id: int, epoch: int) -> None:
        state.ask = True

    def on_cancel(self, state: Qwen3OmniState, epoch: int) -> None:
        state.ask = False

    def on_item(self, state: Qwen3OmniState, item: Item) -> AppendPlan | None:
        return AppendPlan(heads.encode(UnitHead(item=msgspec.to_builtins(item))))

    def on_tool_output(self, state: Qwen3OmniState, item: Item) -> AppendPlan | None:
        return self.on_item(state, item)

    def on_heard(self, state: Qwen3OmniState, heard_ms: int) -> StageControl | None:
        return StageControl(0, heads.HEARD, heads.encode(heard_ms))

    def plan_rebuild(self, state: Qwen3OmniState, rebuild: Rebuild) -> Sequence[AppendPlan]:
        """What was written: the sound of earlier turns is gone with the engine that had it."""
        return [AppendPlan(heads.encode(UnitHead(item=msgspec.to_builtins(item)))) for item in rebuild.items]
