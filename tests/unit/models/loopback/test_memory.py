"""What the loopback model remembers of the sound that it heard, and that replays make the same memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from unit.models.loopback.chain import Chain, follow, kind, said, sound, story, voice

from duologue.model.engine import StageUnit
from duologue.model.outputs import ModelOutput
from duologue.model.plugin import AppendPlan, InputUnit, Rebuild, RecordedUnit
from duologue.models.loopback.memory import checksum

pytestmark = pytest.mark.unit

LISTEN, SPEAK = {"listen": 3}, {"speak": {"units": 2, "text": "I heard"}}
UNITS = [voice(80, at_ms=80 * n) for n in range(12)]


def told(units: Sequence[bytes]) -> str:
    return f" (heard {len(units)}: {checksum(units):08x})"


def replay(chain: Chain, plan: AppendPlan, number: int) -> ModelOutput:
    """One unit through all stages as a replay; what the session would be told of it."""
    head, frames = plan.head, plan.frames
    for engine in chain.engines:
        (emission,) = engine.append_batch(
            [StageUnit(chain.slot, number, chain.turn_id, chain.epoch, 0, head, frames, replay=True)]
        )
        assert emission.last and emission.failure is None
        head, frames = emission.head, emission.frames
    assert not frames
    (output,) = chain.plugin.project(chain.state, head, frames)
    return output


def recorded(chain: Chain, units: Sequence[bytes]) -> tuple[RecordedUnit, ...]:
    plans = [chain.plugin.plan_unit(chain.state, InputUnit(pcm, 0, 0, 0, chain.auto)) for pcm in units]
    return tuple(RecordedUnit(n, 0, plan.stage, plan.head, plan.frames) for n, plan in enumerate(plans))


def rebuild(chain: Chain, units: Sequence[bytes]) -> None:
    """Other engines, which begin with nothing, are given these."""
    for engine in chain.engines:
        engine.close(chain.slot)
    known = Rebuild("input", "worker_lost", recorded(chain, units), (), chain.config, 0, chain.epoch)
    chain.open()
    for n, plan in enumerate(chain.plugin.plan_rebuild(chain.state, known)):
        output = replay(chain, plan, -2 - n)
        assert kind(output) == "u" and not output.text


def test_what_it_says_tells_what_it_heard() -> None:
    chain = follow(LISTEN, SPEAK, LISTEN, SPEAK, loopback={"heard": 4})
    results = [chain.feed(pcm) for pcm in UNITS[:10]]
    assert said(results[:5]) == f"I{told(UNITS[:4])} heard"
    assert said(results[5:]) == f"I{told(UNITS[5:9])} heard"
    output = results[3][0]
    assert output.marks[-1].text_chars == len(output.text)


def test_silence_of_the_session_is_not_what_the_user_said() -> None:
    chain = follow({"listen": 2}, SPEAK, loopback={"heard": 8})
    chain.feed(UNITS[0])
    chain.feed(continuation=True)
    assert said([chain.feed(UNITS[1])]) == f"I{told(UNITS[:2])}"


def test_a_rebuilt_memory_is_the_lost_one_and_moves_nothing_else() -> None:
    lost, kept = (follow(LISTEN, SPEAK, {"listen": 2}, SPEAK, loopback={"heard": 6}) for _ in range(2))
    for chain in (lost, kept):
        for pcm in UNITS[:6]:
            chain.feed(pcm)
    rebuild(lost, UNITS[:6])
    assert lost.state.at == kept.state.at
    after = [[chain.feed(pcm) for pcm in UNITS[6:9]] for chain in (lost, kept)]
    assert story(after[0]) == story(after[1]) == "lsS"
    assert said(after[0]) == said(after[1]) == f"I{told(UNITS[2:8])} heard"


def test_a_memory_that_is_not_rebuilt_is_another_one() -> None:
    chain = follow(LISTEN, SPEAK, loopback={"heard": 6})
    for pcm in UNITS[:3]:
        chain.feed(pcm)
    rebuild(chain, [])
    assert said([chain.feed(UNITS[3])]) == f"I{told(UNITS[3:4])}"


def test_an_echo_after_a_rebuild_begins_where_the_sound_before_ended() -> None:
    lost, kept = (follow(LISTEN, SPEAK, loopback={"audio": "echo"}) for _ in range(2))
    for chain in (lost, kept):
        for pcm in UNITS[:3]:
            chain.feed(pcm)
    rebuild(lost, UNITS[:3])
    ours, theirs = (sound([chain.feed(UNITS[3])]) for chain in (lost, kept))
    assert np.array_equal(ours, theirs)
