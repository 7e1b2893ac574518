"""The session half of the loopback models. SANS-I/O: see `model.plugin`.

Rule 1. The state mirrors where the script stands after the last result that the session took. The first
        stage may be ahead of it; from the first unit of a new epoch on it goes on from the state.
Rule 2. A transcript belongs to the commit that comes when the script has reached it, never to a unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from duologue.model.outputs import ModelOutput, Usage, decode_output
from duologue.model.pipeline import PipelineSpec
from duologue.model.plugin import AppendPlan, DuplexModelPlugin, InputUnit, ModelTraits
from duologue.models.loopback import heads
from duologue.models.loopback.heads import Position, StageConfig, UnitHead
from duologue.models.loopback.options import STAGES, read_options
from duologue.models.loopback.script import SPEAK, TRANSCRIPT, ScriptError, Settings, parse_settings
from duologue.protocol.duplex import DuplexCapabilities, Item, RealtimeProtocolError, SessionConfig

INPUT_RATE_HZ: Final = 16_000
OUTPUT_RATE_HZ: Final = 24_000
CONTINUATION_UNITS: Final = 4096
_REFUSED_OPTIONS: Final = (
    "instructions",
    "voice",
    "temperature",
    "max_output_tokens",
    "max_response_output_tokens",
    "max_tokens",
    "tools",
    "tool_choice",
)


class LoopbackState(msgspec.Struct):
    """What the session remembers of the model."""

    at: Position = Position()
    epoch: int = 0
    turn: int = 0
    """Turns that were to be answered, so far."""
    open: bool = False
    """Such a turn is being answered."""
    kinds: bytes = b""
    """The kind of each step."""
    transcripts: tuple[tuple[int, str], ...] = ()
    """The transcripts of the script: step and text."""
    taken: int = 0
    """How many of them commits have taken."""
    # loopback-talk
    auto: bool = False
    tool: str = ""
    """The first tool of the session; empty: it has none."""
    asked: int = 0
    """Turns of the user so far: every second one calls the tool first."""
    mode: int = 0
    """CALL_FIRST or RESULT, for the turn that is being answered."""
    awaiting: bool = False
    """A call has been made and no other turn has come since."""
    result: bool = False
    """The result of that call is there."""
    # what was used since the last response
    heard: int = 0
    """Units of the user's sound."""
    spoken: int = 0
    """Audio units of the session that are counted already."""


class Loopback(DuplexModelPlugin[LoopbackState]):
    """`loopback`, `loopback-1s` and, with the option `talk`, `loopback-talk`."""

    state_type = LoopbackState

    def __init__(self, pipeline: PipelineSpec) -> None:
        super().__init__(pipeline)
        self._options = read_options(pipeline)
        self.traits = ModelTraits(
            unit_ms=self._options.unit_ms,
            input_rate_hz=INPUT_RATE_HZ,
            output_rate_hz=OUTPUT_RATE_HZ,
            native_turns=not self._options.talk,
            continuation_turn=CONTINUATION_UNITS,
            continuation_auto=CONTINUATION_UNITS,
        )

    def capabilities(self, max_sessions: int) -> DuplexCapabilities:
        return DuplexCapabilities(
            supports_model_native_turn_policy=not self._options.talk,
            supports_input_append=True,
            supports_replace_latest_chunk=False,
            supports_reencode_context=True,
            supports_turn_commit_only=self._options.talk,
            supports_model_internal_state=True,
            supports_stage_resumption=True,
            supports_stage_connector_handoff=True,
            supports_independent_io_streams=True,
            supports_realtime_endpoint=True,
            supports_multi_session=max_sessions > 1,
            supports_multi_session_same_replica=max_sessions > 1,
            supports_session_lease=True,
            supports_session_resume=True,
            session_admission_mode="engine_managed",
            supports_audio_truncate=True,
            supports_text_only_turn=True,
            supports_function_calls=True,
            supports_output_speed=True,
            adapter_patterns=("stage_pipeline",),
            stage_handoff_transport="zeromq",
            chunk_period_ms=self._options.unit_ms,
            target_barge_in_latency_ms=None,
            supports_chat_completions=self._options.talk,
        )

    # -- configuration ---------------------------------------------------------------------------------

    def validate(self, config: SessionConfig, current: SessionConfig | None) -> None:
        given = config.extra_body.get("loopback")
        if current is not None and given != current.extra_body.get("loopback"):
            raise RealtimeProtocolError(
                "invalid_duplex_runtime_config",
                "extra_body.loopback is fixed when the session opens",
                param="extra_body.loopback",
            )
        settings = self._settings(config)
        if settings.audio.kind == "echo" and config.speed not in (None, 1):
            raise RealtimeProtocolError("unsupported", "an echo is as fast as what it echoes", param="session.speed")

    def check_options(self, options: dict[str, Any], config: SessionConfig | None = None) -> None:
        if options.get("speed") not in (None, 1):
            raise RealtimeProtocolError(
                "unsupported_native_response_options",
                "the loopback model takes its speed from the session",
                param="response.speed",
            )
        for name in _REFUSED_OPTIONS:
            if options.get(name) is not None:
                raise RealtimeProtocolError(
                    "unsupported_native_response_options",
                    f"the loopback model does not take {name} for a single response",
                    param=f"response.{name}",
                )

    def _settings(self, config: SessionConfig) -> Settings:
        try:
            return parse_settings(
                config.extra_body.get("loopback"),
                stages=STAGES,
                scripted=not self._options.talk,
                context_units=self._options.context_units,
            )
        except ScriptError as error:
            raise RealtimeProtocolError(
                "invalid_duplex_runtime_config",
                error.message,
                param=f"extra_body.loopback.{error.param}" if error.param else "extra_body.loopback",
            ) from None

    def new_state(self, config: SessionConfig) -> LoopbackState:
        if self._options.talk:
            return LoopbackState(auto=config.auto_response, tool=_first_tool(config))
        script = self._settings(config).script
        return LoopbackState(
            auto=config.auto_response,
            kinds=bytes(step.kind for step in script),
            transcripts=tuple((i, step.text) for i, step in enumerate(script) if step.kind == TRANSCRIPT),
        )

    def stage_configs(self, config: SessionConfig, state: LoopbackState) -> tuple[bytes, ...]:
        settings = self._settings(config)
        costs = settings.stage_ms
        configs = []
        for stage in range(STAGES):
            costing = stage < len(costs)
            configs.append(
                StageConfig(
                    audio=settings.audio,
                    compute_ms=costs[stage] if costing else 0.0,
                    jitter_ms=settings.jitter_ms if costing else 0.0,
                    seed=settings.seed,
                    fail=settings.fail,
                    context_units=settings.context_units,
                    script=settings.script if stage < 2 else (),
                    at=state.at,
                    epoch=state.epoch,
                    frames=settings.frames,
                    heard=settings.heard,
                    speed=1.0 if config.speed is None else float(config.speed),
                )
            )
        return tuple(heads.encode(one) for one in configs)

    # -- the life of a session -------------------------------------------------------------------------

    def plan_unit(self, state: LoopbackState, unit: InputUnit) -> AppendPlan:
        flags = state.mode
        state.heard += not unit.continuation
        if unit.auto:
            flags |= heads.AUTO | heads.DECIDE
        elif state.open:
            flags |= heads.DECIDE
        if unit.final:
            flags |= heads.FINAL
        if unit.continuation:
            flags |= heads.CONTINUATION
        if unit.force_listen:
            flags |= heads.FORCE_LISTEN
        if unit.is_speech is not None:
            flags |= heads.KNOWN | heads.SPEECH if unit.is_speech else heads.KNOWN
        return AppendPlan(heads.encode(UnitHead(flags, state.turn, state.at)), (unit.pcm, *unit.video_frames))

    def on_update(self, state: LoopbackState, config: SessionConfig) -> None:
        if self._options.talk:
            state.tool = _first_tool(config)

    def on_turn_start(self, state: LoopbackState, turn_id: int, epoch: int) -> None:
        self._begin(state)

    def _begin(self, state: LoopbackState) -> None:
        state.turn += 1
        state.open = True
        if not self._options.talk:
            return
        answers = state.awaiting and state.result
        state.awaiting = state.result = False
        if answers:
            state.mode = heads.RESULT
            return
        state.asked += 1
        state.mode = 0
        if state.tool and state.asked % 2 == 0:
            state.mode = heads.CALL_FIRST
            state.awaiting = True

    def on_commit(self, state: LoopbackState) -> str | None:
        if self._options.talk:
            if state.auto:
                self._begin(state)  # nobody else says when the user has done
            return None
        return _transcript(state)

    def on_tool_output(self, state: LoopbackState, item: Item) -> AppendPlan | None:
        if self._options.talk and state.awaiting:
            state.result = True
            if state.auto:
                self._begin(state)
        return None

    def on_cancel(self, state: LoopbackState, epoch: int) -> None:
        state.epoch = epoch
        at = state.at
        if self._options.talk:
            state.at = msgspec.structs.replace(at, step=0, done=0, ended=True)
        elif state.kinds[at.step] == SPEAK and (at.done or state.open):
            step = min(at.step + 1, len(state.kinds) - 1)
            state.at = msgspec.structs.replace(at, step=step, done=0, ended=True)
        elif state.open:
            state.at = msgspec.structs.replace(at, ended=True)
        state.open = False

    def take_usage(self, state: LoopbackState) -> Usage | None:
        """A token of this model is a unit of sound."""
        spoken, heard = state.at.spoken - state.spoken, state.heard
        state.spoken, state.heard = state.at.spoken, 0
        return Usage(input_audio_tokens=heard, output_audio_tokens=max(spoken, 0))

    def project(self, state: LoopbackState, head: bytes, frames: Sequence[bytes]) -> Sequence[ModelOutput]:
        output = decode_output(head)
        if output.tool_calls and self._options.talk:  # which tool is first, the session knows
            calls = tuple(msgspec.structs.replace(call, name=state.tool) for call in output.tool_calls)
            output = msgspec.structs.replace(output, tool_calls=calls)
        if output.state:
            state.at = at = heads.decode_position(output.state)
            if at.ended and at.turn == state.turn:
                state.open = False
        return (output,)


def _transcript(state: LoopbackState) -> str | None:
    """The transcript that this commit takes, if the script has come to one."""
    if not state.transcripts:
        return None
    last = len(state.kinds) - 1
    reached = state.at.step
    for step, _ in state.transcripts[: state.taken]:
        if step == reached < last:
            reached += 1
    if state.taken < len(state.transcripts):
        step, text = state.transcripts[state.taken]
        if step <= reached:
            state.taken += 1
            return text
        return None
    step, text = state.transcripts[-1]
    return text if step == reached == last else None  # the last step repeats


def _first_tool(config: SessionConfig) -> str:
    for tool in config.tools or ():
        name = tool.get("name")
        if isinstance(name, str):
            return name
    return ""
