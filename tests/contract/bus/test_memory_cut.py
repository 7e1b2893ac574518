"""A wire of the in-memory bus that is cut while messages are under way: they are lost, and the loop goes on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from contract.bus.recorder import Recorder, unit
from simulation.virtual_time import VirtualLoop

from duologue.bus.codec import DATA, decode_header
from duologue.bus.link import Peer
from duologue.bus.machine import LinkOptions
from duologue.bus.memory import FairWeather, Fate, MemoryHub, Policy

pytestmark = pytest.mark.contract

OPTIONS = LinkOptions(heartbeat_s=0.05, expiry_s=0.5)


class LateThenCut(Policy):
    """The first DATA of the dialler is late, the second ends the connection."""

    def fate(self, sender: str, receiver: str, parts: Sequence[bytes]) -> Fate:
        header = decode_header(parts[0])
        if header is None or header.kind != DATA or sender != "dialler":
            return Fate()
        return Fate(delay_s=0.02) if header.seq == 1 else Fate(cut=True)


def test_what_is_under_way_is_lost_with_the_wire() -> None:
    loop = VirtualLoop()  # it notices a loop that feeds itself: time would not pass
    try:
        loop.run_until_complete(_story())
    finally:
        loop.close()


async def _story() -> None:
    hub = MemoryHub(LateThenCut())
    dialler, listener = Recorder(), Recorder()
    there = hub.endpoint(Peer("listener", "shard", "i"), listener, "memory://listener", OPTIONS)
    here = hub.endpoint(Peer("dialler", "gateway", "j"), dialler, "", OPTIONS)
    await there.start()
    await here.start()
    here.dial("listener", "memory://listener")
    await dialler.until(lambda: len(dialler.ready) == 1)
    for number in range(2):
        dialler.ready[0].send(unit(number))
        dialler.ready[0].flush()
    hub.policy = FairWeather()
    await dialler.until(lambda: len(dialler.ready) == 2)
    assert listener.units == []
    await here.close()
    await there.close()
