"""What may wait for one client before it has a number: bounded, and the socket is closed beyond it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from duologue.bus.messages import Delivered, Deliveries, Delivery, Invalidate
from duologue.delivery.breaker import StoreBreaker
from duologue.delivery.egress import EgressLimits
from duologue.delivery.pump import Pumps
from duologue.fence import DeliveryId, Owner
from duologue.gateway.attachment import Attachment, End
from duologue.gateway.outbound import MAX_EARLY, Outbound
from duologue.gateway.wire import Wire
from duologue.store.memory import MemoryStore
from duologue.store.ports import Head

pytestmark = pytest.mark.unit

ONE = Owner(1, "a")


class Holder:
    """The attachment, as far as an `Outbound` knows it."""

    def __init__(self) -> None:
        self.session_id = "s"
        self.stopped: list[str] = []
        self.owed: list[Delivered] = []
        self.over: list[tuple[int, str]] = []
        self.gateway = SimpleNamespace(
            breaker=StoreBreaker(), appender=MemoryStore().appender, pumps=Pumps(), now=lambda: 0.0
        )

    def owes(self, delivered: Delivered) -> None:
        self.owed.append(delivered)

    def terminal(self, code: int, reason: str) -> None:
        self.over.append((code, reason))

    def egress_stopped(self, why: str) -> None:
        self.stopped.append(why)


def outbound() -> tuple[Outbound, Holder]:
    holder = Holder()
    wire = SimpleNamespace(has_room=lambda: False)
    return Outbound(cast(Attachment, holder), cast(Wire, cast(Any, wire))), holder


def deliveries(first: int, count: int) -> tuple[Deliveries, list[bytes]]:
    events = tuple(Delivery(n) for n in range(first, first + count))
    return Deliveries("s", ONE, events), [b'{"type":"x"}'] * count


def test_events_before_the_claim_are_kept_up_to_a_bound() -> None:
    out, holder = outbound()
    out.put(*deliveries(1, MAX_EARLY))
    assert holder.stopped == []
    out.put(*deliveries(MAX_EARLY + 1, 1))
    assert holder.stopped == ["overflow"]


def test_what_purges_them_counts_too() -> None:
    out, holder = outbound()
    for _ in range(MAX_EARLY):
        out.invalidate(Invalidate("s", ONE, "r", 1))
    assert holder.stopped == []
    out.invalidate(Invalidate("s", ONE, "r", 1))
    assert holder.stopped == ["overflow"]


def test_events_without_a_number_are_bounded_while_the_client_does_not_read() -> None:
    out, holder = outbound()
    out.begin(ONE, Head(ONE, 1, 0, DeliveryId(), 1))
    out.go_live()
    limit = EgressLimits().queue_events
    out.put(*deliveries(1, limit))
    assert holder.stopped == []
    out.put(*deliveries(limit + 1, 1))
    assert holder.stopped == ["overflow"]


def test_the_shard_is_not_told_before_the_replay_of_a_session_that_is_over() -> None:
    out, holder = outbound()
    end = Delivery(40, close_code=1000, close_reason="done")
    out.begin(ONE, Head(ONE, 2, 40, DeliveryId(1, 40), 1))
    out.known(7, DeliveryId(1, 7))
    out.ends(ONE, end)
    out.put(*deliveries(8, 30))
    assert (holder.owed, holder.over) == ([], [])
    out.go_live()
    assert [(ack.through, ack.seq) for ack in holder.owed] == [(DeliveryId(1, 40), 40)]
    assert holder.over == [(1000, "done")]


def test_an_end_that_no_journal_has_is_waited_for() -> None:
    out, holder = outbound()
    out.begin(ONE, Head(ONE, 2, 39, DeliveryId(1, 39), 1))
    out.ends(ONE, Delivery(40, close_code=1000, close_reason="done"))
    out.go_live()
    assert holder.over == []
    assert out.ending


def test_an_overflow_closes_the_socket_and_is_counted() -> None:
    told: list[object] = []
    tally = SimpleNamespace(unnumbered_full=0)
    attachment = Attachment.__new__(Attachment)
    attachment.gateway = cast(Any, SimpleNamespace(tally=tally))
    attachment.dialect = cast(Any, SimpleNamespace(is_openai=False))
    attachment._finish = lambda *what: told.append(what)  # type: ignore[method-assign]
    attachment.egress_stopped("overflow")
    [(end, notice, code, reason)] = cast(list[Any], told)
    assert (end, code, reason) == (End.fault, 1013, "output_backpressure")
    assert b'"output_backpressure"' in notice
    assert tally.unnumbered_full == 1
