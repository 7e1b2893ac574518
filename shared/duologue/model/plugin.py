"""DuplexModelPlugin: the session half of a model. SANS-I/O: it runs inside the session core.

Rule 1. Synchronous, deterministic, total: no clock, no randomness, no import of an engine's libraries.
Rule 2. All it remembers of a session is in its state, a msgspec Struct of at most 64 KB that is checkpointed.
Rule 3. What it refuses, it refuses by name before anything starts (RealtimeProtocolError with `param`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Literal, TypeVar

import msgspec

from duologue.model.outputs import ModelOutput, Usage, decode_output
from duologue.model.pipeline import PipelineError, PipelineSpec
from duologue.protocol.duplex import DuplexCapabilities, Item, SessionConfig

StateT = TypeVar("StateT", bound=msgspec.Struct)


class ModelTraits(msgspec.Struct, frozen=True):
    """What the session must know to feed the model."""

    unit_ms: int
    input_rate_hz: int
    output_rate_hz: int
    answers: Literal["units", "plan"] = "units"
    """`units`: the model answers from the audio units themselves. `plan`: it hears units, says when the
    user's turn is over (`UserTurn`), and answers what `plan_response` submits."""
    native_turns: bool = True
    """The model decides by itself when to speak: `auto_response` is the default in the OpenAI dialects."""
    auto_only: bool = False
    max_in_flight: int = 16
    """How many units may be in the pipeline at once."""
    continuation_turn: int = 8
    continuation_auto: int = 64
    """Silence units the session feeds for one open turn when the client sends nothing."""
    turn_detection: dict[str, Any] | None = None
    """Of sessions of the duplex dialect that say nothing about it, as the wire has it."""
    locks_instructions: bool = True
    """Instructions may not change after the model has heard its first unit."""
    cancel_keeps_context: bool = True
    """False: the engine cannot cancel and keep what it heard, so the session binds anew after each cancel."""
    turn_only: bool = False
    """It answers committed turns and nothing else: `auto_response` is refused. So is every model that is deployed with
    `session_mode = "turn"`."""


def as_deployed(traits: ModelTraits, pipeline: PipelineSpec) -> ModelTraits:
    """The traits of a model in the mode of its pipeline: in `turn` it answers committed turns, whatever it could do.

    Raises PipelineError if it serves no such sessions."""
    if pipeline.session_mode == "duplex":
        return traits
    if traits.auto_only:
        raise PipelineError(f'pipeline {pipeline.name}: session_mode = "turn", but the model serves no such sessions')
    return msgspec.structs.replace(traits, native_turns=False, turn_only=True)


class InputUnit(msgspec.Struct, frozen=True, gc=False):
    """One unit of input: `pcm` is mono float32 little-endian at the model's input rate, `unit_ms` long."""

    pcm: bytes
    turn_id: int
    epoch: int
    start_ms: int
    """Session input time of its first sample."""
    auto: bool
    final: bool = False
    """The last unit of a committed turn (zero-padded)."""
    continuation: bool = False
    """Silence made by the session."""
    force_listen: bool = False
    is_speech: bool | None = None
    response_open: bool = False
    video_frames: tuple[bytes, ...] = ()


class AppendPlan(msgspec.Struct, frozen=True, gc=False):
    """What is submitted, and to which stage of the pipeline."""

    head: bytes
    frames: tuple[bytes, ...] = ()
    stage: int = 0


class RecordedUnit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One unit of input that the stages had consumed, as it was submitted."""

    unit: int
    turn_id: int
    stage: int
    head: bytes
    frames: tuple[bytes, ...]


class Rebuild(msgspec.Struct, frozen=True):
    """What is known of a context that was lost, for stages that begin with an empty one."""

    kind: Literal["input", "history"]
    reason: str
    """Why it was lost: worker_lost or another code of a loss, context_rollover, context_dropped, shard_lost."""
    recorded: tuple[RecordedUnit, ...]
    """`input`: the end of what was heard, oldest first. May be empty."""
    items: tuple[Item, ...]
    """The conversation in order; assistant items hold what was heard of them."""
    config: SessionConfig
    turn_id: int
    epoch: int


class StageControl(msgspec.Struct, frozen=True, gc=False):
    """A preempting control for one stage (`StageEngine.control`)."""

    stage: int
    kind: str
    body: bytes


class ResponseRequest(msgspec.Struct, frozen=True):
    """A response that is to be made from the conversation. Items are in order; assistant items hold what
    was heard. `options` are those of `response.create` that the plugin accepted."""

    items: tuple[Item, ...]
    instructions: str | None
    turn_id: int
    epoch: int
    options: dict[str, Any] = {}
    config: SessionConfig | None = None
    """The session as it is configured now. None: nothing is configured."""


class DuplexModelPlugin(ABC, Generic[StateT]):
    """One model. Made once per process from its pipeline; sessions differ only in their state."""

    #: The Struct that `new_state` returns: checkpoints decode into it.
    state_type: type[StateT]
    traits: ModelTraits

    def __init__(self, pipeline: PipelineSpec) -> None:
        """Raises PipelineError for options it does not know."""
        self.pipeline = pipeline

    @abstractmethod
    def capabilities(self, max_sessions: int) -> DuplexCapabilities: ...

    def validate(self, config: SessionConfig, current: SessionConfig | None) -> None:
        """Refuse what the model cannot do; `current` is None at open. Raises RealtimeProtocolError."""

    def check_options(self, options: dict[str, Any], config: SessionConfig | None = None) -> None:
        """Refuse a `response.create` option that the model cannot honour, by name. `config`: the session as it is
        configured now."""

    @abstractmethod
    def new_state(self, config: SessionConfig) -> StateT: ...

    @abstractmethod
    def stage_configs(self, config: SessionConfig, state: StateT) -> tuple[bytes, ...]:
        """One opaque configuration for each stage of the pipeline, for `StageEngine.open`."""

    @abstractmethod
    def plan_unit(self, state: StateT, unit: InputUnit) -> AppendPlan:
        """The submission of one unit of input. May change `state`."""

    def plan_response(self, state: StateT, request: ResponseRequest) -> AppendPlan:
        """For `answers="plan"`: the submission that makes a response from the conversation."""
        raise AssertionError(f"{type(self).__name__} answers from units")

    def on_update(self, state: StateT, config: SessionConfig) -> None:
        """The session is configured anew; `validate` has agreed."""

    def on_turn_start(self, state: StateT, turn_id: int, epoch: int) -> None:
        """A turn that is to be answered begins (turn-based sessions and typed turns)."""

    def on_commit(self, state: StateT) -> str | None:
        """The user's turn was committed by the client or the detector: its transcript, if the model's
        session half knows it already."""
        return None

    def on_cancel(self, state: StateT, epoch: int) -> None:
        """The epoch moved: what was being said is over."""

    def on_tool_output(self, state: StateT, item: Item) -> AppendPlan | None:
        """The result of a function call has arrived; a plan feeds it to the model, None leaves it to the
        conversation."""
        return None

    def plan_rebuild(self, state: StateT, rebuild: Rebuild) -> Sequence[AppendPlan]:
        """What is submitted, as replays, to stages that were just opened, before they get anything live. May change
        `state`. Here: what was heard, as it was submitted the first time. A plan for `history` is the model's own."""
        return [AppendPlan(unit.head, unit.frames, unit.stage) for unit in rebuild.recorded]

    def on_item(self, state: StateT, item: Item) -> AppendPlan | None:
        """The client wrote an item without sound into the conversation: a message, or a call of its own. A plan gives
        it to the model now, None leaves it to the conversation. Never of a model that plans its answers: it is given
        the whole conversation."""
        return None

    def on_heard(self, state: StateT, heard_ms: int) -> StageControl | None:
        """So much of the latest answer was heard and no more will be: it is cancelled right after this, or is over and
        was cut. A control lets the engine know, ahead of the cancel."""
        return None

    def take_usage(self, state: StateT) -> Usage | None:
        """What the model took since this was last asked, beside what it told with its outputs. Asked once at the
        end of every response, whatever ended it."""
        return None

    def project(self, state: StateT, head: bytes, frames: Sequence[bytes]) -> Sequence[ModelOutput]:
        """The results of one `Output`. Audio stays in `frames[0]` for the one that has `audio_rate_hz`."""
        return (decode_output(head),)
