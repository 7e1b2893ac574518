"""The opening of a session, against a reference that neither streams nor batches, and beside others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("moshi", reason="the environment of the model is not here: `make env NAME=moshi`")

import numpy as np
import torch
from models.moshi.rig import DRAWN, Session, sound
from models.personaplex.reference import greedy

from duologue.model.engine import Slot, StageRefused
from duologue.models.moshi import engine as moshi_engine
from duologue.models.personaplex.options import PersonaPlexOptions
from duologue.models.personaplex.weights import load

if TYPE_CHECKING:
    from models.moshi.rig import Rig

pytestmark = [pytest.mark.models, pytest.mark.timeout(240)]
FRAMES = 12
ROLES = ("the quick fox", "nobody minds a lazy dog", "rain falls")


def tokens_of(rig: Rig, session: Session) -> list[list[int]]:
    """What the engine makes for a session alone: the nine tokens of each frame."""
    made: list[list[int]] = []
    batch = rig.engine._batch
    tick = batch.tick

    def listening(heard: Any, openings: Any) -> Any:
        frames = tick(heard, openings)
        made.extend([frame.text, *frame.codes.tolist()] for frame in frames.values())
        return frames

    batch.tick = listening  # type: ignore[method-assign]
    try:
        rig.alone(session)
    finally:
        del batch.tick
    return made


def reference(rig: Rig, session: Session) -> list[list[int]]:
    options = rig.engine.options
    assert isinstance(options, PersonaPlexOptions)
    loaded = load(options)
    role = loaded.tokenizer.encode(f"<system> {session.prompt} <system>") if session.prompt else []
    voice = None
    if session.voice:
        voice = torch.load(f"{options.checkpoint}/voices/{session.voice}.pt", weights_only=True)
    with torch.no_grad(), loaded.mimi.streaming(1):
        heard = [loaded.mimi.encode(torch.from_numpy(f.copy())[None, None])[0, :, 0] for f in session.frames]
        return greedy(loaded.lm, role, torch.stack(heard), voice)


@pytest.mark.parametrize("voice", ["", "NATF0", "VARM1"])
@pytest.mark.parametrize("role", ["", ROLES[0]])
def test_an_opened_session_says_what_the_model_says_position_by_position(rig: Rig, voice: str, role: str) -> None:
    session = Session(sound(1, FRAMES), voice=voice, prompt=role)
    made = tokens_of(rig, session)
    assert made == reference(rig, session)
    assert len({tuple(frame) for frame in made}) > FRAMES // 2, "it does not say one frame over and over"


def test_role_and_voice_make_a_difference(rig: Rig) -> None:
    kinds = [("", ""), ("NATF0", ""), ("VARM1", ""), ("", ROLES[0]), ("NATF0", ROLES[0])]
    said = [tokens_of(rig, Session(sound(1, 8), voice=voice, prompt=role)) for voice, role in kinds]
    assert all(a != b for n, a in enumerate(said) for b in said[:n])


def test_desynchronised_sessions_with_openings_and_a_reused_slot_equal_solo_runs(rig: Rig) -> None:
    sessions = [
        Session(sound(1, 24), voice="NATF0", prompt=ROLES[0]),
        Session(sound(2, 24), DRAWN, 7, voice="VARM1", prompt=ROLES[1], comes=lambda tick: tick >= 7),
        Session(sound(3, 24), prompt=ROLES[2], comes=lambda tick: tick % 3 != 0),
    ]
    rig.run(sessions)
    rig.close(sessions[1])
    again = Session(sound(4, 24), voice="NATF0", prompt=ROLES[1])
    rig.open(again, 1)
    while again.next_unit < 24:
        rig.step([again])
    rig.await_all([again])
    for session in (*sessions, again):
        if session is not sessions[1]:
            rig.close(session)
        assert session.told == rig.alone(session)
        assert any(frames for _, frames in session.told), "it speaks"


def test_an_opening_goes_on_by_itself_and_delays_nobody(rig: Rig) -> None:
    """While one opens, every live step of another is answered by the very call that brings it; and the opening is
    over though nobody asked for a step."""
    other = Session(sound(1, 17))
    rig.open(other, 0)
    rig.step([other])
    rig.await_all([other])
    opening = Session(sound(2, 1), voice="NATF0", prompt=ROLES[1])
    rig.open(opening, 1)
    for n in range(16):
        rig.step([other])
        assert len(other.told) == n + 2
    rig.step([opening])
    rig.await_all([opening])
    assert opening.slot is not None
    output = opening.told[0][0]
    assert output.usage is not None and output.usage.input_text_tokens > 5, "the role is counted once"
    rig.close(other)
    rig.close(opening)
    assert other.told == rig.alone(other)


def test_what_is_heard_during_the_opening_waits_and_is_caught_up(rig: Rig) -> None:
    session = Session(sound(3, 20), voice="NATF0", prompt=ROLES[0])
    rig.open(session, 0)
    while session.next_unit < 20:
        rig.step([session])
    rig.await_all([session])
    rig.close(session)
    assert session.told == rig.alone(session)


def test_what_waits_for_the_opening_is_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moshi_engine, "MAX_WAITING", 2)
    session = Session(sound(3, 4), voice="NATF0", prompt=f"{ROLES[1]} {ROLES[0]} {ROLES[2]}")
    rig.open(session, 0)
    rig.step([session])
    rig.step([session])
    [emission] = rig.engine.append_batch([session.take_unit()])
    assert emission.failure is not None and emission.failure.code == "stage_backlog"
    rig.close(session)


def test_what_does_not_fit_is_refused_before_it_costs_anything(rig: Rig) -> None:
    for session, named in (
        (Session(sound(1, 1), voice="NATF3"), "NATF3"),
        (Session(sound(1, 1), prompt="the lazy dog " * 400), "session.instructions"),
    ):
        with pytest.raises(StageRefused) as refused:
            rig.open(session, 0)
        assert refused.value.code == "invalid_duplex_runtime_config" and named in str(refused.value)
    assert rig.engine.usage().slots_used == 0
    rig.engine.close(Slot(0, 9))


def test_the_reference_is_deaf_to_nothing(rig: Rig) -> None:
    """Both sides hear: another sound gives other tokens."""
    one, other = Session(sound(1, 4)), Session(sound(2, 4))
    assert reference(rig, one) != reference(rig, other)
    assert not np.array_equal(one.frames, other.frames)
