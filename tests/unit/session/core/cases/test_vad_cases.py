"""Faults of turn detection that users reported elsewhere; VAD-02 and VAD-03 are in `test_turn_detection` too."""

from __future__ import annotations

import itertools

import pytest
from unit.session.core.session_world import World, error_codes, pick

from duologue.protocol.duplex import SessionUpdate
from duologue.session.core import Detect, Detected

pytestmark = pytest.mark.unit

STARTED, STOPPED = "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped"


def told_by(world: World, probabilities: list[float]) -> None:
    """The detector says this of the next frames, whatever they sound like."""
    line = iter(probabilities)

    def verdict(question: Detect) -> Detected:
        frames = len(question.sound) // 2048
        return Detected(question.ticket, b"s", tuple(itertools.islice(line, frames)))

    world.verdict = verdict  # type: ignore[method-assign]


@pytest.mark.parametrize("quiet", [0.3, 0.05, 0.45])
def test_vad_01_silence_is_unbroken_or_it_is_none(quiet: float) -> None:
    """Speech and pauses of 200 ms each for 5 s are one turn; then 500 ms of quiet end it, once."""
    world = World(turn_detection={"type": "server_vad", "silence_duration_ms": 500})
    alternating = [(0.9 if n // 6 % 2 == 0 else quiet) for n in range(156)]
    told_by(world, [*alternating, *[0.9] * 5, *[0.05] * 100])
    for _ in range(5000 // 40):
        world.say(40)
    assert len(pick(world.events, STARTED)) == 1
    assert pick(world.events, STOPPED) == []
    for _ in range(30):
        world.say(40)
    assert len(pick(world.events, STOPPED)) == 1
    spoken_ms = (156 + 5) * 32
    assert 500 <= pick(world.events, STOPPED)[0]["audio_end_ms"] - spoken_ms <= 600


@pytest.mark.parametrize("kind", ["server_vad", "semantic_vad"])
def test_vad_02_what_is_echoed_is_what_is_used(kind: str) -> None:
    world = World(turn_detection={"type": kind})
    assert pick(world.events, "session.updated")[0]["session"]["turn_detection"]["type"] == kind
    assert world.machine._ctx.rules is not None and world.machine._ctx.rules.asks is (kind == "semantic_vad")


@pytest.mark.parametrize("kind", ["none", "Semantic_VAD", 7, None])
def test_vad_02_what_is_not_served_is_refused(kind: object) -> None:
    world = World(turn_detection={"type": "server_vad"})
    seen = world.send(SessionUpdate(session={"turn_detection": {"type": kind}}))
    assert error_codes(seen) == ["unsupported_turn_detection"]
    assert seen[0]["error"]["param"] == "session.turn_detection.type"


@pytest.mark.parametrize("kind", ["server_vad", "semantic_vad"])
def test_vad_03_a_client_that_falls_silent_amid_a_word_is_no_open_turn(kind: str) -> None:
    world = World(turn_detection={"type": kind})
    for _ in range(10):
        world.say(80)
    assert pick(world.events, STOPPED) == []
    world.advance(10.0)
    assert len(pick(world.events, STOPPED)) == len(pick(world.events, "input_audio_buffer.committed")) == 1
