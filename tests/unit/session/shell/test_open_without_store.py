"""An open while the store does not answer: refused soon, and what the store may have done is taken back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from unit.session.shell.shell_rig import Shell

from duologue.bus.messages import SessionRefused
from duologue.session import opening
from duologue.store.ports import StoreUnavailable

pytestmark = pytest.mark.unit


class Stalled:
    """A session store that carries `own` out and loses the answers, until `back`."""

    def __init__(self, store: Any, *, hangs: bool) -> None:
        self._store = store
        self._hangs = hangs
        self.back = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def own(self, session_id: str, **how: Any) -> Any:
        done = await self._store.own(session_id, **how)
        if self.back:
            return done
        if self._hangs:
            await asyncio.Event().wait()
        raise StoreUnavailable("no answer")


@pytest.mark.parametrize("hangs", [True, False], ids=["silent", "broken"])
async def test_an_open_is_refused_soon_and_taken_back_when_the_store_is_there(
    hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_RETRY_S", 0.0)
    monkeypatch.setattr(opening, "_UNDO_RETRY_S", 0.0)
    shell = Shell()
    stalled = Stalled(shell.store.sessions, hangs=hangs)
    object.__setattr__(shell.around, "store", stalled)
    shell.register_workers()
    await shell.open_refused()
    async with asyncio.timeout(5):
        while not shell.gateway.of(SessionRefused):  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert [refused.code for refused in shell.gateway.of(SessionRefused)] == ["store_unavailable"]
        assert b"retry_after_ms" in shell.gateway.frames_of(SessionRefused)[0][0]
        assert not len(shell.admission), "its place is free"
        assert await shell.store.sessions.look_up("s") is not None, "the store had carried it out"
        stalled.back = True
        await shell.background.settle()
    assert await shell.store.sessions.look_up("s") is None
    await shell.close()


async def test_more_than_may_be_taken_back_are_left_to_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "MAX_UNDONE", 0)
    monkeypatch.setattr(opening, "_RETRY_S", 0.0)
    shell = Shell()
    object.__setattr__(shell.around, "store", Stalled(shell.store.sessions, hangs=False))
    shell.register_workers()
    await shell.open_refused()
    async with asyncio.timeout(5):
        await shell.background.settle()
    assert await shell.store.sessions.look_up("s") is not None
    await shell.close()
