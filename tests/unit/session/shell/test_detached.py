"""The shard's own egress, on the store's real scripts: it claims, goes on numbering, and yields."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
from unit.session.shell.shell_rig import FENCE, FakeLink, Shell, owned, through

from duologue.bus import messages as bus
from duologue.bus.link import PeerLost
from duologue.fence import Owner
from duologue.session.detached import Detacher
from duologue.store.ports import AppendOutcome, Entry, Head, JournalAppender, OnAppended, Unknown

pytestmark = pytest.mark.unit


class Lossy(JournalAppender):
    """Loses the reply of the next `losses` batches, though they got in."""

    def __init__(self, inner: JournalAppender) -> None:
        self.inner = inner
        self.losses = 0
        self.refuses = False
        """Takes nothing."""

    def submit(
        self,
        session_id: str,
        owner: Owner,
        egress: int,
        first_seq: int,
        batch: Sequence[Entry],
        on_outcome: OnAppended,
    ) -> bool:
        if self.refuses:
            return False
        lose = self.losses > 0
        self.losses -= lose

        def told(outcome: AppendOutcome) -> None:
            on_outcome(Unknown() if lose else outcome)

        return self.inner.submit(session_id, owner, egress, first_seq, batch, told)

    @property
    def connected(self) -> bool:
        return True


class Detached(Shell):
    """The shell with the real egress, over the scripts of the in-memory store."""

    def __init__(self) -> None:
        super().__init__()
        self.lossy = Lossy(self.store.appender)
        self.now = 0.0
        self.detacher = Detacher(self.store.journal, self.lossy, self.background, lambda: self.now, yield_s=0.0)
        self.make_egress = self.detacher.make

    async def settle(self) -> None:
        """Until the store has answered everything and nothing is left to send."""
        for _ in range(8):
            await self.background.settle()
            await self.turn()
            self.detacher.pumps.tick()

    async def journal(self) -> list[tuple[int, int]]:
        """(seq, n) of every entry."""
        replay = await self.store.journal.read("s", 0)
        return [(entry.seq, entry.delivery.n) for entry in replay.entries]


@pytest.fixture
async def shell() -> AsyncIterator[Detached]:
    made = Detached()
    made.register_workers()
    yield made
    await made.close()


def result(shell: Shell) -> None:
    shell.board.on_message(shell.worker_b, bus.Output("s", FENCE, 3, -1, 1, 0), [b"out"])


async def attached_gateway_has_journaled(shell: Detached) -> Head:
    """The first event is in the journal under the gateway's egress, and acknowledged."""
    head = await shell.store.journal.claim("s", owner=owned(1), generation=1)
    assert isinstance(head, Head)
    await shell.store.journal.append("s", owned(1), head.egress, 1, [(through(1, 1), b'{"n":1}')])
    shell.board.on_message(shell.gateway, bus.Delivered("s", owned(1), head.egress, through(1, 1), 1), [])
    return head


async def test_a_detached_session_goes_on_where_the_gateway_stood(shell: Detached) -> None:
    await shell.open()
    gateway = await attached_gateway_has_journaled(shell)
    result(shell)  # handed over, and lost with the gateway
    shell.board.on_message(shell.gateway, bus.Detach("s", 1), [])
    result(shell)
    await shell.settle()
    assert await shell.journal() == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]
    [resident] = shell.manager.residents
    assert resident.runner.output.pending == 0
    numbering = resident.attachment.numbering
    assert (numbering.seq, numbering.through) == (5, through(1, 5))
    assert numbering.egress > gateway.egress


async def test_what_got_in_before_the_gateway_died_is_not_journaled_twice(shell: Detached) -> None:
    await shell.open()
    gateway = await attached_gateway_has_journaled(shell)
    result(shell)
    await shell.store.journal.append("s", owned(1), gateway.egress, 2, [(through(1, 2), b'{"n":2}')])
    shell.board.on_message(shell.gateway, bus.Detach("s", 1), [])
    await shell.settle()
    assert await shell.journal() == [(1, 1), (2, 2), (3, 3)]
    assert shell.manager.residents[0].runner.output.pending == 0


async def test_a_lost_reply_is_asked_again_and_nothing_is_doubled(shell: Detached) -> None:
    await shell.open()
    await attached_gateway_has_journaled(shell)
    shell.lossy.losses = 2
    shell.board.on_message(shell.gateway, bus.Detach("s", 1), [])
    result(shell)
    await shell.settle()
    assert await shell.journal() == [(1, 1), (2, 2), (3, 3)]


async def test_a_resume_takes_the_journal_and_gets_the_rest(shell: Detached) -> None:
    await shell.open()
    await attached_gateway_has_journaled(shell)
    shell.board.on_message(shell.gateway, bus.Detach("s", 1), [])
    result(shell)
    await shell.settle()
    head = await shell.store.journal.claim("s", owner=owned(1), generation=2)
    assert isinstance(head, Head)
    assert (head.last_seq, head.last_delivery) == (3, through(1, 3))
    second = FakeLink("g2", "gateway")
    shell.board.on_message(second, bus.Attach("s", 2, head.egress, "g2"), [])
    result(shell)
    await shell.settle()
    assert [event.n for message in second.of(bus.Deliveries) for event in message.events] == [4, 5]
    assert len(await shell.journal()) == 3


async def test_a_claim_yields_to_a_newer_attachment_and_comes_back_if_that_never_attaches(
    shell: Detached,
) -> None:
    await shell.open()
    await attached_gateway_has_journaled(shell)
    rival = await shell.store.journal.claim("s", owner=owned(1), generation=2)
    assert isinstance(rival, Head)
    shell.board.on_message(shell.gateway, bus.Detach("s", 1), [])
    result(shell)
    await shell.settle()
    assert await shell.journal() == [(1, 1), (2, 2), (3, 3)]
    assert shell.manager.residents[0].attachment.numbering.egress > rival.egress


async def test_an_egress_that_lost_the_journal_offers_everything_again(shell: Detached) -> None:
    await shell.open()
    await attached_gateway_has_journaled(shell)
    shell.board.on_message(shell.gateway, bus.Detach("s", 1), [])
    await shell.settle()
    await shell.store.journal.claim("s", owner=owned(1), generation=2)  # and dies
    result(shell)
    await shell.settle()
    assert await shell.journal() == [(1, 1), (2, 2), (3, 3)]


async def test_a_higher_owner_in_the_journal_ends_the_session_here(shell: Detached) -> None:
    await shell.open()
    await attached_gateway_has_journaled(shell)
    await shell.store.journal.claim("s", owner=Owner(9, "heir"))
    shell.board.on_message(shell.gateway, bus.Detach("s", 1), [])
    await shell.settle()
    assert (len(shell.manager), len(shell.admission)) == (0, 0)
    assert shell.manager.ended == {"owner_changed": 1}


async def test_a_detached_session_that_ends_is_released_once_its_end_is_journaled(shell: Detached) -> None:
    machine = await shell.open()
    await attached_gateway_has_journaled(shell)
    shell.board.on_message(shell.gateway, bus.Detach("s", 1), [])
    await shell.settle()
    shell.manager.close_all("shutdown", 1012)
    assert machine.closed
    await shell.settle()
    assert len(shell.manager) == 0
    assert await shell.store.sessions.look_up("s") is None


async def test_a_store_that_forgot_does_not_take_the_numbering_back(shell: Detached) -> None:
    await shell.open()
    acknowledged = bus.Delivered("s", owned(1), 7, through(1, 1), 4)
    shell.board.on_message(shell.gateway, acknowledged, [])
    assert await shell.store.journal.head("s") is None  # it has lost the four events, and the claims
    shell.board.on_message(shell.gateway, bus.Detach("s", 1), [])
    result(shell)
    await shell.settle()
    head = await shell.store.journal.head("s")
    assert head is not None
    assert (head.egress, head.last_seq, head.last_delivery) == (8, 6, through(1, 3))


# -- what gateways had sent and could not journal --------------------------------------------------------


def kept(generation: int, first: int, last: int) -> tuple[bus.Kept, list[bytes]]:
    ids = tuple(through(1, n) for n in range(first, last + 1))
    return bus.Kept("s", generation, first, ids), [b'{"n":%d}' % id.n for id in ids]


def sent_live(shell: Detached, egress: int, last: int) -> None:
    """The gateway has told 1 to `last`, of which the journal has the first only."""
    for _ in range(last // 2):
        result(shell)
    shell.board.on_message(shell.gateway, bus.Delivered("s", owned(1), egress, through(1, last), last), [])


async def attaches(shell: Detached, link: FakeLink, generation: int) -> None:
    """A gateway claims the journal for this generation, and says so."""
    head = await shell.store.journal.claim("s", owner=owned(1), generation=generation)
    assert isinstance(head, Head)
    message = bus.Attach("s", generation, head.egress, link.peer.name, journaled=head.last_seq)
    shell.board.on_message(link, message, [])


async def test_what_a_gateway_had_sent_without_the_store_is_journaled_before_anything_new(shell: Detached) -> None:
    await shell.open()
    gateway = await attached_gateway_has_journaled(shell)
    sent_live(shell, gateway.egress, 5)
    result(shell)
    shell.board.on_message(shell.gateway, *kept(1, 2, 3))
    shell.board.on_message(shell.gateway, *kept(1, 4, 5))
    shell.board.on_message(shell.gateway, bus.Detach("s", 1), [])
    shell.lossy.losses = 1
    await shell.settle()
    assert await shell.journal() == [(n, n) for n in range(1, 8)]
    numbering = shell.manager.residents[0].attachment.numbering
    assert (len(numbering.backlog), numbering.holed) == (0, False)


@pytest.mark.parametrize("at", ["the resume comes after it left", "it is still there, half open"])
async def test_a_gateway_that_attaches_first_waits_for_what_the_one_before_had_sent(shell: Detached, at: str) -> None:
    await shell.open()
    gateway = await attached_gateway_has_journaled(shell)
    sent_live(shell, gateway.egress, 5)
    head = await shell.store.journal.claim("s", owner=owned(1), generation=2)
    assert isinstance(head, Head)
    if at.startswith("the resume"):
        shell.board.on_message(shell.gateway, *kept(1, 2, 5))
        shell.board.on_message(shell.gateway, bus.Detach("s", 1), [])
    second = FakeLink("g2", "gateway")
    shell.board.on_message(second, bus.Attach("s", 2, head.egress, "g2", journaled=head.last_seq), [])
    result(shell)
    if at.startswith("it is still"):
        assert shell.gateway.of(bus.Replaced) == [bus.Replaced("s", 2)]
        await shell.turn()
        assert second.sent == []
        shell.board.on_message(shell.gateway, *kept(1, 2, 5))
        await shell.turn()
        assert second.sent == []
        shell.board.on_message(shell.gateway, bus.Detach("s", 1), [])
    await shell.settle()
    [attached] = second.of(bus.Attached)
    assert (attached.seq, attached.journaled) == (5, 5)
    assert [event.n for message in second.of(bus.Deliveries) for event in message.events] == [6, 7]
    assert second.frames_of(bus.Attached)[0][1] == b""
    assert await shell.journal() == [(n, n) for n in range(1, 6)]
    shell.board.on_message(shell.gateway, *kept(1, 2, 5))  # late: it is there
    assert len(shell.manager.residents[0].attachment.numbering.backlog) == 0


@pytest.mark.parametrize("ends", ["its last word", "its link", "the wait"])
async def test_a_takeover_numbers_nothing_before_the_last_word_of_the_gateway_that_it_replaces(
    shell: Detached, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """It may be sending without the journal just now: what it says of that is on its way."""
    monkeypatch.setattr("duologue.session.attachment.GLANCE_S", 0.02 if ends == "the wait" else 60.0)
    await shell.open()
    gateway = await attached_gateway_has_journaled(shell)
    second = FakeLink("g2", "gateway")
    await attaches(shell, second, 2)
    result(shell)
    await shell.turn()
    assert shell.gateway.of(bus.Replaced) == [bus.Replaced("s", 2)] and second.sent == []
    expected = (1, 1, [2, 3])
    if ends == "its last word":
        late = bus.Delivered("s", owned(1), gateway.egress, through(1, 3), 3)
        shell.board.on_message(shell.gateway, late, [])
        shell.board.on_message(shell.gateway, *kept(1, 2, 3))
        shell.board.on_message(shell.gateway, bus.Detach("s", 1), [])
        expected = (3, 3, [])
    elif ends == "its link":
        shell.board.on_lost(shell.gateway, PeerLost(shell.gateway.peer, "closed"))
    await shell.settle()
    [attached] = second.of(bus.Attached)
    events = [event.n for message in second.of(bus.Deliveries) for event in message.events]
    assert (attached.seq, attached.journaled, events) == expected


async def test_a_takeover_of_a_takeover_waits_for_the_last_words_of_both(shell: Detached) -> None:
    await shell.open()
    gateway = await attached_gateway_has_journaled(shell)
    links = [FakeLink(name, "gateway") for name in ("g2", "g3")]
    for generation, link in enumerate(links, 2):
        await attaches(shell, link, generation)
    second, third = links
    shell.board.on_message(second, bus.Detach("s", 2), [])
    await shell.turn()
    assert second.sent == [(bus.Replaced("s", 3), [])] and third.sent == []
    for _ in range(2):
        result(shell)
    shell.board.on_message(shell.gateway, bus.Delivered("s", owned(1), gateway.egress, through(1, 3), 3), [])
    shell.board.on_message(shell.gateway, *kept(1, 2, 3))
    shell.board.on_message(shell.gateway, bus.Detach("s", 1), [])
    await shell.settle()
    [attached] = third.of(bus.Attached)
    assert (attached.seq, attached.journaled) == (3, 3)
    assert [event.n for message in third.of(bus.Deliveries) for event in message.events] == [4, 5]


async def test_a_takeover_at_the_same_gateway_waits_for_nothing_that_stands_before_it_on_the_link(
    shell: Detached,
) -> None:
    await shell.open()
    await attached_gateway_has_journaled(shell)
    await attaches(shell, shell.gateway, 2)
    assert shell.gateway.of(bus.Attached)


async def test_a_takeover_at_the_same_gateway_waits_for_what_has_no_credit_yet(shell: Detached) -> None:
    await shell.open()
    gateway = await attached_gateway_has_journaled(shell)
    sent_live(shell, gateway.egress, 5)
    await attaches(shell, shell.gateway, 2)
    await shell.turn()
    assert not shell.gateway.of(bus.Attached)
    shell.board.on_message(shell.gateway, *kept(1, 2, 5))
    await shell.settle()
    [attached] = shell.gateway.of(bus.Attached)
    assert (attached.seq, attached.journaled) == (5, 5)


async def test_an_attachment_does_not_wait_for_ever_for_what_nobody_has(
    shell: Detached, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duologue.session.attachment.WORD_S", 0.02)
    await shell.open()
    gateway = await attached_gateway_has_journaled(shell)
    sent_live(shell, gateway.egress, 5)
    second = FakeLink("g2", "gateway")
    await attaches(shell, second, 2)
    assert second.sent == []
    await shell.settle()
    [attached] = second.of(bus.Attached)
    assert (attached.seq, attached.journaled) == (5, 1)
    assert second.frames_of(bus.Attached)[0][1] == b"[]"


async def test_an_attachment_is_answered_although_the_journal_does_not_take_what_was_kept(
    shell: Detached, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duologue.session.detached.KEPT_S", 0.05)
    await shell.open()
    gateway = await attached_gateway_has_journaled(shell)
    sent_live(shell, gateway.egress, 5)
    shell.board.on_message(shell.gateway, *kept(1, 2, 5))
    shell.board.on_message(shell.gateway, bus.Detach("s", 1), [])
    head = await shell.store.journal.claim("s", owner=owned(1), generation=2)
    assert isinstance(head, Head)
    shell.lossy.refuses = True
    second = FakeLink("g2", "gateway")
    shell.board.on_message(second, bus.Attach("s", 2, head.egress, "g2", journaled=head.last_seq), [])
    await shell.settle()
    [attached] = second.of(bus.Attached)
    assert (attached.seq, attached.journaled) == (5, 1)
    assert shell.manager.residents[0].attachment.numbering.holed


async def test_a_gateway_that_leaves_while_it_waits_leaves_the_backlog_to_the_shard(shell: Detached) -> None:
    await shell.open()
    gateway = await attached_gateway_has_journaled(shell)
    sent_live(shell, gateway.egress, 5)
    second = FakeLink("g2", "gateway")
    await attaches(shell, second, 2)
    shell.board.on_message(shell.gateway, *kept(1, 2, 5))
    shell.board.on_message(second, bus.Detach("s", 2), [])
    await shell.settle()
    assert second.of(bus.Attached) == []
    assert await shell.journal() == [(n, n) for n in range(1, 6)]
