"""The link machine alone: two of them joined by hand, with the time in the test's own hands."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from duologue.bus.codec import BYE, DATA, HELLO, IDLE, READY, decode_greeting, decode_header, encode_header
from duologue.bus.link import Frame, Peer
from duologue.bus.machine import LinkMachine, LinkOptions, State, agreed_version, farewell
from duologue.bus.messages import Abort, AnyMessage, Append, Detach, Invalidate
from duologue.bus.stats import LinkStats
from duologue.fence import Owner, StageFence

pytestmark = pytest.mark.unit

FENCE = StageFence(1, 1, 1)
GATEWAY = Peer("gw", "gateway", "inc-gw")
SHARD = Peer("shard", "shard", "inc-shard")


def append(unit: int = 0) -> Append:
    return Append("s", FENCE, 0, unit, 0)


Parts = list[bytes]


class Pair:
    """A dialler and, once the HELLO has arrived, a listener."""

    def __init__(self, options: LinkOptions | None = None, theirs: LinkOptions | None = None) -> None:
        self.now = 100.0
        self.options = options or LinkOptions()
        self.theirs = theirs or self.options
        self.a = LinkMachine.dial(GATEWAY, self.options, 5, "shard", LinkStats(), self.now)
        self.b: LinkMachine | None = None
        self.got: list[AnyMessage] = []

    def listener(self) -> LinkMachine:
        assert self.b is not None
        return self.b

    def take(self, machine: LinkMachine) -> list[Parts]:
        return [[bytes(part) for part in parts] for parts in machine.take(self.now)]

    def accept(self, parts: Sequence[bytes]) -> LinkMachine:
        header, greeting = decode_header(parts[0]), decode_greeting(parts)
        assert header is not None and greeting is not None and header.kind == HELLO
        self.b = LinkMachine.accept(SHARD, self.theirs, header, greeting, LinkStats(), self.now)
        return self.b

    def give(self, machine: LinkMachine, parts: Sequence[bytes]) -> None:
        header = decode_header(parts[0])
        assert header is not None
        batch = machine.receive(header, parts, self.now)
        if batch is not None:
            self.got.extend(batch.messages)
            machine.consumed(batch.size)

    def settle(self) -> None:
        """Carry everything both ways until nobody has anything to say."""
        for _ in range(20):
            there = self.take(self.a)
            for parts in there:
                if self.b is None:
                    self.accept(parts)
                else:
                    self.give(self.b, parts)
            back = self.take(self.b) if self.b is not None else []
            for parts in back:
                self.give(self.a, parts)
            if not there and not back:
                return
        raise AssertionError("they never stop talking")


def live(options: LinkOptions | None = None) -> Pair:
    pair = Pair(options)
    pair.settle()
    assert pair.a.state is State.LIVE and pair.listener().state is State.LIVE
    return pair


def kinds(taken: list[Parts]) -> list[int]:
    headers = [decode_header(parts[0]) for parts in taken]
    return [header.kind for header in headers if header is not None]


# -- handshake -------------------------------------------------------------------------------------------


def test_both_learn_who_the_other_is() -> None:
    pair = live()
    assert pair.a.peer == SHARD
    assert pair.listener().peer == GATEWAY


def test_nothing_is_sent_before_ready() -> None:
    pair = Pair()
    assert not pair.a.send(append())
    assert not pair.a.send(Abort("s", FENCE))
    assert kinds(pair.take(pair.a)) == [HELLO]


def test_hello_is_repeated_until_answered() -> None:
    pair = Pair()
    pair.take(pair.a)
    pair.a.tick(pair.now + 0.2)
    assert pair.take(pair.a) == []
    pair.now += 0.5
    pair.a.tick(pair.now)
    assert kinds(pair.take(pair.a)) == [HELLO]


def test_a_repeated_hello_gets_ready_again_and_makes_no_new_link() -> None:
    pair = Pair()
    hello = pair.take(pair.a)[0]
    listener = pair.accept(hello)
    pair.take(listener)  # this READY is lost
    header = decode_header(hello[0])
    assert header is not None
    assert listener.greeted_again(header, pair.now)
    ready = pair.take(listener)
    assert kinds(ready) == [READY]
    pair.give(pair.a, ready[0])
    assert pair.a.state is State.LIVE


def test_another_hello_is_not_this_link() -> None:
    pair = live()
    other = LinkMachine.dial(GATEWAY, pair.options, 6, "shard", LinkStats(), pair.now)
    header = decode_header(pair.take(other)[0][0])
    assert header is not None
    assert not pair.listener().greeted_again(header, pair.now)


def test_data_that_overtook_a_lost_ready_ends_in_a_gap_not_in_a_hole() -> None:
    pair = Pair()
    hello = pair.take(pair.a)[0]
    listener = pair.accept(hello)
    assert listener.send(append())
    lost_ready, data = pair.take(listener)
    pair.give(pair.a, data)
    assert pair.got == [] and pair.a.stats.refused == 1
    header = decode_header(hello[0])
    assert header is not None and listener.greeted_again(header, pair.now)
    pair.settle()
    listener.send(append(2))
    pair.settle()
    assert pair.a.lost_reason == "gap"
    assert pair.got == []
    assert lost_ready


def test_the_wrong_peer_at_an_address_is_refused_and_told() -> None:
    pair = Pair()
    pair.a = LinkMachine.dial(GATEWAY, pair.options, 5, "another", LinkStats(), pair.now)
    pair.settle()
    assert pair.a.lost_reason == "misdialled"
    assert pair.listener().state is State.LOST


@pytest.mark.parametrize(
    ("mine", "theirs", "agreed"), [(1, 1, 1), (2, 1, 1), (1, 2, 1), (3, 1, None), (1, 3, None), (1, 0, None)]
)
def test_each_side_speaks_its_version_and_the_one_before(mine: int, theirs: int, agreed: int | None) -> None:
    assert agreed_version(mine, theirs) == agreed


@pytest.mark.parametrize(("mine", "theirs"), [(2, 3), (3, 2)])
def test_the_lower_version_is_spoken(mine: int, theirs: int) -> None:
    pair = Pair(LinkOptions(version=mine), LinkOptions(version=theirs))
    pair.settle()
    for sender in (pair.a, pair.listener()):
        assert sender.send(append())
        header = decode_header(pair.take(sender)[0][0])
        assert header is not None and header.version == 2


def test_a_dialler_told_of_no_common_version_is_lost() -> None:
    pair = Pair(LinkOptions(version=4))
    hello = decode_header(pair.take(pair.a)[0][0])
    assert hello is not None
    pair.give(pair.a, [bytes(part) for part in farewell(SHARD, hello, "version")])
    assert pair.a.lost_reason == "version"
    assert pair.take(pair.a) == []


def test_a_listener_that_answers_in_an_unknown_version_is_lost_and_told() -> None:
    pair = Pair(LinkOptions(version=1), LinkOptions(version=4))
    listener = pair.accept(pair.take(pair.a)[0])
    ready = pair.take(listener)[0]
    header = decode_header(ready[0])
    assert header is not None
    pair.give(pair.a, [encode_header(msgspec.structs.replace(header, version=4)), ready[1]])
    assert pair.a.lost_reason == "version"
    assert kinds(pair.take(pair.a)) == [BYE]


# -- sequence --------------------------------------------------------------------------------------------


def test_one_turn_is_one_batch_in_order() -> None:
    pair = live()
    messages = [append(n) for n in range(5)]
    for message in messages:
        assert pair.a.send(message)
    taken = pair.take(pair.a)
    assert kinds(taken) == [DATA]
    pair.give(pair.listener(), taken[0])
    assert pair.got == messages


def test_a_batch_that_comes_twice_is_used_once() -> None:
    pair = live()
    pair.a.send(append())
    parts = pair.take(pair.a)[0]
    pair.give(pair.listener(), parts)
    pair.give(pair.listener(), parts)
    assert pair.got == [append()]
    assert pair.listener().stats.duplicates == 1
    assert pair.listener().state is State.LIVE


def test_a_missing_batch_is_a_gap() -> None:
    pair = live()
    pair.a.send(append(1))
    pair.take(pair.a)
    pair.a.send(append(2))
    pair.give(pair.listener(), pair.take(pair.a)[0])
    assert pair.got == []
    assert pair.listener().lost_reason == "gap"


def test_a_gap_shows_at_the_next_heartbeat_even_without_more_data() -> None:
    pair = live()
    pair.a.send(append(1))
    pair.take(pair.a)
    pair.now += 0.5
    pair.a.tick(pair.now)
    pair.give(pair.listener(), pair.take(pair.a)[0])
    assert pair.listener().lost_reason == "gap"


def test_batches_out_of_order_are_a_gap() -> None:
    pair = live()
    pair.a.send(append(1))
    first = pair.take(pair.a)[0]
    pair.a.send(append(2))
    second = pair.take(pair.a)[0]
    pair.give(pair.listener(), second)
    pair.give(pair.listener(), first)
    assert pair.got == []
    assert pair.listener().lost_reason == "gap"


@pytest.mark.parametrize("change", [{"sender": "older life"}, {"receiver": "older life"}, {"link": 4}, {"link": 6}])
def test_messages_of_another_life_or_link_are_refused(change: dict[str, str | int]) -> None:
    pair = live()
    pair.a.send(append())
    parts = pair.take(pair.a)[0]
    header = decode_header(parts[0])
    assert header is not None
    pair.give(pair.listener(), [encode_header(msgspec.structs.replace(header, **change)), *parts[1:]])
    assert pair.got == []
    assert pair.listener().stats.refused == 1
    pair.give(pair.listener(), parts)
    assert pair.got == [append()]


def test_a_later_life_of_the_listener_may_end_the_link() -> None:
    pair = live()
    pair.a.send(append())
    header = decode_header(pair.take(pair.a)[0][0])
    assert header is not None
    newer = Peer("shard", "shard", "inc-shard-2")
    pair.give(pair.a, [bytes(part) for part in farewell(newer, header, "replaced")])
    assert pair.a.lost_reason == "replaced"


def test_a_corrupt_batch_ends_the_link() -> None:
    pair = live()
    pair.a.send(append())
    parts = pair.take(pair.a)[0]
    pair.give(pair.listener(), [parts[0], b"\xc1"])
    assert pair.listener().lost_reason == "corrupt"


def test_an_unknown_kind_ends_the_link() -> None:
    pair = live()
    pair.a.send(append())
    header = decode_header(pair.take(pair.a)[0][0])
    assert header is not None
    pair.give(pair.listener(), [encode_header(msgspec.structs.replace(header, kind=9))])
    assert pair.listener().lost_reason == "corrupt"


# -- credit ----------------------------------------------------------------------------------------------

SMALL = LinkOptions(window_bytes=1000)


def fill(machine: LinkMachine, size: int = 100) -> int:
    sent = 0
    while machine.send(append(sent), [b"x" * size]):
        sent += 1
    return sent


def test_credit_ends_and_comes_back() -> None:
    pair = live(SMALL)
    sent = fill(pair.a)
    assert 0 < sent < 10
    assert pair.a.blocked
    pair.settle()
    assert pair.a.credit_returned and not pair.a.blocked
    assert pair.a.outstanding == 0
    assert len(pair.got) == sent
    assert fill(pair.a) == sent


def test_a_refused_sender_asks_once_and_is_answered_at_once() -> None:
    pair = live(SMALL)
    pair.a.send(append(), [b"x" * 300])
    pair.give(pair.listener(), pair.take(pair.a)[0])
    assert pair.take(pair.listener()) == []  # less than half the window: no grant of its own
    assert not pair.a.send(append(), [b"x" * 800])
    assert not pair.a.send(append(), [b"x" * 800])
    asked = pair.take(pair.a)
    assert kinds(asked) == [IDLE]
    pair.give(pair.listener(), asked[0])
    granted = pair.take(pair.listener())
    assert kinds(granted) == [IDLE]
    pair.give(pair.a, granted[0])
    assert pair.a.credit_returned
    assert pair.a.send(append(), [b"x" * 800])


def test_half_a_window_consumed_is_granted_without_being_asked() -> None:
    pair = live(SMALL)
    pair.a.send(append(), [b"x" * 600])
    pair.give(pair.listener(), pair.take(pair.a)[0])
    assert kinds(pair.take(pair.listener())) == [IDLE]


def test_grants_ride_on_data() -> None:
    pair = live(SMALL)
    pair.a.send(append(), [b"x" * 600])
    pair.give(pair.listener(), pair.take(pair.a)[0])
    pair.listener().send(append())
    taken = pair.take(pair.listener())
    assert kinds(taken) == [DATA]
    pair.give(pair.a, taken[0])
    assert pair.a.outstanding == 0


def test_a_message_larger_than_the_window_goes_when_nothing_is_outstanding() -> None:
    pair = live(SMALL)
    assert pair.a.send(append(), [b"x" * 100])
    assert not pair.a.send(append(), [b"y" * 5000])
    pair.settle()
    assert pair.a.credit_returned
    assert pair.a.send(append(1), [b"y" * 5000])
    assert not pair.a.send(append(2))
    pair.settle()
    assert pair.a.send(append(3))
    assert len(pair.got) == 2


def test_messages_that_free_something_go_without_credit_but_count() -> None:
    pair = live(SMALL)
    fill(pair.a)
    before = pair.a.outstanding
    assert pair.a.send(Invalidate("s", Owner(1, "i"), "resp", 1))
    assert pair.a.send(Detach("s", 1))
    assert pair.a.outstanding > before
    pair.settle()
    assert pair.a.outstanding == 0


def test_what_goes_without_credit_is_bounded_too() -> None:
    pair = live(SMALL)
    fill(pair.a)
    sent = 0
    while pair.a.send(Detach("s", sent)):
        sent += 1
        assert sent < 1000
    assert pair.a.lost_reason == "send_failed"
    assert pair.take(pair.a) == []


def test_each_side_grants_its_own_window() -> None:
    pair = Pair(LinkOptions(window_bytes=1000), LinkOptions(window_bytes=400))
    pair.settle()
    assert pair.a.send(append(), [b"x" * 200])
    assert not pair.a.send(append(), [b"x" * 200])
    assert pair.listener().send(append(), [b"x" * 900])


# -- time ------------------------------------------------------------------------------------------------


def test_a_heartbeat_goes_out_only_when_nothing_else_did() -> None:
    pair = live()
    pair.now += 0.4
    pair.a.send(append())
    pair.take(pair.a)
    pair.now += 0.4
    pair.a.tick(pair.now)
    assert pair.take(pair.a) == []
    pair.now += 0.2
    pair.a.tick(pair.now)
    assert kinds(pair.take(pair.a)) == [IDLE]


def test_silence_for_the_expiry_loses_the_peer() -> None:
    pair = live()
    pair.now += 1.9
    pair.a.tick(pair.now)
    assert pair.a.state is State.LIVE
    pair.now += 0.2
    pair.a.tick(pair.now)
    assert pair.a.lost_reason == "silent"
    assert kinds(pair.take(pair.a)) == [BYE]


def test_heartbeats_keep_an_idle_link() -> None:
    pair = live()
    for _ in range(40):
        pair.now += 0.25
        pair.a.tick(pair.now)
        pair.listener().tick(pair.now)
        pair.settle()
    assert pair.a.state is State.LIVE and pair.listener().state is State.LIVE


def test_our_own_stall_judges_nobody() -> None:
    pair = live()
    pair.now += 30
    pair.a.excuse(pair.now)
    pair.a.tick(pair.now)
    assert pair.a.state is State.LIVE
    pair.now += 2.1
    pair.a.tick(pair.now)
    assert pair.a.lost_reason == "silent"


def test_refused_messages_do_not_count_as_life() -> None:
    pair = live()
    header = decode_header(encode_header_of(pair))
    assert header is not None
    pair.now += 1.5
    pair.a.receive(msgspec.structs.replace(header, link=99), [b""], pair.now)
    pair.now += 1.0
    pair.a.tick(pair.now)
    assert pair.a.lost_reason == "silent"


def encode_header_of(pair: Pair) -> bytes:
    pair.listener().send(append())
    return pair.take(pair.listener())[0][0]


# -- the end ---------------------------------------------------------------------------------------------


def test_dropping_tells_the_peer_the_reason_once() -> None:
    pair = live()
    pair.a.lose("gap")
    pair.a.lose("silent")
    assert pair.a.lost_reason == "gap"
    assert pair.a.stats.lost == {"gap": 1}
    pair.settle()
    assert pair.listener().lost_reason == "gap"
    assert pair.take(pair.listener()) == []


def test_an_unknown_reason_is_closed() -> None:
    pair = live()
    pair.a.lose("whatever")
    pair.settle()
    assert pair.listener().lost_reason == "closed"


def test_nothing_is_taken_or_read_after_the_end() -> None:
    pair = live()
    pair.listener().send(append())
    late: list[list[Frame]] = pair.listener().take(pair.now)
    pair.a.send(append())
    pair.a.lose("closed", tell=False)
    assert not pair.a.send(append())
    assert not pair.a.send(Detach("s", 1))
    assert not pair.a.pending and pair.take(pair.a) == []
    pair.give(pair.a, [bytes(part) for part in late[0]])
    assert pair.got == []


def test_both_count_the_same_batch_after_batch() -> None:
    pair = live()
    for batch in range(1, 4):
        for unit in range(batch):
            assert pair.a.send(append(unit), (b"head", b"x" * 100 * batch))
        pair.settle()
        there, here = pair.a.stats, pair.listener().stats
        assert (there.sent_batches, here.received_batches) == (batch, batch)
        assert there.sent_messages == here.received_messages == sum(range(batch + 1))
        assert there.sent_bytes == here.received_bytes > 0
