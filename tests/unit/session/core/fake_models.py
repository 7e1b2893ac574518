"""Two models without weights: one that answers from its units, one that plans. A test decides what they say."""

from __future__ import annotations

from typing import Any

import msgspec

from duologue.model.pipeline import PipelineSpec, StageSpec
from duologue.model.plugin import AppendPlan, DuplexModelPlugin, InputUnit, ModelTraits, ResponseRequest
from duologue.protocol.duplex import DuplexCapabilities, Item, SessionConfig

UNIT_MS, RATE_HZ = 80, 16_000
UNIT_BYTES = UNIT_MS * RATE_HZ // 1000 * 4


class FakeState(msgspec.Struct):
    units: int = 0
    turns: int = 0
    cancels: int = 0
    transcript: str | None = None


class Head(msgspec.Struct):
    """What a stage is told of a unit, or of a response that is to be made."""

    kind: str
    start_ms: int = 0
    final: bool = False
    continuation: bool = False
    is_speech: bool = False
    said: tuple[tuple[str, str], ...] = ()
    instructions: str | None = None


class FakeModel(DuplexModelPlugin[FakeState]):
    state_type = FakeState

    def __init__(self, **traits: Any) -> None:
        stages = (StageSpec("hear", "x:y", "a"), StageSpec("talk", "x:y", "b"))
        super().__init__(PipelineSpec("fake", "x:y", stages))
        kind: dict[str, Any] = {"unit_ms": UNIT_MS, "input_rate_hz": RATE_HZ, "output_rate_hz": 24_000}
        self.traits = ModelTraits(**(kind | traits))
        self.transcript: str | None = None
        self.faults = 0
        self.text_turns = True
        self.asked: list[ResponseRequest] = []
        """What it was to make responses from."""
        self.tools: list[tuple[str, ...]] = []
        """The tools of each update that it was told of."""

    def capabilities(self, max_sessions: int) -> DuplexCapabilities:
        return DuplexCapabilities(supports_input_append=True, supports_text_only_turn=self.text_turns)

    def new_state(self, config: SessionConfig) -> FakeState:
        return FakeState()

    def stage_configs(self, config: SessionConfig, state: FakeState) -> tuple[bytes, ...]:
        return (b"hear", (config.instructions or "").encode())

    def plan_unit(self, state: FakeState, unit: InputUnit) -> AppendPlan:
        if self.faults:
            self.faults -= 1
            raise RuntimeError("a planted fault")
        assert len(unit.pcm) == UNIT_BYTES
        state.units += 1
        head = Head("unit", unit.start_ms, unit.final, unit.continuation, bool(unit.is_speech))
        return AppendPlan(msgspec.msgpack.encode(head), (unit.pcm,))

    def plan_response(self, state: FakeState, request: ResponseRequest) -> AppendPlan:
        self.asked.append(request)
        said = tuple((str(item.role), item.text) for item in request.items)
        return AppendPlan(
            msgspec.msgpack.encode(Head("response", said=said, instructions=request.instructions)), stage=1
        )

    def on_update(self, state: FakeState, config: SessionConfig) -> None:
        self.tools.append(tuple(str(tool["name"]) for tool in config.tools or ()))

    def on_turn_start(self, state: FakeState, turn_id: int, epoch: int) -> None:
        state.turns += 1

    def on_commit(self, state: FakeState) -> str | None:
        return self.transcript

    def on_cancel(self, state: FakeState, epoch: int) -> None:
        state.cancels += 1

    def on_tool_output(self, state: FakeState, item: Item) -> AppendPlan | None:
        return None


def head_of(head: bytes) -> Head:
    return msgspec.msgpack.decode(head, type=Head)


def planning() -> FakeModel:
    return FakeModel(answers="plan")
