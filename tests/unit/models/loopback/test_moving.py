"""What the stages hold goes to fresh engines, as another worker has them, and the session does not notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from unit.models.loopback.chain import Chain, follow, said, sound, story, voice

from duologue.model.catalog import find_pipeline
from duologue.model.engine import Slot, StageRefused
from duologue.model.pipeline import resolve
from duologue.models.loopback.heads import HELD_VERSION, decode_held

pytestmark = pytest.mark.unit

UNITS = [voice(80, at_ms=80 * n) for n in range(24)]
SCRIPT: tuple[dict[str, Any], ...] = (
    {"listen": 3},
    {"speak": {"units": 6, "text": "one two three"}},
    {"when": "silence", "units": 4},
    {"speak": {"units": 4, "text": "four five"}},
)


def move(chain: Chain, index: int = 5) -> None:
    """All stages, into another slot of other engines."""
    pipeline, slot = find_pipeline(chain.config.model), Slot(index, 77)
    fresh = [resolve(stage.engine)(pipeline, i) for i, stage in enumerate(pipeline.stages)]
    for old, new in zip(chain.engines, fresh, strict=True):
        state = old.export_state(chain.slot)
        assert state is not None
        new.import_state(slot, state)
        old.close(chain.slot)
        assert old.usage().slots_used == 0 and new.usage().slots_used == 1
    chain.engines, chain.slot = fresh, slot


def echo() -> Chain:
    return follow(*SCRIPT, loopback={"audio": "echo"})


def remembers() -> Chain:
    return follow(*SCRIPT, loopback={"heard": 100, "audio": "tone:441.1"})


def talks() -> Chain:
    return Chain("loopback-talk", auto=False)


def faster() -> Chain:
    return follow(*SCRIPT, speed=1.25)


def run(chain: Chain, at: int = -1) -> list[Any]:
    results = []
    if not chain.auto:
        chain.turn()
    for n, pcm in enumerate(UNITS):
        if n == at:
            move(chain)
        silent = n >= 10
        results.append(chain.feed(bytes(len(pcm)) if silent else pcm, final=not chain.auto and n == 6))
    return results


@pytest.mark.parametrize("make", [echo, remembers, talks, faster], ids=lambda make: make.__name__)
@pytest.mark.parametrize("at", [1, 3, 5, 12, 15, 20])
def test_it_goes_on_where_it_was(make: Callable[[], Chain], at: int) -> None:
    stayed, moved = run(make()), run(make(), at)
    assert story(moved) == story(stayed) and "s" in story(stayed)[at:]
    assert said(moved) == said(stayed)
    assert np.array_equal(sound(moved), sound(stayed))


def test_what_was_heard_is_remembered_and_not_made_again() -> None:
    assert "(heard 14:" in said(run(remembers(), 10)), "ten of them went along"


def test_the_slot_that_was_asked_goes_on() -> None:
    chain = remembers()
    chain.run(5, UNITS[0])
    for engine in chain.engines:
        engine.export_state(chain.slot)
    other = remembers()
    assert said(other.run(5, UNITS[0]) + other.run(9)) == said(run_on(chain))


def run_on(chain: Chain) -> list[Any]:
    fresh = remembers()
    return [*fresh.run(5, UNITS[0]), *chain.run(9)]


def test_a_state_of_another_version_or_stage_is_refused_and_takes_no_slot() -> None:
    chain = echo()
    state = chain.engines[0].export_state(chain.slot)
    assert state is not None
    newer = msgspec.msgpack.encode(msgspec.structs.replace(decode_held(state), version=HELD_VERSION + 1))
    hear, word = echo().engines[:2]
    for engine, body in ((hear, newer), (word, state), (hear, b"\xc1"), (hear, b"")):
        with pytest.raises(StageRefused) as refused:
            engine.import_state(Slot(3, 9), body)
        assert refused.value.code == "state_unreadable"
        assert engine.usage().slots_used == 1


def test_a_full_engine_takes_no_state() -> None:
    chain = echo()
    state = chain.engines[2].export_state(chain.slot)
    assert state is not None
    other = echo().engines[2]
    for n in range(1, other.usage().slots_total):
        other.import_state(Slot(n, n + 1), state)
    with pytest.raises(StageRefused, match="no free slot"):
        other.import_state(Slot(other.usage().slots_total, 1), state)


def test_a_slot_that_is_another_ones_by_now_gives_nothing() -> None:
    chain = echo()
    assert chain.engines[0].export_state(Slot(chain.slot.index, 99)) is None
    assert chain.engines[0].export_state(Slot(7, 1)) is None
