"""A client leaves while the store is away: what its gateway could not journal goes to the shard, before the detach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from unit.gateway.running import System, until
from unit.session.shell.shell_rig import FakeLink

from duologue.bus.link import Frame
from duologue.bus.messages import AnyMessage, Delivered, Detach, Kept
from duologue.fence import DeliveryId
from duologue.gateway import departures as module
from duologue.gateway.departures import Departures
from duologue.gateway.router import Router
from duologue.model.records import ShardRecord, encode_record
from duologue.runtime import metrics
from duologue.store.ports import Registration

pytestmark = pytest.mark.unit


class LazyLink(FakeLink):
    """Tells what may wait for company from what may not."""

    def __init__(self, name: str, kind: str) -> None:
        super().__init__(name, kind)
        self.lazily: list[AnyMessage] = []

    def send_lazily(self, message: AnyMessage, frames: Sequence[Frame] = ()) -> bool:
        self.lazily.append(message)
        return True


def counted(outcome: str) -> float:
    value: float = metrics.GATEWAY_KEPT.labels(outcome)._value.get()
    return value


def event(seq: int, body: bytes = b"{}") -> tuple[int, DeliveryId, bytes]:
    return seq, DeliveryId(1, seq + 100), body


def router(link: FakeLink, **record: Any) -> Router:
    made = Router()
    extra = encode_record(ShardRecord((), 0, 8, **record))
    made.update([Registration("shard", link.peer.name, link.peer.incarnation, "memory://", extra=extra)])
    return made


def departures(link: FakeLink, **record: Any) -> Departures:
    made = Departures(router(link, **record))
    made.on_ready(link)
    return made


def test_it_goes_in_batches_with_numbers_and_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES", 100)
    link, before = FakeLink("shard-1", "shard"), counted("handed_on")
    events = [event(5, b"a" * 60), event(6, b"b" * 40), event(7, b"c" * 300), event(8)]
    leaving = departures(link, takes_kept=True)
    leaving.keep(link, "s", 2, events)
    leaving.detach(link, Detach("s", 2))
    assert link.sent == [
        (Kept("s", 2, 5, (DeliveryId(1, 105), DeliveryId(1, 106))), [b"a" * 60, b"b" * 40]),
        (Kept("s", 2, 7, (DeliveryId(1, 107),)), [b"c" * 300]),
        (Kept("s", 2, 8, (DeliveryId(1, 108),)), [b"{}"]),
        (Detach("s", 2), []),
    ]
    assert counted("handed_on") - before == 4


def test_without_credit_it_waits_and_the_detach_behind_it() -> None:
    link = FakeLink("shard-1", "shard")
    leaving = departures(link, takes_kept=True)
    link.credit = False
    leaving.keep(link, "s", 1, [event(1), event(2)])
    leaving.detach(link, Detach("s", 1))
    leaving.detach(link, Detach("t", 1))
    assert link.sent == [] and leaving.bytes == 4
    link.credit = True
    leaving.on_credit(link)
    assert [type(message) for message, _ in link.sent] == [Kept, Detach, Detach]
    assert leaving.bytes == 0


def test_what_waits_is_bounded_and_the_detach_goes_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    link, before = FakeLink("shard-1", "shard"), counted("lost")
    leaving = departures(link, takes_kept=True)
    link.credit = False
    leaving.keep(link, "s", 1, [event(1, b"a" * 60)])
    leaving.keep(link, "t", 1, [event(1, b"a" * 60), event(2)])
    assert leaving.bytes == 60 and counted("lost") - before == 2
    leaving.detach(link, Detach("t", 1))
    link.credit = True
    leaving.on_credit(link)
    assert [message.session_id for message in link.of(Kept)] == ["s"]
    assert [message.session_id for message in link.of(Detach)] == ["t"]


def test_what_waits_is_lost_with_its_link() -> None:
    link, before = FakeLink("shard-1", "shard"), counted("lost")
    leaving = departures(link, takes_kept=True)
    link.credit = False
    leaving.keep(link, "s", 1, [event(1)])
    leaving.on_lost(link)
    leaving.keep(link, "t", 1, [event(1)])
    assert counted("lost") - before == 2 and leaving.bytes == 0 and link.sent == []


def test_an_older_release_is_sent_nothing_that_it_does_not_know() -> None:
    link, before = FakeLink("shard-1", "shard"), counted("lost")
    leaving = departures(link)
    leaving.keep(link, "s", 1, [event(1), event(2)])
    leaving.detach(link, Detach("s", 1))
    assert link.sent == [(Detach("s", 1), [])]
    assert counted("lost") - before == 2


@pytest.mark.parametrize("away", [False, True])
async def test_numbers_that_nobody_else_knows_are_told_at_once(system: System, away: bool) -> None:
    """Where the store is away the shard alone can tell the next gateway which are taken."""
    gateway = system.services[0].gateway
    _, created = await system.open()
    attachment = gateway.attachments.of(created["session"]["id"])
    assert attachment is not None
    link = LazyLink("shard-1", "shard")
    real, attachment.link = attachment.link, link
    if away:
        gateway.breaker.fail(gateway.now())
    owed = Delivered(attachment.session_id, attachment.owner, 1, DeliveryId(1, 9), 9)
    attachment.owes(owed)
    assert (link.sent, link.lazily) == (([(owed, [])], []) if away else ([], [owed]))
    attachment.link = real


@pytest.mark.parametrize("leaves", ["cut", "replaced"])
async def test_the_shard_gets_it_before_it_hears_that_the_client_has_left(system: System, leaves: str) -> None:
    gateway = system.services[0].gateway
    system.shard.register(takes_kept=True)
    gateway.router.update([system.shard.registration(takes_kept=True)])
    client, created = await system.open()
    session_id = created["session"]["id"]
    gateway.breaker.fail(gateway.now())
    gateway.breaker.probe_s = 3600.0
    system.shard.say(session_id, {"type": "x"}, {"type": "y"})
    assert [(await client.next())["server_event_seq"] for _ in range(2)] == [2, 3]
    attachment = gateway.attachments.of(session_id)
    assert attachment is not None
    if leaves == "cut":
        client.ws.transport.abort()
    else:
        attachment.replaced()
    shard = system.shard
    await until(system, lambda: shard.detached_at)
    assert shard.kept == [Kept(session_id, 1, 2, (DeliveryId(1, 2), DeliveryId(1, 3)))]
    assert shard.detached_at == [1]
