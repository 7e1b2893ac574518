"""Recorded sessions, played again under three hash seeds: the same effects each time, and the same as ever."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from itertools import zip_longest
from pathlib import Path

import msgspec
import pytest
from recordings.record import SCENES
from recordings.replay import SESSIONS, history, history_of, recorded, steps

from duologue.session.core import Attached, FromClient, StageOutput

pytestmark = pytest.mark.unit

FILES = sorted(SESSIONS.glob("*.jsonl.gz"))
HASH_SEEDS = ("0", "1", "12345")
_TESTS = Path(__file__).parents[2]


@cache
def replayed(hash_seed: str) -> list[str]:
    """Every step of every recording, in a process of its own: one line each."""
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(_TESTS)])
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    command = [sys.executable, "-m", "recordings.replay", *map(str, FILES)]
    return subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout.splitlines()


@pytest.mark.parametrize("hash_seed", HASH_SEEDS[1:])
def test_the_same_effects_under_every_hash_seed(hash_seed: str) -> None:
    """Down to the bodies of the checkpoints."""
    first, other = replayed(HASH_SEEDS[0]), replayed(hash_seed)
    parted = next((pair for pair in zip_longest(first, other) if pair[0] != pair[1]), None)
    assert parted is None, f"PYTHONHASHSEED {HASH_SEEDS[0]} and {hash_seed} part at {parted}"
    assert len(first) > 100 * len(FILES)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.partition(".")[0])
def test_the_same_effects_as_ever(file: Path) -> None:
    """A change that is meant: `python -m recordings.record --digests`, and look at what it changes."""
    kept, now = history_of(file).read_text().splitlines(), history(file).splitlines()
    parted = next((pair for pair in zip_longest(kept, now) if pair[0] != pair[1]), None)
    assert parted is None, f"kept {parted[0]}\n now {parted[1]}"


def test_what_is_recorded_covers_what_sessions_do() -> None:
    assert {file.name.partition(".")[0] for file in FILES} == set(SCENES)
    facts = [one.fact for file in FILES for one in recorded(file)[1]]
    said = {fact.command.type for fact in facts if isinstance(fact, FromClient)}
    wanted = {
        *("input_audio_buffer.append", "input_audio_buffer.commit", "input_audio_buffer.clear", "barge_in"),
        *("response.create", "response.cancel", "conversation.item.create", "conversation.item.retrieve"),
        *("playback.ack", "session.update", "session.heartbeat", "session.close"),
    }
    assert wanted <= said, wanted - said
    kinds = {type(fact).__name__ for fact in facts}
    assert {"Attached", "Detached", "Covered", "Delivered", "Detected", "StagesReady", "UnitsAborted"} <= kinds
    assert max(fact.generation for fact in facts if isinstance(fact, Attached)) >= 3, "nobody came back"
    assert sum(isinstance(fact, StageOutput) for fact in facts) > 200
    models = {recorded(file)[0].model for file in FILES}
    assert models == {"loopback", "loopback-talk", "loopback-1s"}


def test_another_fact_is_another_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest sees the content of effects, not only their kinds."""
    opening, facts = recorded(FILES[0])
    sounds = [(n, one.fact) for n, one in enumerate(facts) if isinstance(one.fact, StageOutput) and one.fact.frames]
    at, fact = sounds[0]
    before = list(steps(FILES[0]))
    silent = msgspec.structs.replace(fact, frames=(bytes(len(fact.frames[0])),))
    facts[at] = msgspec.structs.replace(facts[at], fact=silent)
    monkeypatch.setattr("recordings.replay.recorded", lambda file: (opening, facts))
    after = list(steps(FILES[0]))
    assert [step.effects for step in before] == [step.effects for step in after]
    assert before[at] == after[at]  # the first step is the opening
    assert before[-1].digest != after[-1].digest
