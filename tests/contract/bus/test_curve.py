"""Who may talk by tcp: right keys, wrong keys, none, unknown ones, and keys that change. Real sockets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from contract.bus.recorder import Recorder, unit

from duologue.bus.curve import CurveKeys, make_pair, split_key, with_key
from duologue.bus.errors import BusError
from duologue.bus.link import Peer
from duologue.bus.machine import LinkOptions
from duologue.bus.zmq import ZmqEndpoint

pytestmark = pytest.mark.contract

OPTIONS = LinkOptions(heartbeat_s=0.1, expiry_s=1.0)
TCP = "tcp://127.0.0.1:*"


class House:
    """Closes what was started."""

    def __init__(self) -> None:
        self.endpoints: list[ZmqEndpoint] = []

    async def start(
        self, name: str, curve: CurveKeys | None, bind: str = "", *, recorder: Recorder | None = None
    ) -> ZmqEndpoint:
        handler = recorder or Recorder()
        endpoint = ZmqEndpoint(Peer(name, "shard", "i-" + name), handler, bind, options=OPTIONS, curve=curve)
        await endpoint.start()
        self.endpoints.append(endpoint)
        return endpoint

    async def listen(self, curve: CurveKeys | None) -> tuple[ZmqEndpoint, Recorder]:
        recorder = Recorder()
        return await self.start("listener", curve, TCP, recorder=recorder), recorder

    async def dial(self, name: str, curve: CurveKeys | None, address: str) -> tuple[ZmqEndpoint, Recorder]:
        recorder = Recorder()
        endpoint = await self.start(name, curve, recorder=recorder)
        endpoint.dial("listener", address)
        return endpoint, recorder


@pytest.fixture
async def house() -> AsyncIterator[House]:
    made = House()
    yield made
    for endpoint in made.endpoints:
        await endpoint.close()


async def until(true: Callable[[], bool]) -> None:
    """For what a connection does by itself and nobody is told of."""
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_keys_that_know_each_other_may_talk_each_with_its_own(house: House) -> None:
    (here, my_secret), (there, their_secret) = make_pair(), make_pair()
    listener, heard = await house.listen(CurveKeys(my_secret, (there,)))
    assert split_key(listener.address)[1] == here
    _, welcome = await house.dial("welcome", CurveKeys(their_secret, (here,)), listener.address)
    await welcome.until(lambda: len(welcome.ready) == 1)
    assert welcome.ready[0].send(unit(3))
    await heard.until(lambda: heard.units == [3])
    assert listener.stats.keys_refused == {}


async def test_a_fleet_may_share_one_pair(house: House) -> None:
    _, secret = make_pair()
    listener, heard = await house.listen(CurveKeys(secret))
    _, welcome = await house.dial("welcome", CurveKeys(secret), listener.address)
    await welcome.until(lambda: len(welcome.ready) == 1)
    await heard.until(lambda: len(heard.ready) == 1)


async def test_a_key_that_is_not_listed_is_refused_counted_and_told(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "duologue.bus")
    (here, my_secret), (_, stranger) = make_pair(), make_pair()
    listener, heard = await house.listen(CurveKeys(my_secret))
    dialler, recorder = await house.dial("unknown", CurveKeys(stranger, (here,)), listener.address)
    await until(lambda: listener.stats.keys_refused.get("unknown_key", 0) > 1)
    await until(lambda: dialler.stats.keys_refused.get("refused_there", 0) > 0)
    assert heard.ready == recorder.ready == []
    told = [record.getMessage() for record in caplog.records]
    assert "a connection from 127.0.0.1 is refused: its key is not allowed here" in told
    assert sum("is refused: its key" in line for line in told) == 1, "one line, however often it tries"
    assert any("does not allow our key" in line for line in told)


async def test_who_has_no_keys_is_refused_even_if_it_leaves_out_what_the_address_tells(house: House) -> None:
    _, secret = make_pair()
    listener, heard = await house.listen(CurveKeys(secret))
    honest, recorder = await house.dial("honest", None, listener.address)
    await until(lambda: honest.stats.keys_refused.get("no_keys", 0) > 0)
    _, sly = await house.dial("sly", None, split_key(listener.address)[0])
    await until(lambda: listener.stats.keys_refused.get("handshake", 0) > 0)
    assert heard.ready == recorder.ready == sly.ready == []


async def test_who_has_keys_talks_to_nobody_without(house: House) -> None:
    _, secret = make_pair()
    listener, heard = await house.listen(None)
    dialler, recorder = await house.dial("careful", CurveKeys(secret), listener.address)
    await until(lambda: dialler.stats.keys_refused.get("no_keys", 0) > 0)
    assert heard.ready == recorder.ready == []


async def test_an_address_that_names_an_unlisted_key_is_not_even_dialled(house: House) -> None:
    """Whoever can write to the store could else have the fleet talk to a machine of theirs."""
    (_, secret), (_, impostor) = make_pair(), make_pair()
    false, heard = await house.listen(CurveKeys(impostor))
    dialler, recorder = await house.dial("victim", CurveKeys(secret), false.address)
    await until(lambda: dialler.stats.keys_refused.get("unlisted_peer", 0) > 1)
    assert heard.ready == recorder.ready == [] and false.stats.keys_refused == {}


async def test_a_listener_that_has_not_the_key_of_its_address_hears_nothing(house: House) -> None:
    (public, secret), (_, impostor) = make_pair(), make_pair()
    false, heard = await house.listen(CurveKeys(impostor, (public,)))
    address = with_key(split_key(false.address)[0], public)  # where the right one used to be
    _, recorder = await house.dial("victim", CurveKeys(secret), address)
    await until(lambda: false.stats.keys_refused.get("handshake", 0) > 0)
    assert heard.ready == recorder.ready == []


async def test_a_pair_is_exchanged_while_both_are_allowed(house: House, tmp_path: Path) -> None:
    (old_public, old), (new_public, new) = make_pair(), make_pair()
    allowed = tmp_path / "allowed"
    allowed.write_text(f"{old_public} fleet\n")
    listener, heard = await house.listen(CurveKeys(old, (), allowed))
    early, refused = await house.dial("early", CurveKeys(new, (old_public,)), listener.address)
    await until(lambda: listener.stats.keys_refused.get("unknown_key", 0) > 0)
    assert refused.ready == []
    allowed.write_text(f"{old_public} fleet\n{new_public} fleet\n")
    await refused.until(lambda: len(refused.ready) == 1)
    _, still = await house.dial("still", CurveKeys(old, (), allowed), listener.address)
    await still.until(lambda: len(still.ready) == 1)
    renewed = await house.start("listener", CurveKeys(new, (), allowed), TCP)
    _, across = await house.dial("across", CurveKeys(old, (), allowed), renewed.address)
    await across.until(lambda: len(across.ready) == 1)
    allowed.write_text(f"{new_public} fleet\n")
    late, gone = await house.dial("late", CurveKeys(old, (new_public,)), renewed.address)
    await until(lambda: renewed.stats.keys_refused.get("unknown_key", 0) > 0)
    assert gone.ready == [] and len(heard.ready) == 2, "who is connected stays"


def test_keys_are_for_tcp() -> None:
    _, secret = make_pair()
    with pytest.raises(BusError, match="tcp:// only"):
        ZmqEndpoint(Peer("a", "shard", "i"), Recorder(), "ipc:///x", curve=CurveKeys(secret))
