"""The life of a slot: hard stops, bad frames, updates, replays, steps that fail half-way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("moshi", reason="the environment of the model is not here: `make env NAME=moshi`")

from models.moshi.rig import DRAWN, TALKING, Session, sound

from duologue.model.engine import Slot, StageRefused, StageUnit
from duologue.model.outputs import decode_output
from duologue.models.moshi.wire import FORCE_LISTEN, SlotConfig, encode_config

if TYPE_CHECKING:
    from models.moshi.rig import Rig, Told

pytestmark = [pytest.mark.models, pytest.mark.timeout(240)]


def speaks(told: Told) -> bool:
    return bool(told[1])


def until_it_speaks(rig: Rig, session: Session) -> None:
    rig.open(session, 0)
    while not (session.told and speaks(session.told[-1])):
        rig.step([session])


def test_a_hard_stop_mutes_the_slot_and_moves_nothing_in_the_model(rig: Rig) -> None:
    session = Session(sound(6, 120))
    before = rig.alone(session)
    until_it_speaks(rig, session)
    at = len(session.told)
    assert session.slot is not None
    rig.engine.cancel(session.slot, 1)
    while session.next_unit < 120:
        rig.step([session])
    rig.close(session)
    after = session.told
    assert not speaks(after[at]) and after[at][0].listen
    assert any(speaks(told) for told in before[at : at + 3]), "it would have gone on"
    back = next(n for n in range(at, 120) if speaks(after[n]))
    assert (back - at) * 80 >= TALKING.pause_ms or (back - at) * 80 >= TALKING.hush_ms
    same = [n for n in range(back, 120) if speaks(after[n]) and speaks(before[n])]
    assert same and all(after[n][1] == before[n][1] for n in same), "the model heard and went on as ever"


def test_a_unit_that_forces_listening_is_heard_and_not_answered(rig: Rig) -> None:
    session = Session(sound(6, 40))
    until_it_speaks(rig, session)
    unit = session.take_unit()
    quiet = StageUnit(unit.slot, unit.unit, 1, 0, 0, FORCE_LISTEN, unit.frames)
    [emission] = rig.engine.append_batch([quiet])
    assert decode_output(emission.head).listen and not emission.frames
    rig.close(session)


def test_a_replay_is_heard_and_answers_nothing(rig: Rig) -> None:
    session = Session(sound(6, 40))
    straight = rig.alone(session)
    rig.open(session, 0)
    for n in range(20):
        unit = session.take_unit()
        [emission] = rig.engine.append_batch([StageUnit(unit.slot, -2 - n, 1, 0, 0, b"", unit.frames, replay=True)])
        output = decode_output(emission.head)
        assert not emission.frames and not output.text and not output.listen and not output.end_of_turn
    session.told = straight[:20]
    while session.next_unit < 40:
        rig.step([session])
    rig.close(session)
    assert session.told == straight


@pytest.mark.parametrize("size", [0, 4, 1919 * 4, 3840 * 4])
def test_a_frame_of_another_size_fails_alone(rig: Rig, size: int) -> None:
    good, bad = Session(sound(7, 3)), Session(sound(8, 3))
    rig.open(good, 0)
    rig.open(bad, 1)
    assert bad.slot is not None
    rig.step([good])
    units = [good.take_unit(), StageUnit(bad.slot, 0, 1, 0, 0, b"", (bytes(size),))]
    emissions = {emission.slot: emission for emission in rig.engine.append_batch(units)}
    failure = emissions[bad.slot].failure
    assert failure is not None and failure.code == "runtime_append_failed" and not failure.retryable
    assert good.slot is not None and emissions[good.slot].failure is None
    rig.close(good)
    rig.close(bad)


def test_a_bad_configuration_and_a_closed_slot_are_refused(rig: Rig) -> None:
    with pytest.raises(StageRefused) as refused:
        rig.engine.open(Slot(0, 10_000), b"\xc1")
    assert refused.value.code == "invalid_duplex_runtime_config"
    with pytest.raises(StageRefused) as refused:
        rig.engine.open(Slot(4, 10_000), Session(sound(1, 1)).config)
    assert refused.value.code == "resource_exhausted"
    [emission] = rig.engine.append_batch([StageUnit(Slot(0, 10_000), 0, 1, 0, 0, b"", (bytes(1920 * 4),))])
    assert emission.failure is not None and emission.failure.code == "stage_not_open"
    rig.engine.close(Slot(0, 10_000))


def test_an_update_changes_how_tokens_are_drawn_from_the_next_step_on(rig: Rig) -> None:
    session = Session(sound(9, 60), seed=5)
    greedy = rig.alone(session)
    rig.open(session, 0)
    assert session.slot is not None
    for n in range(60):
        if n == 20:
            rig.engine.control(session.slot, "update", encode_config(SlotConfig(DRAWN, TALKING, 5)))
        rig.step([session])
    rig.close(session)
    assert session.told[:20] == greedy[:20]
    assert session.told[20:] != greedy[20:]


def test_the_use_of_slots_is_told(rig: Rig) -> None:
    empty = rig.engine.usage()
    assert (empty.slots_used, empty.slots_total, empty.state_bytes, empty.kv_tokens) == (0, 4, 0, 0)
    session = Session(sound(9, 5))
    rig.open(session, 2)
    for _ in range(5):
        rig.step([session])
    used = rig.engine.usage()
    assert used.slots_used == 1 and used.kv_tokens == 5
    assert used.state_bytes > 2 * 2 * 300 * 128 * 4, "two layers of keys and values at least"
    rig.close(session)
    assert rig.engine.usage() == empty


def test_after_half_a_step_every_session_is_asked_to_bind_anew(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Session(sound(1, 5)), Session(sound(2, 5))
    rig.open(first, 0)
    rig.open(second, 1)
    with monkeypatch.context() as patch:
        patch.setattr(rig.engine._batch._gen, "step", lambda codes: 1 / 0)
        [emission] = rig.engine.append_batch([first.take_unit()])
    assert emission.failure is not None and emission.failure.retryable
    [emission] = rig.engine.append_batch([second.take_unit()])
    assert emission.failure is not None and emission.failure.retryable, "its state moved too, or did not: unknown"
    rig.close(first)
    rig.close(second)
    assert rig.alone(Session(sound(1, 5))), "a slot that is opened again works"
