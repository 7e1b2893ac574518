"""Many sessions on one copy of the weights: each as if it were alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from models.minicpmo_4_5.rig import Rig, Session, Told

pytestmark = pytest.mark.models

UNITS = 12


def sessions() -> list[Session]:
    from models.minicpmo_4_5.rig import GREEDY, Session, sound, tone_pcm

    return [
        Session(sound(1, UNITS), seed=1),
        Session(sound(2, UNITS), seed=2, voice=tone_pcm(260)),
        Session(sound(3, UNITS), seed=3, sampling=GREEDY, voice=tone_pcm(120), instructions="speak up"),
    ]


def side_by_side(rig: Rig, together: list[Session]) -> list[list[Told]]:
    """They begin one after another, and take turns in an order that changes."""
    for tick in range(UNITS + len(together)):
        order = list(enumerate(together))
        for index, session in order if tick % 2 else reversed(order):
            if session.slot is None and tick >= index:
                rig.open(session, index)
            if session.slot is not None and session.next_unit < UNITS:
                rig.step(session)
    rig.close_all()
    return [session.told for session in together]


def test_interleaved_sessions_equal_solo_runs(rig: Rig) -> None:
    together = sessions()
    alone = [rig.alone(session) for session in together]
    assert side_by_side(rig, together) == alone
    for told in alone:
        assert any(output.text and frames for output, frames in told), "it speaks"
    assert len({str(told) for told in alone}) == 3


def test_without_the_swap_they_corrupt_each_other(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what the swap is for."""
    from duologue.models.minicpmo_4_5 import seat

    names = {"of_model": "audio_past_key_values", "of_vocoder": "hift_cache_dict"}
    alone = [rig.alone(session) for session in sessions()]
    for kind, name in names.items():
        with monkeypatch.context() as patch:
            known = seat.OF_MODEL if kind == "of_model" else seat.OF_VOCODER
            patch.setattr(seat, kind.upper(), tuple(one for one in known if one != name))
            assert side_by_side(rig, sessions()) != alone, f"{name} is a session's own"
    with monkeypatch.context() as patch:
        patch.setattr(seat.Seat, "_draw_from", lambda self, random: None)
        assert side_by_side(rig, sessions()) != alone, "random numbers are a session's own"
    assert side_by_side(rig, sessions()) == alone


def test_the_voice_of_a_stream_is_swapped_too(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published vocoder refuses to go on with another voice than its last one: each session brings its own."""
    from models.minicpmo_4_5.rig import Session, sound, tone_pcm

    from duologue.models.minicpmo_4_5 import seat

    monkeypatch.setattr(seat, "OF_VOCODER", tuple(name for name in seat.OF_VOCODER if name != "_stream_prompt"))
    pair = [Session(sound(n, 12), seed=n, voice=tone_pcm(100.0 * n)) for n in (1, 2)]
    for n, session in enumerate(pair):
        rig.open(session, n)
    failures = [rig.emit(session).failure for _ in range(12) for session in pair]
    assert any(failure is not None and failure.code == "engine_error" for failure in failures)


def test_a_slot_that_was_used_before_is_as_good_as_new(rig: Rig) -> None:
    first, second, third = sessions()
    alone = rig.alone(second, 3)
    rig.open(first, 3)
    for _ in range(5):
        rig.step(first)
    rig.close(first)
    assert rig.alone(second, 3) == alone
    assert rig.alone(third, 3) == rig.alone(third, 0)


def test_a_seed_repeats_a_session_and_another_one_does_not(rig: Rig) -> None:
    session = sessions()[0]
    assert rig.alone(session) == rig.alone(session)
    other = session.again()
    other.seed = 99
    assert rig.alone(other) != rig.alone(session)


def test_everything_is_given_back(rig: Rig) -> None:
    for index, session in enumerate(sessions()):
        rig.open(session, index)
        for _ in range(4):
            rig.step(session)
    used = rig.engine.usage()
    assert used.slots_used == 3 and used.kv_tokens > 3 * 4 * 13
    assert used.state_bytes > used.kv_tokens * 2 * 2 * 64 * 4, "two layers of keys and values, and more"
    rig.close_all()
    empty = rig.engine.usage()
    assert (empty.slots_used, empty.kv_tokens, empty.state_bytes) == (0, 0, 0)
    assert not voices(rig), "what was written for the vocoder is gone"


def voices(rig: Rig) -> list[str]:
    assert rig.engine._folder is not None
    return [path.name for path in rig.engine._folder.iterdir()]
