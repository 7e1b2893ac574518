"""Four stages that take 0.4 of a unit each: answers keep up with 60 s of speech, and with units one by one they do not.

The stages are queues in the test's own time: a unit leaves a stage 0.4 of a unit after it and the stage were both free.
"""

from __future__ import annotations

from heapq import heappop, heappush

import pytest
from unit.session.core.session_world import World, sound
from unit.session.core.test_rebuild import Remembering

from duologue.model.outputs import ModelOutput, encode_output
from duologue.protocol.duplex import AppendAudio
from duologue.session.core import StageOutput, Submit

pytestmark = pytest.mark.unit

UNIT_S, STAGES = 0.08, 4
COMPUTE_S = 0.4 * UNIT_S
UNITS = 750


class Stages:
    """The four of them, and the session that speaks to them."""

    def __init__(self, pipelined: bool) -> None:
        self.world = World(Remembering("none", pipelined=pipelined), auto=True)
        self.free_at = [0.0] * STAGES
        self.leaving: list[tuple[float, int, Submit]] = []
        self.lags: list[float] = []
        """How long after its last sample each unit was answered."""

    def _enter(self) -> None:
        """What was submitted goes through as soon as each stage is free."""
        waiting, self.world.waiting = self.world.waiting, []
        for unit in waiting:
            at = self.world.now
            for stage in range(STAGES):
                at = self.free_at[stage] = max(at, self.free_at[stage]) + COMPUTE_S
            heappush(self.leaving, (at, unit.unit, unit))

    def run_until(self, until: float) -> None:
        while self.leaving and self.leaving[0][0] <= until:
            self.world.now, _, unit = heappop(self.leaving)
            self.lags.append(self.world.now - (len(self.lags) + 1) * UNIT_S)
            listened = encode_output(ModelOutput(listen=True))
            self.world.fact(StageOutput(unit.fence, 3, -1, unit.unit, unit.turn_id, True, listened))
            self._enter()
        self.world.now = until

    def hear(self) -> None:
        """Sixty seconds of speech, in real time; then everything that is under way."""
        said = AppendAudio(audio=sound(UNIT_S * 1000))
        for n in range(UNITS):
            self.run_until((n + 1) * UNIT_S)
            self.world.send(said)
            self._enter()
        self.run_until(UNITS * UNIT_S * 3)


def test_units_in_a_pipeline_are_answered_in_real_time() -> None:
    stages = Stages(pipelined=True)
    stages.hear()
    assert len(stages.lags) == UNITS
    assert max(stages.lags) == pytest.approx(STAGES * COMPUTE_S), "as long as one unit takes, and never longer"
    assert max(stages.world.machine.observed.unit_lag_s) < 2 * UNIT_S


def test_units_one_by_one_fall_behind() -> None:
    stages = Stages(pipelined=False)
    stages.hear()
    behind = STAGES * COMPUTE_S - UNIT_S
    assert [stages.lags[n] for n in (0, 99)] == pytest.approx([STAGES * COMPUTE_S + n * behind for n in (0, 99)])
    assert len(stages.lags) < UNITS, "at last further sound is refused, see test_input_age"
