"""Sessions in one batch that know nothing of each other get exactly what each gets alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("moshi", reason="the environment of the model is not here: `make env NAME=moshi`")

from models.moshi.rig import DRAWN, GREEDY, Session, sound

if TYPE_CHECKING:
    from models.moshi.rig import Rig

pytestmark = [pytest.mark.models, pytest.mark.timeout(240)]
FRAMES = 30


def desynchronised() -> list[Session]:
    """One that starts at once, one seven ticks late, one that misses every third tick."""
    return [
        Session(sound(1, FRAMES)),
        Session(sound(2, FRAMES), comes=lambda tick: tick >= 7),
        Session(sound(3, FRAMES), comes=lambda tick: tick % 3 != 0),
    ]


def test_three_desynchronised_sessions_and_a_reused_slot_equal_solo_runs(rig: Rig) -> None:
    sessions = desynchronised()
    rig.run(sessions)
    rig.close(sessions[1])
    again = Session(sound(4, FRAMES))
    rig.open(again, 1)
    while again.next_unit < FRAMES:
        rig.step([again])
    for session in (*sessions, again):
        if session is not sessions[1]:
            rig.close(session)
        assert session.told == rig.alone(session)
    said = ["".join(output.text for output, _ in session.told) for session in sessions]
    assert all(said) and len(set(said)) == 3, "they do not say the same, or nothing"


def test_what_a_slot_draws_depends_on_its_own_seed_and_temperature_alone(rig: Rig) -> None:
    sessions = desynchronised()
    sessions[0].sampling, sessions[1].sampling, sessions[2].sampling = DRAWN, GREEDY, DRAWN
    sessions[0].seed, sessions[2].seed = 11, 12
    rig.run(sessions)
    for session in sessions:
        rig.close(session)
    alone = [rig.alone(session, index=3 - n) for n, session in enumerate(sessions)]
    assert [session.told for session in sessions] == alone
    greedy = Session(sessions[0].frames)
    assert rig.alone(greedy) != alone[0], "a temperature makes a difference"
    sessions[0].seed = 13
    assert rig.alone(sessions[0]) != alone[0], "and so does the seed"


def test_the_package_itself_makes_the_same_of_a_greedy_session(rig: Rig) -> None:
    """Not our generator, batch and sampler, but the package's own loop over one session."""
    import numpy as np
    import torch
    from moshi.models.lm import LMGen

    from duologue.models.moshi.checkpoint import load

    loaded = load(rig.engine.options)
    session = Session(sound(5, FRAMES))
    pieces: list[str] = []
    pcm: list[bytes] = []
    with torch.no_grad():
        gen = LMGen(loaded.lm, use_sampling=False)
        with loaded.mimi.streaming(1), gen.streaming(1):
            for frame in session.frames:
                tokens = gen.step(loaded.mimi.encode(torch.from_numpy(frame.copy())[None, None]))
                if tokens is None:
                    continue
                made = loaded.mimi.decode(tokens[:, 1:])[0, 0].numpy()
                pcm.append((np.clip(made, -1, 1) * 32767.0).round().astype("<i2").tobytes())
                token = int(tokens[0, 0, 0])
                spoken = token not in (0, 1, 2, 3) and token < loaded.tokenizer.get_piece_size()
                pieces.append(loaded.tokenizer.id_to_piece(token).replace("▁", " ") if spoken else "")
    told = rig.alone(session)
    assert told[0][0].listen and not told[0][1], "the first frame has no sound"
    heard = [(output.text.strip(), sent) for output, sent in told[1:]]
    for n, (text, sent) in enumerate(heard):
        assert text == (pieces[n].strip() if sent else "")
        if sent:  # a batch of another size may round the last bit differently
            ours, theirs = (np.frombuffer(one, "<i2").astype(int) for one in (sent[0], pcm[n]))
            assert abs(ours - theirs).max() <= 1
    assert sum(bool(sent) for _, sent in heard) > 5
    assert all(sent for n, (_, sent) in enumerate(heard) if pieces[n]), "every word was heard"
