"""What gateways sent and could not journal: one run of numbers, bounded, written in order and once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from unit.session.shell.shell_rig import owned, through

from duologue.fence import Owner
from duologue.session import backlog as module
from duologue.session.backlog import BATCH_EVENTS, Backlog
from duologue.store.memory import MemoryStore, run_now
from duologue.store.ports import Entry, Head, JournalAppender, OnAppended, Unknown

pytestmark = pytest.mark.unit


def entries(first: int, last: int, body: bytes = b"{}") -> list[Entry]:
    return [(through(1, n), body) for n in range(first, last + 1)]


class Refusing(JournalAppender):
    """Answers as it is told: takes nothing (None), or loses the batch; where nothing is told it passes on."""

    def __init__(self, inner: JournalAppender, *answers: Unknown | str | None) -> None:
        self.inner = inner
        self.answers = list(answers)
        self.firsts: list[int] = []

    def submit(
        self,
        session_id: str,
        owner: Owner,
        egress: int,
        first_seq: int,
        batch: Sequence[Entry],
        on_outcome: OnAppended,
    ) -> bool:
        self.firsts.append(first_seq)
        answer = self.answers.pop(0) if self.answers else "pass"
        if answer is None:
            return False
        if isinstance(answer, Unknown):
            asyncio.get_running_loop().call_soon(on_outcome, answer)
            return True
        return self.inner.submit(session_id, owner, egress, first_seq, batch, on_outcome)

    @property
    def connected(self) -> bool:
        return True


def test_what_follows_is_added_and_what_does_not_begins_anew() -> None:
    backlog = Backlog()
    backlog.add(5, entries(5, 7))
    backlog.add(8, entries(8, 9))
    assert (len(backlog), backlog.last) == (5, 9)
    assert [backlog.bridges(journaled, 9) for journaled in (3, 4, 6, 9)] == [False, True, True, True]
    assert not backlog.bridges(4, 10)
    backlog.add(12, entries(12, 12))
    assert (len(backlog), backlog.last) == (1, 12)
    backlog.journaled(20)
    assert (len(backlog), backlog.last) == (0, 0)
    assert not backlog.bridges(20, 20)


def test_what_the_journal_has_is_forgotten() -> None:
    backlog = Backlog()
    backlog.add(5, entries(5, 9))
    backlog.journaled(3)
    assert len(backlog) == 5
    backlog.journaled(7)
    assert (len(backlog), backlog.last) == (2, 9)


def test_beyond_the_bound_the_oldest_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    backlog = Backlog()
    backlog.add(1, entries(1, 4, b"x" * 30))
    assert (len(backlog), backlog.last) == (3, 4)
    assert not backlog.bridges(0, 4)
    backlog.add(5, entries(5, 5, b"x" * 500))
    assert (len(backlog), backlog.last) == (1, 5)


async def test_it_is_written_in_order_and_repeated_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPEAT_S", 0.0)
    store = MemoryStore()
    head = run_now(store.journal.claim("s", owner=owned(1)))
    assert isinstance(head, Head)
    backlog = Backlog()
    backlog.add(1, entries(1, 2 * BATCH_EVENTS + 1))
    appender = Refusing(store.appender, None, Unknown(), "pass", Unknown())
    assert await backlog.write(appender, "s", owned(1), head.egress)
    second, third = BATCH_EVENTS + 1, 2 * BATCH_EVENTS + 1
    assert appender.firsts == [1, 1, 1, second, second, third]
    replay = await store.journal.read("s", 0, limit=1000)
    assert [entry.seq for entry in replay.entries] == [entry.delivery.n for entry in replay.entries]
    assert len(replay.entries) == third
    assert len(backlog) == 0


async def test_a_refusal_ends_the_writing_and_keeps_what_is_left() -> None:
    store = MemoryStore()
    run_now(store.journal.claim("s", owner=owned(1), egress=9))
    backlog = Backlog()
    backlog.add(1, entries(1, 3))
    assert not await backlog.write(store.appender, "s", owned(1), 8)
    assert len(backlog) == 3


async def test_large_events_go_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES", 100)
    store = MemoryStore()
    head = run_now(store.journal.claim("s", owner=owned(1)))
    assert isinstance(head, Head)
    backlog = Backlog()
    backlog.add(1, entries(1, 3, b"x" * 60) + entries(4, 4, b"y" * 300))
    appender = Refusing(store.appender)
    assert await backlog.write(appender, "s", owned(1), head.egress)
    assert appender.firsts == [1, 2, 3, 4]
