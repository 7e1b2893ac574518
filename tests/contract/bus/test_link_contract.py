"""What every adapter of the Link port promises, run against ZeroMQ and against memory."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from contract.bus.recorder import Recorder, unit
from contract.bus.rigs import WINDOW, MemoryRig, Rig, ZmqRig

from duologue.bus.errors import BusError
from duologue.bus.link import Link, Peer, PeerLost
from duologue.bus.machine import LinkOptions
from duologue.bus.messages import Detach

pytestmark = pytest.mark.contract


@pytest.fixture(params=["memory", "zmq"])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    # Not tmp_path: a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="bus") as folder:
        made: Rig = MemoryRig() if request.param == "memory" else ZmqRig(Path(folder))
        yield made
        await made.finish()


async def joined(rig: Rig, *, echo: bool = False) -> tuple[Recorder, Recorder, Link]:
    """A dialler, a listener, and the dialler's link."""
    dialler, listener = Recorder(), Recorder(echo=echo)
    await rig.start("listener", listener, listen=True)
    endpoint = await rig.start("dialler", dialler)
    endpoint.dial("listener", rig.address("listener"))
    await dialler.until(lambda: len(dialler.ready) == 1)
    await listener.until(lambda: len(listener.ready) == 1)
    return dialler, listener, dialler.ready[0]


async def test_both_learn_name_kind_and_incarnation(rig: Rig) -> None:
    dialler, listener, link = await joined(rig)
    assert link.peer == Peer("listener", "shard", "first")
    assert listener.ready[0].peer == Peer("dialler", "shard", "first")
    assert (dialler.lost, listener.lost) == ([], [])


async def test_fifo_both_ways(rig: Rig) -> None:
    dialler, listener, link = await joined(rig, echo=True)
    for number in range(300):
        assert link.send(unit(number), [b"%d" % number, b"x" * 200])
        if number % 7 == 0:
            link.flush()
    await dialler.until(lambda: len(dialler.messages) == 300)
    assert listener.units == dialler.units == list(range(300))
    assert [frames[0] for _, _, frames in dialler.messages] == [b"%d" % n for n in range(300)]


async def test_one_turn_is_one_multipart_message(rig: Rig) -> None:
    dialler, listener, link = await joined(rig)
    sent = rig.endpoints[1].stats.of("listener")
    assert sent.sent_batches == 0
    for number in range(50):
        assert link.send(unit(number))
    await listener.until(lambda: len(listener.messages) == 50)
    assert (sent.sent_batches, sent.sent_messages) == (1, 50)
    received = rig.endpoints[0].stats.of("dialler")
    assert (received.received_batches, received.received_messages) == (1, 50)
    assert sent.sent_bytes == received.received_bytes
    assert dialler.lost == []


async def test_no_credit_is_false_and_on_credit_comes_later(rig: Rig) -> None:
    dialler, listener, link = await joined(rig)
    sent = 0
    while link.send(unit(sent), [b"x" * 4096]):
        sent += 1
    assert 0 < sent * 4096 < WINDOW
    assert not link.send(unit(sent), [b"x" * 4096])
    await dialler.until(lambda: dialler.credits == 1)
    assert link.send(unit(sent), [b"x" * 4096])
    await listener.until(lambda: len(listener.messages) == sent + 1)
    assert listener.units == list(range(sent + 1))
    stats = rig.endpoints[1].stats.of("listener")
    assert stats.credit_exhausted == 1
    assert stats.credit_exhausted_seconds > 0


async def test_what_frees_something_needs_no_credit(rig: Rig) -> None:
    _, listener, link = await joined(rig)
    while link.send(unit(0), [b"x" * 4096]):
        pass
    assert link.send(Detach("s", 7))
    await listener.until(lambda: any(isinstance(message, Detach) for _, message, _ in listener.messages))


async def test_a_message_larger_than_the_window_goes_alone(rig: Rig) -> None:
    dialler, listener, link = await joined(rig)
    payload = bytes(range(256)) * (8 * 1024 * 1024 // 256)
    assert link.send(unit(1))
    assert not link.send(unit(2), [payload])
    await dialler.until(lambda: dialler.credits == 1)
    assert link.send(unit(2), [payload])
    assert not link.send(unit(3))
    await dialler.until(lambda: dialler.credits == 2)
    await listener.until(lambda: len(listener.messages) == 2)
    assert listener.messages[1][2] == [payload]
    assert dialler.lost == listener.lost == []


async def test_many_windows_pass_through(rig: Rig) -> None:
    dialler, listener, link = await joined(rig)
    total, sent = 400, 0
    while sent < total:
        credits = dialler.credits
        while sent < total and link.send(unit(sent), [b"x" * 8192]):
            sent += 1
        if sent < total:
            await dialler.until(lambda seen=credits: dialler.credits > seen)  # type: ignore[misc]
    await listener.until(lambda: len(listener.messages) == total)
    assert listener.units == list(range(total))
    assert rig.endpoints[1].stats.of("listener").credit_exhausted == dialler.credits > 1


async def test_dial_before_listen(rig: Rig) -> None:
    dialler, listener = Recorder(), Recorder()
    endpoint = await rig.start("dialler", dialler)
    endpoint.dial("listener", rig.address("listener"))
    await rig.start("bystander", Recorder(), listen=True)
    assert dialler.ready == []
    await rig.start("listener", listener, listen=True)
    await dialler.until(lambda: len(dialler.ready) == 1)
    assert dialler.ready[0].send(unit(1))
    await listener.until(lambda: listener.units == [1])


async def test_dial_before_start(rig: Rig) -> None:
    dialler = Recorder()
    await rig.start("listener", Recorder(), listen=True)
    endpoint = rig.make(Peer("dialler", "shard", "first"), dialler, "", rig.options)
    endpoint.dial("listener", rig.address("listener"))
    await endpoint.start()
    rig.endpoints.append(endpoint)
    await dialler.until(lambda: len(dialler.ready) == 1)


async def test_the_death_of_the_listener_is_told_once_and_it_may_come_back(rig: Rig) -> None:
    dialler, _, link = await joined(rig)
    await rig.crash(rig.endpoints[0])
    await dialler.until(lambda: len(dialler.lost) == 1)
    assert dialler.lost[0].peer.incarnation == "first"
    assert not link.send(unit(1))
    assert not link.send(Detach("s", 1))
    again = Recorder()
    await rig.start("listener", again, incarnation="second", listen=True)
    await dialler.until(lambda: len(dialler.ready) == 2)
    assert dialler.ready[1].peer.incarnation == "second"
    assert dialler.ready[1].send(unit(2))
    await again.until(lambda: again.units == [2])
    assert not link.send(unit(1))
    assert len(dialler.lost) == 1


async def test_the_death_of_the_dialler_is_told_once(rig: Rig) -> None:
    _, listener, _ = await joined(rig)
    await rig.crash(rig.endpoints[1])
    await listener.until(lambda: len(listener.lost) == 1)
    assert listener.lost[0].peer.name == "dialler"


async def test_another_life_of_the_dialler_replaces_the_link(rig: Rig) -> None:
    dialler, listener, _ = await joined(rig)
    newer = Recorder()
    endpoint = await rig.start("dialler", newer, incarnation="second")
    endpoint.dial("listener", rig.address("listener"))
    await newer.until(lambda: len(newer.ready) == 1)
    await listener.until(lambda: len(listener.ready) == 2)
    assert listener.lost[0] == _lost("dialler", "first", "replaced")
    await dialler.until(lambda: len(dialler.lost) == 1)
    assert dialler.reasons == ["replaced"]


def _lost(name: str, incarnation: str, reason: str) -> PeerLost:
    return PeerLost(Peer(name, "shard", incarnation), reason)


async def test_hang_up_of_the_dialler(rig: Rig) -> None:
    dialler, listener, link = await joined(rig)
    assert link.send(unit(1))
    rig.endpoints[1].hang_up("listener")
    assert dialler.reasons == ["closed"]
    await listener.until(lambda: len(listener.lost) == 1)
    assert listener.reasons == ["closed"]
    assert listener.units == [1]
    rig.endpoints[1].hang_up("listener")
    rig.endpoints[1].hang_up("nobody")
    rig.endpoints[1].dial("listener", rig.address("listener"))
    await dialler.until(lambda: len(dialler.ready) == 2)


async def test_hang_up_of_the_listener(rig: Rig) -> None:
    dialler, listener, _ = await joined(rig)
    rig.endpoints[0].hang_up("dialler")
    assert listener.reasons == ["closed"]
    await dialler.until(lambda: dialler.reasons == ["closed"])
    await dialler.until(lambda: len(dialler.ready) == 2)  # it was told to dial until it hangs up itself


async def test_close_sends_what_is_queued_and_says_goodbye(rig: Rig) -> None:
    dialler, listener, link = await joined(rig)
    for number in range(20):
        assert link.send(unit(number), [b"x" * 5000])
    await rig.endpoints[1].close()
    await listener.until(lambda: len(listener.lost) == 1)
    assert listener.units == list(range(20))
    assert listener.reasons == ["closed"]
    assert dialler.reasons == ["closed"]


async def test_drop_ends_the_link_on_both_sides_and_it_is_dialled_again(rig: Rig) -> None:
    dialler, listener, link = await joined(rig)
    link.drop("gap")
    assert dialler.reasons == ["gap"]
    assert not link.send(unit(1))
    await listener.until(lambda: listener.reasons == ["gap"])
    await dialler.until(lambda: len(dialler.ready) == 2)
    assert dialler.ready[1].send(unit(2))
    await listener.until(lambda: listener.units == [2])


async def test_messages_in_the_same_batch_are_not_handed_over_after_a_drop(rig: Rig) -> None:
    class Picky(Recorder):
        def on_message(self, link: Link, message: object, frames: object) -> None:
            super().on_message(link, message, frames)  # type: ignore[arg-type]
            link.drop("closed")

    dialler, listener = Recorder(), Picky()
    await rig.start("listener", listener, listen=True)
    (await rig.start("dialler", dialler)).dial("listener", rig.address("listener"))
    await dialler.until(lambda: len(dialler.ready) == 1)
    for number in range(3):
        assert dialler.ready[0].send(unit(number))
    await dialler.until(lambda: len(dialler.lost) == 1)
    assert listener.units == [0]


async def test_an_idle_link_stays(rig: Rig) -> None:
    fast = LinkOptions(heartbeat_s=0.02, expiry_s=0.2)
    dialler, listener = Recorder(), Recorder()
    await rig.start("listener", listener, listen=True, options=fast)
    endpoint = await rig.start("dialler", dialler, options=fast)
    endpoint.dial("listener", rig.address("listener"))
    await dialler.until(lambda: len(dialler.ready) == 1)
    await asyncio.sleep(0.7)  # several expiries without a message
    assert dialler.lost == listener.lost == []


async def test_versions_without_a_common_one_never_meet(rig: Rig) -> None:
    dialler, listener = Recorder(), Recorder()
    await rig.start("listener", listener, listen=True)
    later = msgspec.structs.replace(rig.options, version=rig.options.version + 2)
    endpoint = await rig.start("dialler", dialler, options=later)
    endpoint.dial("listener", rig.address("listener"))
    refused = rig.endpoints[0].stats.hellos_refused
    neighbour = Recorder()
    next_version = msgspec.structs.replace(rig.options, version=rig.options.version + 1)
    other = await rig.start("neighbour", neighbour, options=next_version)
    other.dial("listener", rig.address("listener"))
    await neighbour.until(lambda: len(neighbour.ready) == 1)
    await dialler.until(lambda: bool(refused))
    assert dialler.ready == [] and dialler.lost == []
    assert neighbour.ready[0].send(unit(1))
    await listener.until(lambda: listener.units == [1])


async def test_a_handler_that_raises_ends_nothing(rig: Rig) -> None:
    class Clumsy(Recorder):
        def on_message(self, link: Link, message: object, frames: object) -> None:
            super().on_message(link, message, frames)  # type: ignore[arg-type]
            raise ValueError("clumsy")

    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    dialler, listener = Recorder(), Clumsy()
    await rig.start("listener", listener, listen=True)
    (await rig.start("dialler", dialler)).dial("listener", rig.address("listener"))
    await dialler.until(lambda: len(dialler.ready) == 1)
    for number in range(3):
        assert dialler.ready[0].send(unit(number))
    await listener.until(lambda: listener.units == [0, 1, 2])
    assert dialler.ready[0].send(unit(3))
    await listener.until(lambda: listener.units == [0, 1, 2, 3])
    assert len(reported) == 4


async def test_a_bad_address_and_one_in_use(rig: Rig) -> None:
    await rig.start("listener", Recorder(), listen=True)
    with pytest.raises(BusError, match="in use"):
        await rig.start("listener", Recorder(), listen=True)
    endpoint = await rig.start("dialler", Recorder())
    with pytest.raises(BusError, match="use "):
        endpoint.dial("x", "carrier-pigeon://x")


# -- a peer that stands still, or dies, in a process of its own ------------------------------------------


async def test_a_frozen_peer_is_silent_and_comes_back(rig: Rig) -> None:
    remote = await rig.remote("frozen")
    dialler = Recorder()
    (await rig.start("dialler", dialler)).dial("frozen", rig.address("frozen"))
    await dialler.until(lambda: len(dialler.ready) == 1)
    await remote.freeze()
    await dialler.until(lambda: len(dialler.lost) == 1)
    assert dialler.reasons == ["silent"]
    await remote.thaw()
    await dialler.until(lambda: len(dialler.ready) == 2)
    assert dialler.ready[1].send(unit(5))
    await dialler.until(lambda: dialler.units == [5])


@pytest.mark.parametrize("they_dial", [False, True])
async def test_ovl_05_a_stuck_peer_misses_nothing_and_does_not_block_another(rig: Rig, they_dial: bool) -> None:
    here = Recorder()
    endpoint = await rig.start("here", here, listen=True)
    stuck = await rig.remote("stuck", dials="here" if they_dial else "")
    await rig.remote("free", dials="here" if they_dial else "")
    if not they_dial:
        for name in ("stuck", "free"):
            endpoint.dial(name, rig.address(name))
    await here.until(lambda: len(here.ready) == 2)
    await stuck.freeze()
    held, free = here.link_to("stuck"), here.link_to("free")
    # One message a batch: more of them than the marks and buffers on the way let through.
    taken = 0
    while held.send(unit(taken), [b"x" * 200]):
        held.flush()
        taken += 1
    assert endpoint.stats.of("stuck").blocked > 0
    assert free.send(unit(-1))
    await here.until(lambda: -1 in here.units or bool(here.lost))
    assert here.lost == []
    await stuck.thaw()
    await here.until(lambda: len(here.units) == taken + 1 or bool(here.lost))
    assert here.lost == []
    assert [n for n in here.units if n >= 0] == list(range(taken))


@pytest.mark.parametrize("they_dial", [False, True])
async def test_ovl_06_a_killed_peer_is_lost_while_its_batch_is_stuck(rig: Rig, they_dial: bool) -> None:
    dialler = Recorder()
    endpoint = await rig.start("here", dialler, listen=True)
    way = "here" if they_dial else ""
    remote = await rig.remote("victim", dials=way)
    if not they_dial:
        endpoint.dial("victim", rig.address("victim"))
    await dialler.until(lambda: len(dialler.ready) == 1)
    await remote.freeze()
    link, sent = dialler.ready[0], 0
    while link.send(unit(sent), [b"x" * 200]):
        link.flush()
        sent += 1
    await remote.kill()
    await dialler.until(lambda: len(dialler.lost) == 1)
    assert dialler.reasons[0] in ("closed", "silent", "send_failed")
    await rig.remote("victim", "second", dials=way)
    await dialler.until(lambda: len(dialler.ready) == 2)
    assert dialler.ready[1].peer.incarnation == "second"
    assert dialler.ready[1].send(unit(-7))
    await dialler.until(lambda: -7 in dialler.units)
    assert {peer.incarnation for peer, message, _ in dialler.messages} == {"second"}


# -- lazy sends ----------------------------------------------------------------------------------------------


async def test_what_is_sent_lazily_waits_for_company_and_keeps_the_order(rig: Rig) -> None:
    dialler, listener = Recorder(), Recorder()
    await rig.start("listener", listener, listen=True)
    endpoint = await rig.start("dialler", dialler, options=msgspec.structs.replace(rig.options, gather_s=3600.0))
    endpoint.dial("listener", rig.address("listener"))
    await dialler.until(lambda: len(dialler.ready) == 1)
    link = dialler.ready[0]
    before = endpoint.stats.of("listener").sent_batches
    assert link.send_lazily(unit(1)) and link.send_lazily(unit(2))
    assert link.send(unit(3))  # takes the others along
    await listener.until(lambda: len(listener.units) == 3)
    assert listener.units == [1, 2, 3]
    assert endpoint.stats.of("listener").sent_batches == before + 1


async def test_what_is_sent_lazily_leaves_by_itself(rig: Rig) -> None:
    dialler, listener, link = await joined(rig)
    for number in range(3):
        assert link.send_lazily(unit(number))
        await listener.until(lambda number=number: listener.units[-1:] == [number])  # type: ignore[misc]
    assert listener.units == [0, 1, 2]
    assert (dialler.lost, listener.lost) == ([], [])


async def test_a_link_that_is_lost_takes_nothing_lazily(rig: Rig) -> None:
    dialler, _, link = await joined(rig)
    assert link.send_lazily(unit(1))
    link.drop("closed")
    assert not link.send_lazily(unit(2))
    await dialler.until(lambda: len(dialler.lost) == 1)
