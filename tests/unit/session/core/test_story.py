"""The story of a session: what an operator may see of it, and nothing of what was said."""

from __future__ import annotations

import json
import sys
from typing import cast, get_args

import pytest

from duologue.fence import CommandNo, DeliveryId, StageFence
from duologue.protocol.duplex import AppendAudio, Dialect, SessionConfig, SessionUpdate
from duologue.session.core import commands as facts
from duologue.session.core import effects as orders
from duologue.session.core.engine_session import DuplexEngineSession
from duologue.session.core.limits import SessionLimits
from duologue.session.core.story import EFFECTS, FACTS, LENGTH, MAX_ID, MAX_SHOWN, Story

pytestmark = pytest.mark.unit

SAID = "MY-SECRET-WORDS"
SOUND = SAID.encode() * 40
FENCE = StageFence(1, 2, 3)
NAMELESS = {facts.Tick, facts.CheckpointWanted}
"""Kinds of which there is nothing to show."""


def _state() -> DuplexEngineSession:
    return DuplexEngineSession(
        "sess",
        b"seed",
        1,
        Dialect.duplex,
        SessionConfig(model="m"),
        SessionLimits(),
        0.0,
        1,
        binding=2,
        epoch=3,
        turn_id=4,
    )


def test_a_story_shows_ids_sizes_epochs_and_times_and_nothing_that_was_said() -> None:
    story, state = Story(), _state()
    append = AppendAudio(audio=SOUND, text=SAID, transcript=SAID, event_id="e-1")
    story.step(1.25, state, facts.FromClient(CommandNo(1, 7), append), [orders.Submit(FENCE, 0, 9, 4, SOUND, (SOUND,))])
    update = SessionUpdate(session={"instructions": SAID, "tools": [{"name": SAID}]})
    story.step(1.5, state, facts.FromClient(CommandNo(1, 8), update), [])
    output = facts.StageOutput(FENCE, 1, -1, 9, 4, True, SOUND, (SOUND, SOUND))
    delta = json.dumps({"type": "response.output_audio.delta", "delta": SAID}, separators=(",", ":")).encode()
    story.step(2.0, state, output, [orders.Deliver(11, delta, "resp-1"), orders.Checkpoint(5, SOUND, CommandNo(1, 8))])
    story.step(2.5, state, facts.StageFailed(FENCE, 1, 9, "engine_error", SAID), [orders.JudgeTurn(3, SOUND)])
    story.step(
        3.0, state, facts.Offloaded(1, SOUND, SAID), [orders.Offload(2, "convert", SOUND), orders.Detect(4, b"", SOUND)]
    )
    told = story.told()
    assert SAID not in json.dumps(told)
    fence = {"owner": 1, "binding": 2, "epoch": 3, "turn": 4}
    assert told[0] == {
        "at": 1.25,
        "fact": "FromClient",
        "command": "input_audio_buffer.append",
        "event_id": "e-1",
        "bytes": len(SOUND),
        "generation": 1,
        "n": 7,
        "fence": fence,
        "effects": [
            {"effect": "Submit", "stage": 0, "unit": 9, "of_turn": 4, "bytes": 2 * len(SOUND)},
        ],
    }
    assert told[2]["effects"] == [
        {
            "effect": "Deliver",
            "n": 11,
            "event": "response.output_audio.delta",
            "bytes": len(delta),
            "media_of": "resp-1",
            "close_code": 0,
        },
        {"effect": "Checkpoint", "number": 5, "bytes": len(SOUND), "applied": 8},
    ]
    assert told[3]["code"] == "engine_error"


def test_only_the_last_steps_are_kept_and_an_endless_id_is_cut() -> None:
    story, state = Story(), _state()
    for number in range(3 * LENGTH):
        story.step(number, state, facts.Covered(number), [])
    assert len(story) == LENGTH
    assert story.told()[0]["number"] == 2 * LENGTH
    long = AppendAudio(event_id="x" * 100_000)
    story.step(0.0, state, facts.FromClient(CommandNo(1, 1), long), [orders.Abort(FENCE)] * (MAX_SHOWN + 5))
    last = story.told()[-1]
    assert last["event_id"] == "x" * MAX_ID
    assert len(cast(list[object], last["effects"])) == MAX_SHOWN
    assert last["more_effects"] == 5


def test_a_full_story_takes_no_more_memory() -> None:
    story, state = Story(), _state()
    fact = facts.FromClient(CommandNo(1, 1), AppendAudio(audio=bytes(1_000_000)))
    deliver = orders.Deliver(1, b'{"type":"response.done",' + bytes(1_000_000))
    for _ in range(LENGTH):
        story.step(1.0, state, fact, [deliver])
    held = sum(_size(step) for step in story._steps)
    assert held < 400 * 1024


def _size(value: object) -> int:
    inside = sum(map(_size, value)) if isinstance(value, tuple | list) else 0
    return sys.getsizeof(value) * (not isinstance(value, type)) + inside


def test_every_kind_of_fact_and_effect_has_its_place_or_none_on_purpose() -> None:
    kinds = set(get_args(facts.SessionCommand)) - NAMELESS
    assert kinds == set(FACTS)
    assert set(get_args(orders.SessionEffect)) == set(EFFECTS)


def test_what_acknowledges_is_told_by_its_numbers() -> None:
    story = Story()
    story.step(1.0, _state(), facts.Delivered(DeliveryId(1, 42)), [])
    assert story.told()[0]["through"] == 42
    assert story.told()[0]["of_owner"] == 1
