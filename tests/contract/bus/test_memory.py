"""The in-memory wire on purpose unreliable: each promise of the Link port is broken, and seen to be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from contract.bus.recorder import Recorder, unit

from duologue.bus.codec import DATA, decode_header
from duologue.bus.link import Peer
from duologue.bus.machine import LinkOptions
from duologue.bus.memory import Fate, MemoryEndpoint, MemoryHub, Policy, SeededWeather

pytestmark = pytest.mark.contract

OPTIONS = LinkOptions(heartbeat_s=0.05, expiry_s=0.5)


class Misfortune(Policy):
    """One fate for the DATA message of this number, a fair one for all others."""

    def __init__(self, number: int, fate: Fate) -> None:
        self._number, self._fate = number, fate
        self.happened = 0

    def fate(self, sender: str, receiver: str, parts: Sequence[bytes]) -> Fate:
        header = decode_header(parts[0])
        if header is not None and header.kind == DATA and header.seq == self._number and not self.happened:
            self.happened += 1
            return self._fate
        return Fate()


async def pair(hub: MemoryHub) -> tuple[Recorder, Recorder, MemoryEndpoint, MemoryEndpoint]:
    dialler, listener = Recorder(), Recorder()
    there = hub.endpoint(Peer("listener", "shard", "i"), listener, "memory://listener", OPTIONS)
    here = hub.endpoint(Peer("dialler", "gateway", "j"), dialler, "", OPTIONS)
    await there.start()
    await here.start()
    here.dial("listener", "memory://listener")
    await dialler.until(lambda: len(dialler.ready) == 1)
    return dialler, listener, here, there


async def send_batches(dialler: Recorder, count: int) -> None:
    link = dialler.ready[0]
    for number in range(count):
        if link.send(unit(number)):
            link.flush()


async def run(policy: Policy, count: int = 6) -> tuple[Recorder, Recorder, MemoryEndpoint]:
    hub = MemoryHub(policy)
    dialler, listener, here, there = await pair(hub)
    await send_batches(dialler, count)
    await listener.until(lambda: len(listener.units) == count or bool(listener.lost))
    await here.close()
    await there.close()
    return dialler, listener, there


async def test_a_doubled_batch_is_used_once() -> None:
    policy = Misfortune(3, Fate(twice=True))
    _, listener, there = await run(policy)
    assert policy.happened
    assert listener.units == [0, 1, 2, 3, 4, 5]
    assert there.stats.of("dialler").duplicates == 1


async def test_a_late_batch_is_no_loss() -> None:
    policy = Misfortune(3, Fate(delay_s=0.02))
    _, listener, _ = await run(policy)
    assert policy.happened
    assert listener.units == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("fate", [Fate(lose=True), Fate(hold_back=True)], ids=["lost", "out of order"])
async def test_a_hole_is_a_gap_and_nothing_after_it_is_used(fate: Fate) -> None:
    policy = Misfortune(3, fate)
    _, listener, _ = await run(policy)
    assert policy.happened
    assert listener.units == [0, 1]
    assert listener.reasons == ["gap"]


async def test_a_lost_last_batch_is_a_gap_at_the_next_heartbeat() -> None:
    policy = Misfortune(6, Fate(lose=True))
    _, listener, _ = await run(policy)
    assert listener.units == [0, 1, 2, 3, 4]
    assert listener.reasons == ["gap"]


async def test_a_cut_connection_is_told_to_the_sender() -> None:
    policy = Misfortune(3, Fate(cut=True))
    hub = MemoryHub(policy)
    dialler, listener, here, there = await pair(hub)
    await send_batches(dialler, 6)
    await dialler.until(lambda: len(dialler.ready) == 2)
    assert dialler.reasons == ["send_failed"]
    assert dialler.ready[1].send(unit(77))
    await listener.until(lambda: 77 in listener.units)
    assert set(listener.units) <= {0, 1, 77}
    await here.close()
    await there.close()


@pytest.mark.parametrize("seed", range(25))
async def test_in_any_weather_a_link_delivers_a_prefix_or_is_lost(seed: int) -> None:
    weather = SeededWeather(seed, late=0.2, late_s=0.003, lose=0.02, twice=0.1, hold_back=0.02, cut=0.01)
    hub = MemoryHub()
    dialler, listener, here, there = await pair(hub)
    hub.policy = weather
    await send_batches(dialler, 40)
    await listener.until(lambda: len(listener.units) == 40 or bool(listener.lost) or bool(dialler.lost))
    units = listener.units[:]
    assert units == list(range(len(units)))
    hub.policy = SeededWeather(0)
    await here.close()
    await there.close()


async def test_the_same_seed_gives_the_same_weather() -> None:
    def fates(seed: int) -> list[Fate]:
        weather = SeededWeather(seed, late=0.5, lose=0.5, twice=0.5, hold_back=0.5, cut=0.5)
        return [weather.fate("a", "b", []) for _ in range(50)]

    assert fates(4) == fates(4)
    assert fates(4) != fates(5)
