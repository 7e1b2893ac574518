"""What only the ZeroMQ adapter has: its options, its files, its keys, and strangers on its sockets."""

from __future__ import annotations

import asyncio
import os
import socket as sockets
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import uvloop
import zmq
from contract.bus.recorder import Recorder, unit

from duologue.bus.codec import (
    BYE,
    DATA,
    HELLO,
    Greeting,
    Header,
    decode_header,
    encode_greeting,
    encode_header,
)
from duologue.bus.errors import BusError
from duologue.bus.link import Peer
from duologue.bus.machine import LinkOptions
from duologue.bus.zmq import ZmqEndpoint
from duologue.bus.zmq_options import (
    ZmqOptions,
    apply_options,
    apply_router_options,
    clear_stale_ipc,
)
from duologue.bus.zmq_packing import pack_parts, unpack_parts

pytestmark = pytest.mark.contract

OPTIONS = LinkOptions(heartbeat_s=0.1, expiry_s=1.0)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bus") as path:
        yield Path(path)


class House:
    """Closes what was started."""

    def __init__(self) -> None:
        self.endpoints: list[ZmqEndpoint] = []

    async def start(self, name: str, handler: Recorder, bind: str = "") -> ZmqEndpoint:
        endpoint = ZmqEndpoint(Peer(name, "shard", "i-" + name), handler, bind, options=OPTIONS)
        await endpoint.start()
        self.endpoints.append(endpoint)
        return endpoint


@pytest.fixture
async def house() -> AsyncIterator[House]:
    made = House()
    yield made
    for endpoint in made.endpoints:
        await endpoint.close()


def test_every_option_is_set_on_purpose() -> None:
    options = ZmqOptions(high_water=10)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        apply_options(router, options)
        apply_router_options(router)
        expected = {
            zmq.SNDTIMEO: 1000,
            zmq.IMMEDIATE: 1,
            zmq.HEARTBEAT_IVL: 1000,
            zmq.HEARTBEAT_TIMEOUT: 3000,
            zmq.HEARTBEAT_TTL: 3000,
            zmq.CONNECT_TIMEOUT: 2000,
            zmq.HANDSHAKE_IVL: 2000,
            zmq.RECONNECT_IVL: 50,
            zmq.RECONNECT_IVL_MAX: 1000,
            zmq.LINGER: 1000,
            zmq.SNDHWM: 10,
            zmq.RCVHWM: 10,
            zmq.MAXMSGSIZE: 256 * 1024 * 1024,
        }
        assert {option: router.getsockopt(option) for option in expected} == expected


async def test_the_router_refuses_to_send_to_nobody_and_takes_an_identity_over(folder: Path) -> None:
    # ROUTER_MANDATORY and ROUTER_HANDOVER cannot be read back: what they do is asked instead.
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        apply_options(router, ZmqOptions())
        apply_router_options(router)
        router.bind(f"ipc://{folder}/r")
        with pytest.raises(zmq.ZMQError) as raised:
            router.send_multipart([b"nobody", b"x"], zmq.NOBLOCK)
        assert raised.value.errno == zmq.EHOSTUNREACH
        dealers = []
        for life in (b"1", b"2"):
            dealer = context.socket(zmq.DEALER)
            dealers.append(dealer)
            dealer.setsockopt(zmq.IDENTITY, b"same")
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.connect(f"ipc://{folder}/r")
            dealer.send(life)
            assert await asyncio.to_thread(router.recv_multipart) == [b"same", life]
            router.send_multipart([b"same", life], zmq.NOBLOCK)
            assert await asyncio.to_thread(dealer.recv) == life
        for dealer in dealers:
            dealer.close()


# -- addresses and files -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("inproc://x", "use ipc://PATH or tcp://HOST:PORT"),
        ("tcp://", "use ipc://PATH"),
        ("tcp://localhost", "use tcp://HOST:PORT"),
        ("tcp://127.0.0.1:99999", "use tcp://HOST:PORT"),
        ("ipc:///" + "x" * 120, "longer than 107 bytes"),
    ],
)
def test_what_cannot_be_an_address_is_refused(address: str, says: str) -> None:
    with pytest.raises(BusError, match=says):
        ZmqEndpoint(Peer("a", "shard", "i"), Recorder(), address)


async def test_an_interface_that_is_not_there(house: House) -> None:
    with pytest.raises(BusError, match="no such interface"):
        await house.start("a", Recorder(), "tcp://203.0.113.7:5555")


async def test_a_folder_that_is_not_there(house: House, folder: Path) -> None:
    with pytest.raises(BusError, match="cannot be bound"):
        await house.start("a", Recorder(), f"ipc://{folder}/missing/a")


async def test_a_tcp_port_in_use(house: House) -> None:
    first = await house.start("a", Recorder(), "tcp://127.0.0.1:*")
    with pytest.raises(BusError, match="in use by another process"):
        await house.start("b", Recorder(), first.address)


async def test_an_address_that_zeromq_refuses_and_too_many_sockets(
    house: House, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialler = Recorder()
    endpoint = await house.start("dialler", dialler)
    with pytest.raises(BusError, match="cannot be dialled"):
        endpoint.dial("x", "tcp://not a host:80")
    listener = await house.start("listener", Recorder(), f"ipc://{folder}/l")
    endpoint.dial("listener", listener.address)
    await dialler.until(lambda: len(dialler.ready) == 1)
    asked: list[str] = []
    real = endpoint._dealer

    def exhausted(address: str, server_key: str) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        asked.append(address)
        if len(asked) < 3:
            raise BusError("too many open files")
        return real(address, server_key)

    monkeypatch.setattr(endpoint, "_dealer", exhausted)
    dialler.ready[0].drop("closed")
    await dialler.until(lambda: len(dialler.ready) == 2)
    assert len(asked) == 3


async def test_the_socket_file_of_a_dead_process_is_removed(house: House, folder: Path) -> None:
    path = folder / "stale"
    with sockets.socket(sockets.AF_UNIX) as dead:
        dead.bind(str(path))
    assert stat.S_ISSOCK(os.stat(path).st_mode)
    listener = Recorder()
    await house.start("listener", listener, f"ipc://{path}")
    dialler = Recorder()
    (await house.start("dialler", dialler)).dial("listener", f"ipc://{path}")
    await dialler.until(lambda: len(dialler.ready) == 1)


async def test_a_file_that_is_no_socket_is_left_alone(house: House, folder: Path) -> None:
    path = folder / "notes"
    path.write_text("keep me")
    with pytest.raises(BusError, match="is no socket"):
        await house.start("a", Recorder(), f"ipc://{path}")
    assert path.read_text() == "keep me"
    with pytest.raises(BusError, match="Not a directory"):
        clear_stale_ipc(f"ipc://{path}/below")


async def test_no_file_is_left_after_close(house: House, folder: Path) -> None:
    endpoint = await house.start("a", Recorder(), f"ipc://{folder}/a")
    assert (folder / "a").exists()
    await endpoint.close()
    assert os.listdir(folder) == []
    await endpoint.close()


async def test_a_file_that_somebody_else_put_there_since_is_left(house: House, folder: Path) -> None:
    endpoint = await house.start("a", Recorder(), f"ipc://{folder}/a")
    (folder / "a").unlink()
    (folder / "a").write_text("somebody else's")
    await endpoint.close()
    assert (folder / "a").exists()


# -- strangers, earlier lives, broken bytes ----------------------------------------------------------------


class Stranger:
    """A raw DEALER with an identity and bytes of the test's choice."""

    def __init__(self, address: str, identity: bytes = b"stranger") -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, identity)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, 10_000)
        self.socket.connect(address)

    def say(self, *parts: bytes) -> None:
        self.socket.send_multipart(pack_parts(parts))

    def hello(self, incarnation: str, name: str = "stranger", link: int = 1) -> None:
        header = Header(1, HELLO, incarnation, "", link, 0, 1000)
        self.say(encode_header(header), encode_greeting(Greeting(name, "shard", 1000)))

    async def hear(self) -> tuple[Header, list[bytes]]:
        parts = unpack_parts(await asyncio.to_thread(self.socket.recv_multipart))
        header = decode_header(parts[0])
        assert header is not None
        return header, parts

    def leave(self) -> None:
        self._context.destroy(linger=0)


async def test_data_of_an_earlier_life_is_refused_after_the_next_hello(house: House, folder: Path) -> None:
    listener = Recorder()
    endpoint = await house.start("listener", listener, f"ipc://{folder}/l")
    stranger = Stranger(endpoint.address)
    old = Header(1, DATA, "life-1", "i-listener", 1, 1, 1000, False, (0,), ())
    stranger.hello("life-1", link=1)
    await listener.until(lambda: len(listener.ready) == 1)
    stranger.hello("life-2", link=1)  # the same identity again: handed over
    stranger.say(encode_header(old), b"\xdd\x00\x00\x00\x00")
    await listener.until(lambda: endpoint.stats.of("stranger").refused == 1)
    assert listener.messages == []
    assert listener.ready[-1].peer.incarnation == "life-2"
    assert listener.reasons == ["replaced"]
    stranger.leave()


async def test_a_peer_that_talks_to_an_earlier_life_of_ours_is_told_at_once(house: House, folder: Path) -> None:
    endpoint = await house.start("listener", Recorder(), f"ipc://{folder}/l")
    stranger = Stranger(endpoint.address)
    stranger.say(encode_header(Header(1, DATA, "x", "older", 3, 9, 0, False, (), ())), b"\xdd\0\0\0\0")
    header, parts = await stranger.hear()
    assert (header.kind, header.receiver, header.link, parts[1]) == (BYE, "x", 3, b"replaced")
    stranger.leave()


async def test_a_hello_that_was_long_under_way_does_not_replace_a_newer_link(house: House, folder: Path) -> None:
    listener = Recorder()
    endpoint = await house.start("listener", listener, f"ipc://{folder}/l")
    newer, older = Stranger(endpoint.address, b"newer"), Stranger(endpoint.address, b"older")
    newer.hello("life", link=5)
    await listener.until(lambda: len(listener.ready) == 1)
    older.hello("life", link=4)
    header, _ = await older.hear()
    assert header.kind == BYE
    assert listener.lost == []
    assert endpoint.stats.hellos_refused == {"stale": 1}
    newer.leave()
    older.leave()


async def test_rubbish_is_counted_and_hurts_nobody(house: House, folder: Path) -> None:
    listener, dialler = Recorder(), Recorder()
    endpoint = await house.start("listener", listener, f"ipc://{folder}/l")
    (await house.start("dialler", dialler)).dial("listener", endpoint.address)
    await dialler.until(lambda: len(dialler.ready) == 1)
    stranger = Stranger(endpoint.address)
    for rubbish in ([b""], [b"\xc1" * 100], [b"", b"", b""], [os.urandom(1000)]):
        stranger.socket.send_multipart(rubbish)
    stranger.say(encode_header(Header(1, HELLO, "x", "", 1, 0, 0)), b"\xc1")
    await listener.until(lambda: endpoint.stats.corrupt == 5)
    assert dialler.ready[0].send(unit(1))
    await listener.until(lambda: listener.units == [1])
    stranger.leave()


async def test_rubbish_on_a_live_link_ends_it(house: House, folder: Path) -> None:
    listener = Recorder()
    endpoint = await house.start("listener", listener, f"ipc://{folder}/l")
    stranger = Stranger(endpoint.address)
    stranger.hello("life-1")
    await listener.until(lambda: len(listener.ready) == 1)
    stranger.socket.send_multipart([b"\xc1"])
    await listener.until(lambda: listener.reasons == ["corrupt"])
    stranger.leave()


# -- restarts under load -----------------------------------------------------------------------------------


@pytest.mark.parametrize("busy_s", [0.0, 1.2])
async def test_a_worker_that_restarts_while_this_loop_is_busy_answers_again(
    house: House, folder: Path, busy_s: float
) -> None:
    dialler, address = Recorder(), f"ipc://{folder}/w"
    here = await house.start("dialler", dialler)
    here.dial("worker", address)
    for life in range(3):
        worker = ZmqEndpoint(Peer("worker", "worker", f"life-{life}"), Recorder(echo=True), address, options=OPTIONS)
        await worker.start()
        await dialler.until(lambda life=life: len(dialler.ready) == life + 1)  # type: ignore[misc]
        link = dialler.ready[-1]
        assert link.peer.incarnation == f"life-{life}"
        assert link.send(unit(life))
        await dialler.until(lambda life=life: dialler.units == list(range(life + 1)))  # type: ignore[misc]
        for backlog in range(50):
            link.send(unit(1000 + backlog))  # never to be read by anybody
        await worker.abort()
        time.sleep(busy_s)  # noqa: ASYNC251  # the loop is held on purpose
        await dialler.until(lambda life=life: len(dialler.lost) == life + 1)  # type: ignore[misc]
    assert {peer.incarnation for peer, _, _ in dialler.messages} == {"life-0", "life-1", "life-2"}


async def test_a_stall_of_our_own_loop_loses_nobody(house: House, folder: Path) -> None:
    """The peer lives in a thread with a loop of its own, and goes on while this one stands still."""
    address, ready, stop = f"ipc://{folder}/t", asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def other() -> Recorder:
        recorder = Recorder(echo=True)
        # It says nothing by itself: nothing that waits to be read can save it from being judged.
        patient = LinkOptions(heartbeat_s=30.0, expiry_s=60.0)
        endpoint = ZmqEndpoint(Peer("other", "worker", "o"), recorder, address, options=patient)
        await endpoint.start()
        loop.call_soon_threadsafe(ready.set)
        while not stop.is_set():  # noqa: ASYNC110  # the event belongs to another loop
            await asyncio.sleep(0.01)
        await endpoint.close()
        return recorder

    thread = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(other())))
    await ready.wait()
    dialler = Recorder()
    (await house.start("dialler", dialler)).dial("other", address)
    await dialler.until(lambda: len(dialler.ready) == 1)
    time.sleep(1.5)  # noqa: ASYNC251  # longer than the expiry
    dialler.ready[0].send(unit(1))
    await dialler.until(lambda: dialler.units == [1])
    assert dialler.lost == []
    stop.set()
    await thread


def test_it_runs_on_uvloop(folder: Path) -> None:
    async def main() -> list[int]:
        house, dialler = House(), Recorder()
        listener = await house.start("listener", Recorder(echo=True), f"ipc://{folder}/u")
        (await house.start("dialler", dialler)).dial("listener", listener.address)
        await dialler.until(lambda: len(dialler.ready) == 1)
        for number in range(200):
            assert dialler.ready[0].send(unit(number), [b"x" * 3000])
            await asyncio.sleep(0)
        await dialler.until(lambda: len(dialler.units) == 200)
        for endpoint in reversed(house.endpoints):
            await endpoint.close()
        return dialler.units

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == list(range(200))
