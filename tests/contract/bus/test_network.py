"""The bus between two hosts: namespaces, and a link that is late, loses packets, and goes down without a word."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from contract.bus.recorder import Recorder, unit
from contract.bus.userspace_link import Side, UserspaceLink, why_not

from duologue.bus.curve import CurveKeys, make_pair
from duologue.bus.link import Peer
from duologue.bus.machine import LinkOptions
from duologue.bus.zmq import ZmqEndpoint

pytestmark = [
    pytest.mark.contract,
    pytest.mark.timeout(120),
    pytest.mark.skipif(bool(REASON := why_not()), reason=REASON or "it can be done here"),
]

OPTIONS = LinkOptions(heartbeat_s=0.2, expiry_s=1.5)


class Hosts:
    """One endpoint on each side of a link, by tcp with keys."""

    def __init__(self, link: UserspaceLink) -> None:
        self.link = link
        self.keys = CurveKeys(make_pair()[1])
        self.made: list[ZmqEndpoint] = []

    async def start(self, side: Side, name: str, handler: Recorder, bind: str = "") -> ZmqEndpoint:
        endpoint = ZmqEndpoint(Peer(name, "shard", f"i-{name}"), handler, bind, options=OPTIONS, curve=self.keys)
        with side.inside():  # ZeroMQ's thread is made by its first socket, and stays where it was made
            await endpoint.start()
        self.made.append(endpoint)
        return endpoint

    async def joined(self) -> tuple[Recorder, Recorder]:
        """Who listens (it echoes) and who dialled, once they have met."""
        listener, dialler = Recorder(echo=True), Recorder()
        here = await self.start(self.link.left, "listener", listener, f"tcp://{self.link.left.address}:*")
        there = await self.start(self.link.right, "dialler", dialler)
        with self.link.right.inside():
            there.dial("listener", here.address)
        await dialler.until(lambda: len(dialler.ready) == 1)
        return listener, dialler


@pytest.fixture
async def hosts() -> AsyncIterator[Hosts]:
    with UserspaceLink(seed=3) as link:
        made = Hosts(link)
        yield made
        for endpoint in made.made:
            await endpoint.close()


async def test_a_late_and_lossy_link_loses_no_message_and_no_peer(hosts: Hosts) -> None:
    listener, dialler = await hosts.joined()
    hosts.link.delay_s, hosts.link.jitter_s, hosts.link.loss = 0.04, 0.008, 0.03
    link = dialler.ready[0]
    for number in range(200):
        assert link.send(unit(number), [b"x" * 2000])
        link.flush()
    await dialler.until(lambda: len(dialler.units) == 200 or bool(dialler.lost))
    assert dialler.units == listener.units == list(range(200))
    assert dialler.lost == listener.lost == []
    assert hosts.link.dropped > 0, "packets were really lost"


async def test_a_link_that_goes_down_without_a_word_is_noticed_by_both_and_comes_back(hosts: Hosts) -> None:
    listener, dialler = await hosts.joined()
    old = dialler.ready[0]
    assert old.send(unit(1))
    await dialler.until(lambda: dialler.units == [1])
    hosts.link.down = True
    await dialler.until(lambda: len(dialler.lost) == 1)
    await listener.until(lambda: len(listener.lost) == 1)
    assert dialler.reasons[0] in ("silent", "closed") and listener.reasons[0] in ("silent", "closed")
    assert not old.send(unit(2)), "nothing is taken for a peer that is gone"
    hosts.link.down = False  # meanwhile its SYNs were dropped, too
    await dialler.until(lambda: len(dialler.ready) == 2)
    assert dialler.ready[1].send(unit(3))
    await dialler.until(lambda: dialler.units == [1, 3])
    assert listener.units == [1, 3]


async def test_a_short_break_loses_nobody(hosts: Hosts) -> None:
    """TCP sends again what was lost; a break shorter than the expiry is no death."""
    listener, dialler = await hosts.joined()
    link = dialler.ready[0]
    hosts.link.down = True
    for number in range(20):
        assert link.send(unit(number))
    link.flush()
    dropped = hosts.link.dropped
    await dialler.until(lambda: hosts.link.dropped > dropped)
    hosts.link.down = False
    await dialler.until(lambda: len(dialler.units) == 20 or bool(dialler.lost))
    assert dialler.units == list(range(20)) and dialler.lost == listener.lost == []
