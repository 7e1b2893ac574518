"""The session half of the cascade. SANS-I/O: see `model.plugin`.

Rule 1. It hears units and answers plans: the ears say when a turn is over, the conversation is answered.
Rule 2. The ears tell a user turn again after a cancel, numbered; what the session has is dropped here.
Rule 3. One voice: the session's `voice` is accepted, as stock clients always send one, and changes nothing.
Rule 4. What it can do follows its options: functions and images are for a model at a URL that is said to take them.
Rule 5. An answer is made as the session is configured when it is asked for: an update holds from the next one on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from duologue.model.outputs import ModelOutput, decode_output
from duologue.model.pipeline import PipelineSpec
from duologue.model.plugin import AppendPlan, DuplexModelPlugin, InputUnit, ModelTraits, ResponseRequest
from duologue.models.cascade.chat import chat_turns, within
from duologue.models.cascade.settings import RATE_HZ, VOICE_RATE_HZ, settings_of
from duologue.models.cascade.tools import choice_of, tools_of
from duologue.models.cascade.wire import Ask, ChatTurn, SlotConfig, Told, Tool, UnitHead
from duologue.protocol.duplex import DuplexCapabilities, RealtimeProtocolError, SessionConfig

THINKER = 2
"""The stage that answers a conversation."""
CONTINUATION_UNITS = 16
"""Silence for a client that stops sending in the middle of a word: more than any turn needs to end."""
REFUSED_OPTIONS = ("voice", "prompt", "extra_body")
NO_TOOLS = "this thinker calls no functions: only a model at an OpenAI-compatible URL does"
_NO_CONFIG = SessionConfig(model="")
_encode = msgspec.msgpack.Encoder().encode
_told = msgspec.msgpack.Decoder(Told)


class CascadeState(msgspec.Struct):
    """What a session remembers of the model."""

    turns_heard: int = 0
    """The number of the last user turn that was taken."""


class Cascade(DuplexModelPlugin[CascadeState]):
    """Voice activity, recognition, a language model and synthesis, as one model."""

    state_type = CascadeState

    def __init__(self, pipeline: PipelineSpec) -> None:
        super().__init__(pipeline)
        self._settings = settings_of(pipeline)
        self.traits = ModelTraits(
            unit_ms=self._settings.unit_ms,
            input_rate_hz=RATE_HZ,
            output_rate_hz=VOICE_RATE_HZ,
            answers="plan",
            native_turns=True,
            continuation_turn=0,
            continuation_auto=CONTINUATION_UNITS,
            locks_instructions=False,
        )

    def capabilities(self, max_sessions: int) -> DuplexCapabilities:
        return DuplexCapabilities(
            supports_model_native_turn_policy=True,
            supports_input_append=True,
            supports_replace_latest_chunk=False,
            supports_reencode_context=True,
            supports_turn_commit_only=False,
            supports_stage_connector_handoff=True,
            supports_independent_io_streams=True,
            supports_realtime_endpoint=True,
            supports_multi_session=max_sessions > 1,
            supports_multi_session_same_replica=max_sessions > 1,
            supports_session_lease=True,
            supports_session_resume=True,
            session_admission_mode="engine_managed",
            optional_input_modalities=(),
            supports_audio_truncate=True,
            supports_text_only_turn=True,
            supports_image_input=self._settings.thinker.sees,
            supports_function_calls=self._settings.thinker.calls,
            supports_output_speed=True,
            adapter_patterns=("stage_pipeline",),
            stage_handoff_transport="zeromq",
            chunk_period_ms=self._settings.unit_ms,
            target_barge_in_latency_ms=1000,
            supports_chat_completions=True,
        )

    # -- configuration ---------------------------------------------------------------------------------

    def validate(self, config: SessionConfig, current: SessionConfig | None) -> None:
        for key in config.extra_body:
            raise RealtimeProtocolError(
                "invalid_duplex_runtime_config",
                f"the cascade knows no extra_body.{key}",
                param=f"extra_body.{key}",
            )
        if config.ref_audio is not None:
            raise RealtimeProtocolError("unsupported", "the cascade imitates no voice", param="ref_audio")
        if config.tools and not self._settings.thinker.calls:
            raise RealtimeProtocolError("unsupported", NO_TOOLS, param="tools")
        if self._settings.thinker.calls:
            choice_of(config.tool_choice, tools_of(config.tools))

    def check_options(self, options: dict[str, Any], config: SessionConfig | None = None) -> None:
        for name in REFUSED_OPTIONS:
            if options.get(name):
                raise _refused(f"the cascade does not take {name} for a single response", name)
        if not self._settings.thinker.calls:
            if options.get("tools"):
                raise _refused(NO_TOOLS, "tools")
            return
        tools = _option(options, "tools", (config or _NO_CONFIG).tools)
        choice_of(options.get("tool_choice"), tools_of(tools, "response.tools"), "response.tool_choice")

    def new_state(self, config: SessionConfig) -> CascadeState:
        return CascadeState()

    def stage_configs(self, config: SessionConfig, state: CascadeState) -> tuple[bytes, ...]:
        ears = _encode(SlotConfig(state.turns_heard))
        return (ears, ears, b"", b"")

    # -- the life of a session -------------------------------------------------------------------------

    def plan_unit(self, state: CascadeState, unit: InputUnit) -> AppendPlan:
        head = UnitHead(
            start_ms=unit.start_ms,
            auto=unit.auto,
            final=unit.final,
            response_open=unit.response_open,
            force_listen=unit.force_listen,
            turns_heard=state.turns_heard,
        )
        return AppendPlan(_encode(head), (unit.pcm,))

    def plan_response(self, state: CascadeState, request: ResponseRequest) -> AppendPlan:
        thinker, options = self._settings.thinker, request.options
        config = request.config or _NO_CONFIG
        follows = bool(request.items) and request.items[-1].type == "function_call_output"
        tools, choice = self._tools(options, config, follows)
        limit = options.get("max_output_tokens") or config.max_output_tokens
        ask = Ask(
            messages=(
                ChatTurn("system", request.instructions or thinker.instructions),
                *chat_turns(request.items, tools=thinker.calls, vision=thinker.sees),
            ),
            max_tokens=min(thinker.max_tokens, limit or thinker.max_tokens),
            temperature=_first(options.get("temperature"), config.temperature, thinker.temperature),
            speed=_first(options.get("speed"), config.speed, 1.0),
            tools=tools,
            choice=choice,
            # A limit of the client holds for all that the model writes.
            call_tokens=0 if limit or not tools or choice == "none" else thinker.call_tokens,
        )
        return AppendPlan(_encode(within(ask, thinker.context)), stage=THINKER)

    def _tools(self, options: Mapping[str, Any], config: SessionConfig, follows: bool) -> tuple[tuple[Tool, ...], str]:
        """The functions of this answer, and whether it has to call one."""
        tools = tools_of(_option(options, "tools", config.tools)) if self._settings.thinker.calls else ()
        if not tools:
            return (), ""
        asked = options.get("tool_choice")
        if asked is not None:
            return tools, choice_of(asked, tools)
        choice = choice_of(config.tool_choice, tools)
        # What the session always asks for holds for the user's turns: an answer to a result would never end.
        return tools, "auto" if follows and choice not in ("", "none") else choice

    def project(self, state: CascadeState, head: bytes, frames: Sequence[bytes]) -> Sequence[ModelOutput]:
        output = decode_output(head)
        if output.user_turn is None or not output.state:
            return (output,)
        told = _told.decode(output.state)
        if told.turn <= state.turns_heard:
            return ()
        state.turns_heard = told.turn
        return (msgspec.structs.replace(output, state=b""),)


def _first(*values: float | None) -> float:
    return next(float(value) for value in values if value is not None)


def _option(options: Mapping[str, Any], name: str, default: Any) -> Any:
    value = options.get(name)
    return default if value is None else value


def _refused(message: str, name: str) -> RealtimeProtocolError:
    return RealtimeProtocolError("unsupported_native_response_options", message, param=f"response.{name}")
