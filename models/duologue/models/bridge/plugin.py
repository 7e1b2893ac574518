"""The session half of a bridge. SANS-I/O: see `model.plugin`.

Rule 1. The model is at another server, and so is its memory: what changes the conversation is sent there as it happens
        (units, items, results, what was heard of an answer). A new upstream session is given the conversation.
Rule 2. Who tells turns apart: the upstream model in an auto session, this session in any other. Only then is an
        answer asked for, with the last unit of the turn or, for a turn without sound, with the first silence.
Rule 3. `extra_body` belongs to the model: it is passed on unread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from duologue.model.outputs import ModelOutput, decode_output
from duologue.model.pipeline import PipelineSpec
from duologue.model.plugin import AppendPlan, DuplexModelPlugin, InputUnit, ModelTraits, Rebuild, StageControl
from duologue.models.bridge import heads
from duologue.models.bridge.heads import Heard, SlotConfig, UnitHead
from duologue.models.bridge.items import upstream_item
from duologue.models.bridge.options import read_options
from duologue.protocol.duplex import Dialect, DuplexCapabilities, Item, RealtimeProtocolError, SessionConfig

ANSWER_S: Final = 600
"""How long an answer may take while the client is silent: the session's own limit of silent units."""
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


class BridgeState(msgspec.Struct):
    """What a session remembers of the upstream model: next to nothing."""

    ask: bool = False
    """A turn begins that is to be answered; the engine is not told yet."""
    commit: bool = False
    """The client has committed; the engine is not told yet."""
    calls: int = 0
    """Function calls whose results are not there yet."""


class Bridge(DuplexModelPlugin[BridgeState]):
    """A model behind any realtime server, as a model of this one."""

    state_type = BridgeState

    def __init__(self, pipeline: PipelineSpec) -> None:
        super().__init__(pipeline)
        self._options = options = read_options(pipeline)
        silence = ANSWER_S * 1000 // options.unit_ms
        self.traits = ModelTraits(
            unit_ms=options.unit_ms,
            input_rate_hz=options.heard_rate_hz,
            output_rate_hz=options.output_rate_hz,
            native_turns=options.decides,
            continuation_turn=silence,
            continuation_auto=silence,
            locks_instructions=options.locks,
        )

    def capabilities(self, max_sessions: int) -> DuplexCapabilities:
        options = self._options
        return DuplexCapabilities(
            supports_model_native_turn_policy=options.decides,
            supports_barge_in=options.barge_in,
            supports_input_append=True,
            supports_replace_latest_chunk=False,
            supports_reencode_context=False,
            supports_turn_commit_only=not options.decides,
            supports_model_internal_state=True,
            supports_stage_connector_handoff=True,
            supports_independent_io_streams=True,
            supports_realtime_endpoint=True,
            supports_multi_session=max_sessions > 1,
            supports_multi_session_same_replica=max_sessions > 1,
            supports_session_lease=True,
            supports_session_resume=True,
            session_admission_mode="engine_managed",
            optional_input_modalities=("video",) if options.video else (),
            supports_audio_truncate=True,
            supports_text_only_turn=options.text_turns,
            supports_image_input=options.images,
            supports_function_calls=options.tools,
            supports_output_speed=options.speed,
            adapter_patterns=("remote_realtime",),
            stage_handoff_transport="zeromq",
            chunk_period_ms=options.unit_ms,
            target_barge_in_latency_ms=None,
        )

    # -- configuration ---------------------------------------------------------------------------------

    def validate(self, config: SessionConfig, current: SessionConfig | None) -> None:
        options = self._options
        if config.auto_response and not options.decides:
            raise RealtimeProtocolError(
                "unsupported", "the model upstream answers when it is asked to", param="extra_body.auto_response"
            )
        if config.tools and not options.tools:
            raise RealtimeProtocolError("unsupported", "the model upstream calls no functions", param="tools")
        if config.ref_audio is not None and options.dialect != "duplex":
            raise RealtimeProtocolError("unsupported", "the model upstream imitates no voice", param="ref_audio")
        if current is not None and config.extra_body != current.extra_body:
            raise RealtimeProtocolError(
                "invalid_duplex_runtime_config", "extra_body is fixed when the session opens", param="extra_body"
            )

    def check_options(self, options: dict[str, Any], config: SessionConfig | None = None) -> None:
        for name in (*_REFUSED_OPTIONS, "speed"):
            value = options.get(name)
            if value is not None and not (name == "speed" and value == 1):
                raise RealtimeProtocolError(
                    "unsupported_native_response_options",
                    f"the model upstream takes {name} from the session",
                    param=f"response.{name}",
                )

    def new_state(self, config: SessionConfig) -> BridgeState:
        return BridgeState()

    def stage_configs(self, config: SessionConfig, state: BridgeState) -> tuple[bytes, ...]:
        wanted = SlotConfig(
            modalities=config.modalities,
            auto=config.auto_response,
            speaks_duplex=config.dialect is Dialect.duplex,
            instructions=config.instructions,
            voice=config.voice,
            ref_audio=config.ref_audio,
            initial_user_text=config.initial_user_text,
            temperature=config.temperature,
            max_output_tokens=config.max_output_tokens,
            speed=config.speed,
            tools=config.tools,
            tool_choice=config.tool_choice,
            transcription=config.transcription,
            extra_body={**self._options.extra_body, **config.extra_body},
        )
        return (heads.encode(wanted),)

    # -- the life of a session -------------------------------------------------------------------------

    def plan_unit(self, state: BridgeState, unit: InputUnit) -> AppendPlan:
        flags = heads.FINAL if unit.final else 0
        if unit.continuation:
            flags |= heads.CONTINUATION
        if unit.force_listen:
            flags |= heads.FORCE_LISTEN
        if unit.is_speech is not None:
            flags |= heads.KNOWN | heads.SPEECH if unit.is_speech else heads.KNOWN
        if unit.auto:
            flags |= heads.AUTO
            if state.commit:
                flags |= heads.COMMIT
                state.commit = False
        if state.ask and (unit.auto or unit.final or unit.continuation):
            flags |= heads.ASK
            state.ask = False
        frames = () if unit.continuation else (unit.pcm, *unit.video_frames)
        return AppendPlan(heads.encode(UnitHead(flags)), frames)

    def on_turn_start(self, state: BridgeState, turn_id: int, epoch: int) -> None:
        state.ask = True

    def on_commit(self, state: BridgeState) -> str | None:
        state.commit = True
        return None

    def on_cancel(self, state: BridgeState, epoch: int) -> None:
        state.ask = False
        state.calls = 0

    def on_item(self, state: BridgeState, item: Item) -> AppendPlan | None:
        return AppendPlan(heads.encode(UnitHead(item=upstream_item(item))))

    def on_tool_output(self, state: BridgeState, item: Item) -> AppendPlan | None:
        state.calls = max(state.calls - 1, 0)
        return AppendPlan(heads.encode(UnitHead(item=upstream_item(item), answers=not state.calls)))

    def on_heard(self, state: BridgeState, heard_ms: int) -> StageControl | None:
        return StageControl(0, heads.HEARD, heads.encode(Heard(heard_ms)))

    def plan_rebuild(self, state: BridgeState, rebuild: Rebuild) -> Sequence[AppendPlan]:
        """The conversation, item by item: what was only heard is not said twice."""
        if rebuild.kind == "input":
            return super().plan_rebuild(state, rebuild)
        told = (upstream_item(item) for item in rebuild.items)
        return [AppendPlan(heads.encode(UnitHead(item=item))) for item in told if item.get("content") != []]

    def project(self, state: BridgeState, head: bytes, frames: Sequence[bytes]) -> Sequence[ModelOutput]:
        output = decode_output(head)
        state.calls += sum(bool(call.name) for call in output.tool_calls)
        return (output,)
