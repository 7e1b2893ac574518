"""What is done for sessions in which nothing happens, and for those that are over."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from unit.session.shell.shell_rig import Shell, owned

from duologue.fence import Owner
from duologue.session.reaper import TOUCH_AFTER_S, Reaper
from duologue.store.ports import Done, Refused, StoreUnavailable
from duologue.store.sessions import ScriptedSessions

pytestmark = pytest.mark.unit


class Watched(ScriptedSessions):
    """Counts touches and releases; does not answer while `away`."""

    away = False
    touched = released = 0

    async def touch(self, session_id: str, owner: Owner) -> Done | Refused:
        self.touched += 1
        if self.away:
            raise StoreUnavailable("no answer")
        return await super().touch(session_id, owner)

    async def release(self, session_id: str, owner: Owner) -> Done | Refused:
        self.released += 1
        if self.away:
            raise StoreUnavailable("no answer")
        return await super().release(session_id, owner)


class Rig(Shell):
    def __init__(self) -> None:
        super().__init__()
        self.watched = Watched(self.store.server)
        for place in (self.around, self.around.cleanup):
            object.__setattr__(place, "store" if place is self.around else "_store", self.watched)
        self.reaper = Reaper(self.around, lambda: self.manager.residents, 0.0)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    made.register_workers()
    yield made
    await made.close()


async def test_only_a_silent_session_is_touched_and_then_not_again(rig: Rig) -> None:
    await rig.open("busy")
    await rig.open("silent")
    rig.manager.residents[1].touched_at -= TOUCH_AFTER_S
    await rig.reaper.sweep()
    await rig.reaper.sweep()
    assert rig.watched.touched == 1


async def test_a_touch_that_is_refused_ends_the_session_here(rig: Rig) -> None:
    await rig.open("s")
    await rig.store.sessions.own("s", incarnation="heir", above=1)
    rig.manager.residents[0].touched_at -= TOUCH_AFTER_S
    await rig.reaper.sweep()
    assert (len(rig.manager), rig.manager.ended) == (0, {"owner_changed": 1})


async def test_a_store_that_is_away_is_asked_at_the_next_sweep(rig: Rig) -> None:
    await rig.open("s")
    rig.manager.residents[0].touched_at -= TOUCH_AFTER_S
    rig.watched.away = True
    await rig.reaper.sweep()
    rig.watched.away = False
    await rig.reaper.sweep()
    assert rig.watched.touched == 2
    assert len(rig.manager) == 1


async def test_a_release_is_tried_until_it_is_done(rig: Rig) -> None:
    await rig.open("s")
    rig.watched.away = True
    rig.manager.residents[0].runner.finish()
    await rig.background.settle()
    assert len(rig.around.cleanup) == 1
    await rig.reaper.sweep()
    await rig.background.settle()
    rig.watched.away = False
    await rig.reaper.sweep()
    await rig.background.settle()
    assert (len(rig.around.cleanup), rig.watched.released) == (0, 3)
    assert await rig.store.sessions.look_up("s") is None


async def test_releases_that_pile_up_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duologue.session.cleanup.MAX_PENDING", 2)
    rig.watched.away = True
    for n in range(4):
        rig.around.cleanup.release(f"s{n}", owned(1))
        await rig.background.settle()
    assert (len(rig.around.cleanup), rig.around.cleanup.given_up) == (2, 2)
