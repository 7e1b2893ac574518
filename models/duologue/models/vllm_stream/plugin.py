"""The session half of a model that hears turns and writes answers, on vLLM. SANS-I/O: see `model.plugin`.

Rule 1. The session in front tells turns apart and hears interruptions; the model is given a turn whole.
Rule 2. The engine keeps the conversation, in the cache of one request: it is told what is new, and after a loss what
        was written.
Rule 3. It writes: there is no sound in its answers, so a session that wants sound is told so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from duologue.model.pipeline import PipelineSpec
from duologue.model.plugin import AppendPlan, DuplexModelPlugin, InputUnit, ModelTraits, Rebuild
from duologue.models.vllm_stream import wire
from duologue.models.vllm_stream.options import RATE_HZ, read_options
from duologue.models.vllm_stream.wire import SlotConfig, Text, UnitHead
from duologue.protocol.duplex import DuplexCapabilities, Item, RealtimeProtocolError, SessionConfig

ANSWER_S: Final = 900
"""How long an answer may be made and told: the session's own limit of silent units."""
OUTPUT_RATE_HZ: Final = 24_000
TURN_TOKENS: Final = 8
BYTES_PER_TOKEN: Final = 3
"""What a message takes of the context, estimated high: the session half has no tokenizer."""
_REFUSED_OPTIONS: Final = ("instructions", "voice", "temperature", "max_output_tokens", "tools", "prompt", "extra_body")
_ROLES: Final = ("user", "assistant", "system")


class TurnState(msgspec.Struct):
    """What a session remembers of the model: that a turn begins which the engine was not told of yet."""

    ask: bool = False


class HearingTurns(DuplexModelPlugin[TurnState]):
    state_type = TurnState

    def __init__(self, pipeline: PipelineSpec) -> None:
        super().__init__(pipeline)
        self._options = options = read_options(pipeline)
        self.traits = ModelTraits(
            unit_ms=options.unit_ms,
            input_rate_hz=RATE_HZ,
            output_rate_hz=OUTPUT_RATE_HZ,
            native_turns=False,
            continuation_turn=ANSWER_S * 1000 // options.unit_ms,
            turn_detection=options.turn_detection,
        )

    def capabilities(self, max_sessions: int) -> DuplexCapabilities:
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
            supports_text_only_turn=True,
            adapter_patterns=("turn_request",),
            signal_sources=("client_event", "server_policy"),
            stage_handoff_transport="zeromq",
            chunk_period_ms=self._options.unit_ms,
            target_barge_in_latency_ms=1000,
        )

    # -- configuration ---------------------------------------------------------------------------------

    def validate(self, config: SessionConfig, current: SessionConfig | None) -> None:
        for name, given in (("auto_response", config.auto_response), ("ref_audio", config.ref_audio is not None)):
            if given:
                raise RealtimeProtocolError("unsupported", "this model answers turns, in writing", param=name)
        if config.tools:
            raise RealtimeProtocolError("unsupported", "this model calls no functions", param="tools")
        for key in config.extra_body:
            raise RealtimeProtocolError(
                "invalid_duplex_runtime_config", f"there is no extra_body.{key}", param=f"extra_body.{key}"
            )
        limit = config.max_output_tokens
        if limit is not None and limit * 2 > self._options.context_tokens:
            raise RealtimeProtocolError(
                "invalid_duplex_runtime_config", "that is more than half of the context", param="max_output_tokens"
            )

    def check_options(self, options: dict[str, Any], config: SessionConfig | None = None) -> None:
        for name in _REFUSED_OPTIONS:
            if options.get(name) is not None:
                raise RealtimeProtocolError(
                    "unsupported_native_response_options",
                    f"{name} is the session's: send a session.update before the response",
                    param=f"response.{name}",
                )

    def new_state(self, config: SessionConfig) -> TurnState:
        return TurnState()

    def stage_configs(self, config: SessionConfig, state: TurnState) -> tuple[bytes, ...]:
        options = self._options
        wanted = SlotConfig(
            instructions=options.instructions if config.instructions is None else config.instructions,
            max_tokens=config.max_output_tokens or options.max_tokens,
            temperature=float(options.temperature if config.temperature is None else config.temperature),
        )
        return (wire.encode(wanted),)

    # -- the life of a session -------------------------------------------------------------------------

    def plan_unit(self, state: TurnState, unit: InputUnit) -> AppendPlan:
        flags = wire.FINAL if unit.final else 0
        if unit.continuation:
            flags |= wire.CONTINUATION
        if state.ask and (unit.final or unit.continuation):
            flags |= wire.ASK
            state.ask = False
        return AppendPlan(wire.encode(UnitHead(flags)), () if unit.continuation else (unit.pcm,))

    def on_turn_start(self, state: TurnState, turn_id: int, epoch: int) -> None:
        state.ask = True

    def on_cancel(self, state: TurnState, epoch: int) -> None:
        state.ask = False

    def on_item(self, state: TurnState, item: Item) -> AppendPlan | None:
        if item.type != "message" or item.role not in _ROLES or not item.text.strip():
            return None
        return AppendPlan(wire.encode(UnitHead(item=Text(str(item.role), item.text.strip()))))

    def plan_rebuild(self, state: TurnState, rebuild: Rebuild) -> Sequence[AppendPlan]:
        """What was written: the sound of earlier turns is gone with the engine that had it. The newest of it, in half
        of the context."""
        room = self._options.context_tokens // 2
        plans: list[AppendPlan] = []
        for item in reversed(rebuild.items):
            plan = self.on_item(state, item)
            room -= TURN_TOKENS + len(item.text.encode()) // BYTES_PER_TOKEN if plan else 0
            if room < 0:
                break
            plans += [plan] if plan else []
        return plans[::-1]
