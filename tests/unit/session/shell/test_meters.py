"""What a shard shows: each number moves with what happened, once, and stays when its session has ended."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from unit.session.shell.shell_rig import FENCE, Shell

from duologue.protocol.duplex import SessionHeartbeat
from duologue.session.core import commands as facts
from duologue.session.core import effects as orders
from duologue.session.core.engine_session import Totals
from duologue.session.core.observations import Observations
from duologue.session.meters import Meters
from duologue.session.shard import Shard
from duologue.session.usage_hook import UsageHook

pytestmark = pytest.mark.unit

LINE = re.compile(r"^(?P<series>duologue_\S+) (?P<value>\S+)$", re.MULTILINE)


class Metered:
    """A shell, and what has changed in its exposition since it was made."""

    def __init__(self) -> None:
        self.shell = shell = Shell(max_sessions=4)
        shell.register_workers()
        around = shell.around
        pipelines = [SimpleNamespace(name=shell.spec.name)]
        shard = SimpleNamespace(
            pipelines=pipelines,
            options=SimpleNamespace(id="shard-1", standby=True),
            incarnation="life",
            manager=shell.manager,
            admission=shell.admission,
            tallies=around.tallies,
            hub=shell.hub,
            workers=shell.workers,
            offload=shell.offload,
            detector=shell.detector,
            cleanup=around.cleanup,
            accounts=around.accounts,
            hand_over=SimpleNamespace(outcomes={}),
            chat=SimpleNamespace(results={"completed": 2}, used=lambda name: 1),
        )
        self._meters = Meters(cast(Shard, cast(Any, shard)))
        self._before: dict[str, float] = {}
        self._before = self._read()

    def _read(self) -> dict[str, float]:
        text = self._meters.render().decode()
        return {found["series"]: float(found["value"]) for found in LINE.finditer(text)}

    def grown(self, series: str) -> float:
        name = f"duologue_session_{series}"
        return self._read().get(name, 0.0) - self._before.get(name, 0.0)

    def value(self, series: str) -> float:
        return self._read()[f"duologue_session_{series}"]


@pytest.fixture
async def metered() -> AsyncIterator[Metered]:
    rig = Metered()
    yield rig
    await rig.shell.close()


async def test_sessions_headroom_and_refusals(metered: Metered) -> None:
    shell = metered.shell
    for number in range(4):
        await shell.open(f"s{number}")
    await shell.open("one-too-many")
    assert metered.value('live_sessions{pipeline="toy",state="attached"}') == 4
    assert metered.value("headroom_sessions") == 0
    assert metered.value("standby_ratio") == 1
    assert metered.grown('admissions_refused_total{reason="shard_full"}') == 1


async def test_what_sessions_observe_is_summed_and_outlives_them(metered: Metered) -> None:
    shell = metered.shell
    first, second = await shell.open("a"), await shell.open("b")
    for machine in (first, second):
        _plant(machine.observed)
    assert metered.grown("late_acks_total") == 4
    assert metered.grown("first_audio_seconds_count" + '{pipeline="toy"}') == 2
    assert metered.grown("first_audio_seconds_count" + '{pipeline="toy"}') == 2, "a sample is taken once"
    first.observed.unit_lag_s.append(0.25)
    shell.manager.residents[0].runner.finish()
    assert len(shell.manager) == 1
    assert metered.grown("late_acks_total") == 4
    assert metered.grown("purged_events_total") == 6
    assert metered.grown("input_rejected_total") == 2
    assert metered.grown('output_overflows_total{policy="close"}') == 2
    assert metered.grown('core_faults_total{result="restored"}') == 2
    assert metered.grown('unit_lag_seconds_count{pipeline="toy"}') == 1
    assert metered.grown("barge_in_seconds_count") == 2


def _plant(observed: Observations) -> None:
    observed.late_acks, observed.purged, observed.rejected = 2, 3, 1
    observed.overflows["close"] = 1
    observed.faults["restored"] = 1
    observed.first_audio_s.append(0.4)
    observed.barge_in_s.append(0.2)


async def test_a_fault_of_the_shell_is_told(metered: Metered) -> None:
    machine = await metered.shell.open()
    machine.script = lambda fact: [cast(orders.SessionEffect, None)]
    metered.shell.say("s", 1, SessionHeartbeat())
    assert metered.grown('core_faults_total{result="broken"}') == 1


async def test_poison_is_told(metered: Metered) -> None:
    machine = await metered.shell.open()
    metered.shell.manager.residents[0].runner.post(facts.CloseRequested("poison_input"))
    assert machine.closed
    metered.shell.manager.residents[0].runner.finish()
    assert metered.grown("poison_units_total") == 1


async def test_full_queues_are_told(metered: Metered) -> None:
    shell = metered.shell
    await shell.open()
    shell.worker_a.credit = False
    binding = shell.manager.residents[0].runner.binding
    for unit in range(257):
        binding.submit(orders.Submit(FENCE, 0, unit, 0, b"head", ()))
    assert metered.grown("stage_queue_full_total") == 1
    for _ in range(4):
        shell.offload.submit("upper", b"x", lambda result, error: None)
    assert metered.grown("offload_full_total") == 1


async def test_the_detectors_work_is_told(metered: Metered) -> None:
    detector = metered.shell.detector
    detector.frames, detector.full = 5, 1
    assert metered.grown("detector_frames_total") == 5
    assert metered.grown("detector_full_total") == 1


async def test_what_sessions_came_to_is_told_by_model_and_stays_when_they_have_ended(metered: Metered) -> None:
    shell = metered.shell
    machine = await shell.open()
    machine.totals = Totals(2500.0, 1000.0, 6, 2, 1, 2)
    spent = {
        'input_audio_seconds_total{pipeline="toy"}': 2.5,
        'output_audio_seconds_total{pipeline="toy"}': 1.0,
        'responses_total{outcome="completed",pipeline="toy"}': 3,
        'responses_total{outcome="cancelled",pipeline="toy"}': 2,
        'responses_total{outcome="failed",pipeline="toy"}': 1,
        'interruptions_total{pipeline="toy"}': 2,
    }
    assert {series: metered.grown(series) for series in spent} == spent
    shell.manager.residents[0].runner.finish()
    assert len(shell.manager) == 0
    assert {series: metered.grown(series) for series in spent} == spent


async def test_what_a_session_came_to_elsewhere_is_not_counted_again(metered: Metered) -> None:
    shell = metered.shell
    machine = await shell.open()
    resident = shell.manager.residents[0]
    resident._before = Totals(input_ms=60_000.0, responses=9)
    machine.totals = Totals(input_ms=61_000.0, responses=10)
    assert metered.grown('input_audio_seconds_total{pipeline="toy"}') == 1
    assert metered.grown('responses_total{outcome="completed",pipeline="toy"}') == 1


async def test_what_became_of_accounts_is_told(metered: Metered) -> None:
    accounts, background = metered.shell.around.accounts, metered.shell.background
    answers = [503, 404, 200]

    async def post(session_id: str, body: bytes) -> int:
        return answers.pop(0)

    async def at_once(seconds: float) -> None:
        pass

    accounts.hook = UsageHook(post, background, capacity=2, sleep=at_once)
    for number in range(3):
        accounts.hook.put(f"s{number}", b"{}")
    assert metered.value("usage_waiting_sessions") == 2
    await background.settle()
    told = {outcome: metered.grown(f'usage_accounts_total{{outcome="{outcome}"}}') for outcome in ("sent", "dropped")}
    assert told == {"sent": 1, "dropped": 1}
    assert metered.grown('usage_accounts_total{outcome="given_up"}') == 1
    assert metered.grown("usage_retries_total") == 1
    assert metered.value("usage_waiting_sessions") == 0
