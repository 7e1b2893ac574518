"""Checkpoints are coalesced, repeated while the outcome is unknown, and stop at a refusal."""

from __future__ import annotations

import asyncio

import pytest

from duologue.fence import CommandNo, Owner
from duologue.session.background import Background
from duologue.session.checkpoints import Checkpointer
from duologue.session.core.effects import Checkpoint
from duologue.session.tallies import Tallies
from duologue.store.memory import MemoryStore
from duologue.store.ports import Done, Refused, SessionStore, StoreUnavailable
from duologue.store.sessions import ScriptedSessions

pytestmark = pytest.mark.unit

OWNER = Owner(3, "life")
HEARD = 0
"""Among the numbers of checkpoints: here what was heard is written."""


class Gated(ScriptedSessions):
    """Answers when `gate` is set; the first `away` calls do not reach it."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store.server)
        self.gate = asyncio.Event()
        self.away = 0
        self.written: list[int] = []

    async def checkpoint(self, session_id: str, owner: Owner, number: int, blob: bytes) -> Done | Refused:
        await self.gate.wait()
        self.written.append(number)
        if self.away:
            self.away -= 1
            raise StoreUnavailable("no answer")
        return await super().checkpoint(session_id, owner, number, blob)


class Rig:
    def __init__(self) -> None:
        self.store = Gated(MemoryStore())
        self.background = Background()
        self.confirmed: list[int] = []
        self.refused: list[Refused] = []
        self.deaf = 0
        """So many times the store does not take what was heard."""
        self.checkpointer = self.make(self.store)

    async def write_heard(self) -> None:
        self.store.written.append(HEARD)
        if self.deaf:
            self.deaf -= 1
            raise StoreUnavailable("no answer")

    def make(self, store: SessionStore, owner: Owner = OWNER, *, hears: bool = False) -> Checkpointer:
        return Checkpointer(
            store,
            self.background,
            "s",
            owner,
            confirmed=lambda order: self.confirmed.append(order.number),
            refused=self.refused.append,
            tallies=Tallies(),
            write_heard=self.write_heard if hears else None,
            retry_first_s=0.0,
        )

    def put(self, *numbers: int) -> None:
        for number in numbers:
            self.checkpointer.put(Checkpoint(number, b"%d" % number, CommandNo()))


async def test_of_those_that_wait_only_the_newest_is_written() -> None:
    rig = Rig()
    rig.put(1)
    await asyncio.sleep(0)
    rig.put(2, 3, 4)
    rig.store.gate.set()
    await rig.background.settle()
    assert rig.store.written == rig.confirmed == [1, 4]
    assert not rig.checkpointer.busy


async def test_an_unknown_outcome_is_repeated() -> None:
    rig = Rig()
    rig.store.away = 2
    rig.store.gate.set()
    rig.put(1)
    await rig.background.settle()
    assert rig.store.written == [1, 1, 1]
    assert (rig.confirmed, rig.checkpointer.failures) == ([1], 2)


async def test_a_newer_one_replaces_the_one_that_is_repeated() -> None:
    rig = Rig()
    rig.store.away = 1
    rig.put(1)
    await asyncio.sleep(0)
    rig.put(2)
    rig.store.gate.set()
    await rig.background.settle()
    assert (rig.store.written, rig.confirmed) == ([1, 2], [2])


async def test_what_was_heard_is_written_before_each_checkpoint_that_says_so() -> None:
    rig = Rig()
    rig.checkpointer = rig.make(rig.store, hears=True)
    rig.store.gate.set()
    rig.put(1)
    await rig.background.settle()
    rig.put(2)
    await rig.background.settle()
    assert rig.store.written == [HEARD, 1, HEARD, 2]
    assert rig.confirmed == [1, 2]


async def test_no_checkpoint_claims_what_the_store_did_not_take_of_what_was_heard() -> None:
    rig = Rig()
    rig.checkpointer = rig.make(rig.store, hears=True)
    rig.store.gate.set()
    rig.deaf = 2
    rig.put(1)
    await rig.background.settle()
    assert rig.store.written == [HEARD, HEARD, HEARD, 1]
    assert (rig.confirmed, rig.checkpointer.failures) == ([1], 2)


async def test_a_higher_owner_ends_it() -> None:
    rig = Rig()
    rig.store.gate.set()
    stored = await ScriptedSessions.checkpoint(rig.store, "s", Owner(9, "heir"), 1, b"theirs")
    assert isinstance(stored, Done)
    rig.put(1, 2)
    await rig.background.settle()
    assert rig.confirmed == []
    assert [refusal.reason for refusal in rig.refused] == ["owner"]


async def test_one_that_is_stored_already_counts_as_confirmed() -> None:
    rig = Rig()
    rig.store.gate.set()
    rig.put(5)
    await rig.background.settle()
    rig.put(4)  # its reply was lost, and a newer one of ours is there
    await rig.background.settle()
    assert (rig.confirmed, rig.refused) == ([5, 4], [])


async def test_after_stop_nothing_is_heard() -> None:
    rig = Rig()
    rig.put(1)
    await asyncio.sleep(0)
    rig.checkpointer.stop()
    rig.store.gate.set()
    await rig.background.settle()
    assert (rig.confirmed, rig.refused, rig.checkpointer.busy) == ([], [], False)
