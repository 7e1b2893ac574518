"""What only the endpoint with streams has: who speaks which, its files, and strangers on its sockets."""

from __future__ import annotations

import asyncio
import os
import socket as sockets
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import uvloop
from contract.bus.recorder import Recorder, unit

from duologue.bus.codec import HELLO, Greeting, Header, encode_greeting, encode_header
from duologue.bus.curve import CurveKeys, make_pair
from duologue.bus.link import Frame, Link, Peer
from duologue.bus.local import SUFFIX, LocalEndpoint
from duologue.bus.machine import LinkOptions
from duologue.bus.stream import MAX_PARTS, READ_BYTES, message_head
from duologue.bus.zmq import ZmqEndpoint
from duologue.bus.zmq_options import ZmqOptions

pytestmark = pytest.mark.contract

OPTIONS = LinkOptions(window_bytes=64 * 1024 * 1024, heartbeat_s=0.1, expiry_s=2.0)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bus") as path:
        yield Path(path)


class House:
    """Closes what was started."""

    def __init__(self) -> None:
        self.endpoints: list[ZmqEndpoint] = []

    async def start(
        self, name: str, handler: Recorder, bind: str = "", of: type[ZmqEndpoint] = LocalEndpoint
    ) -> ZmqEndpoint:
        endpoint = of(Peer(name, "shard", "i-" + name), handler, bind, options=OPTIONS)
        await endpoint.start()
        self.endpoints.append(endpoint)
        return endpoint

    async def pair(
        self, folder: Path, dialler: Recorder, listener: Recorder, *of: type[ZmqEndpoint]
    ) -> tuple[ZmqEndpoint, ZmqEndpoint]:
        """A dialler and a listener, joined."""
        there = await self.start("listener", listener, f"ipc://{folder}/l", *of[1:])
        here = await self.start("dialler", dialler, "", *of[:1])
        here.dial("listener", there.address)
        await dialler.until(lambda: len(dialler.ready) == 1)
        await listener.until(lambda: len(listener.ready) == 1)
        return here, there


@pytest.fixture
async def house() -> AsyncIterator[House]:
    made = House()
    yield made
    for endpoint in made.endpoints:
        await endpoint.close()


def streams(endpoint: ZmqEndpoint) -> int:
    return endpoint.streams if isinstance(endpoint, LocalEndpoint) else 0


# -- who speaks which --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dials", "listens", "expected"),
    [
        (LocalEndpoint, LocalEndpoint, (1, 1)),
        (LocalEndpoint, ZmqEndpoint, (0, 0)),
        (ZmqEndpoint, LocalEndpoint, (0, 0)),
    ],
)
async def test_an_older_release_is_spoken_to_by_zeromq(
    house: House, folder: Path, dials: type[ZmqEndpoint], listens: type[ZmqEndpoint], expected: tuple[int, int]
) -> None:
    dialler, listener = Recorder(), Recorder(echo=True)
    here, there = await house.pair(folder, dialler, listener, dials, listens)
    for number in range(50):
        assert dialler.ready[0].send(unit(number), [b"x" * 3000])
    await dialler.until(lambda: dialler.units == list(range(50)))
    assert (streams(here), streams(there)) == expected


async def test_by_tcp_there_is_no_stream(house: House) -> None:
    dialler, listener = Recorder(), Recorder()
    there = await house.start("listener", listener, "tcp://127.0.0.1:*")
    here = await house.start("dialler", dialler)
    here.dial("listener", there.address)
    await dialler.until(lambda: len(dialler.ready) == 1)
    assert (streams(here), streams(there)) == (0, 0)


async def test_who_has_keys_speaks_to_nobody_without(house: House, folder: Path) -> None:
    there = await house.start("listener", Recorder(), f"ipc://{folder}/l")
    public, secret = make_pair()
    here = LocalEndpoint(
        Peer("dialler", "shard", "i"), Recorder(), options=OPTIONS, curve=CurveKeys(secret, (public,), None)
    )
    await here.start()
    house.endpoints.append(here)
    here.dial("listener", there.address)
    assert here.stats.keys_refused == {"no_keys": 1}
    assert (streams(here), streams(there)) == (0, 0)


# -- files -------------------------------------------------------------------------------------------------


async def test_no_file_is_left_after_close(house: House, folder: Path) -> None:
    endpoint = await house.start("a", Recorder(), f"ipc://{folder}/a")
    assert sorted(os.listdir(folder)) == ["a", "a" + SUFFIX]
    await endpoint.close()
    await endpoint.close()
    assert os.listdir(folder) == []


async def test_a_file_that_somebody_else_put_there_since_is_left(house: House, folder: Path) -> None:
    endpoint = await house.start("a", Recorder(), f"ipc://{folder}/a")
    (folder / ("a" + SUFFIX)).unlink()
    (folder / ("a" + SUFFIX)).write_text("somebody else's")
    await endpoint.close()
    assert os.listdir(folder) == ["a" + SUFFIX]


async def test_what_a_dead_process_left_is_replaced(house: House, folder: Path) -> None:
    with sockets.socket(sockets.AF_UNIX) as dead:
        dead.bind(f"{folder}/l{SUFFIX}")
    here, there = await house.pair(folder, Recorder(), Recorder())
    assert (streams(here), streams(there)) == (1, 1)


async def test_where_the_stream_cannot_be_there_is_zeromq(
    house: House, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / ("l" + SUFFIX)).write_text("keep me")
    here, there = await house.pair(folder, Recorder(), Recorder())
    assert (streams(here), streams(there)) == (0, 0)
    assert "ZeroMQ alone" in caplog.text
    assert (folder / ("l" + SUFFIX)).read_text() == "keep me"


async def test_a_path_of_the_greatest_length_has_no_room_for_a_stream(house: House, folder: Path) -> None:
    path = str(folder / "l").ljust(107, "x")
    dialler = Recorder()
    there = await house.start("listener", Recorder(), "ipc://" + path)
    here = await house.start("dialler", dialler)
    here.dial("listener", there.address)
    await dialler.until(lambda: len(dialler.ready) == 1)
    assert (streams(here), streams(there)) == (0, 0)


# -- bytes -------------------------------------------------------------------------------------------------


async def test_messages_larger_than_any_buffer_arrive_whole_both_ways(house: House, folder: Path) -> None:
    dialler, listener = Recorder(), Recorder(echo=True)
    await house.pair(folder, dialler, listener)
    frames: list[Frame] = [os.urandom(3 * READ_BYTES), b"small", b"", os.urandom(17_000), memoryview(b"x" * 40_000)]
    for number in range(3):
        assert dialler.ready[0].send(unit(number), frames)
    await dialler.until(lambda: dialler.units == [0, 1, 2])
    assert all(got == [bytes(frame) for frame in frames] for _, _, got in dialler.messages)


async def test_more_frames_than_the_kernel_takes_at_once(house: House, folder: Path) -> None:
    dialler, listener = Recorder(), Recorder()
    await house.pair(folder, dialler, listener)
    for number in range(120):
        assert dialler.ready[0].send(unit(number), [bytes([number]) * 16_384] * 5)
    await listener.until(lambda: listener.units == list(range(120)))
    assert [frames[4][0] for _, _, frames in listener.messages] == list(range(120))


async def test_what_is_unsent_at_the_end_leaves_before_the_goodbye(house: House, folder: Path) -> None:
    dialler, listener = Recorder(), Recorder()
    here, _ = await house.pair(folder, dialler, listener)
    for number in range(6):
        assert dialler.ready[0].send(unit(number), [b"x" * 1_000_000])
    await here.close()
    await listener.until(lambda: len(listener.lost) == 1)
    assert listener.units == list(range(6))
    assert listener.reasons == ["closed"]


async def test_a_peer_that_dies_is_missed_at_once_and_its_words_are_heard(house: House, folder: Path) -> None:
    """Either end notices; neither waits for the other to be silent."""
    dialler, listener = Recorder(), Recorder()
    patient = LinkOptions(heartbeat_s=30.0, expiry_s=60.0)
    there = LocalEndpoint(Peer("listener", "shard", "l"), listener, f"ipc://{folder}/l", options=patient)
    here = LocalEndpoint(Peer("dialler", "shard", "d"), dialler, options=patient)
    for endpoint in (there, here):
        await endpoint.start()
        house.endpoints.append(endpoint)
    here.dial("listener", there.address)
    await dialler.until(lambda: len(dialler.ready) == 1)
    dialler.ready[0].send(unit(1))
    dialler.ready[0].flush()
    await here.abort()
    await listener.until(lambda: listener.reasons == ["closed"])
    assert listener.units == [1]


# -- strangers ---------------------------------------------------------------------------------------------


class Stranger:
    """A raw stream with bytes of the test's choice."""

    def __init__(self, folder: Path) -> None:
        self.socket = sockets.socket(sockets.AF_UNIX)
        self.socket.settimeout(10.0)
        self.socket.connect(f"{folder}/l{SUFFIX}")

    def say(self, *parts: bytes) -> None:
        self.socket.sendall(message_head(parts) + b"".join(parts))

    def hello(self) -> bytes:
        header = Header(1, HELLO, "life-1", "", 1, 0, 1000)
        parts = [encode_header(header), encode_greeting(Greeting("stranger", "shard", 1000))]
        return message_head(parts) + b"".join(parts)

    async def is_hung_up_on(self) -> bool:
        while await asyncio.to_thread(self.socket.recv, 4096):
            pass
        return True


@pytest.mark.parametrize(
    "rubbish",
    [
        b"\0\0\0\0",
        (MAX_PARTS + 1).to_bytes(4, "big"),
        b"\xff" * 4000,
        message_head([b"x"])[:4] + b"\x7f\xff\xff\xff",
    ],
)
async def test_what_is_no_message_ends_the_connection_and_hurts_nobody(
    house: House, folder: Path, rubbish: bytes
) -> None:
    dialler, listener = Recorder(), Recorder()
    _, there = await house.pair(folder, dialler, listener)
    stranger = Stranger(folder)
    stranger.socket.sendall(rubbish)
    assert await stranger.is_hung_up_on()
    assert there.stats.corrupt == 1
    stranger.socket.close()
    known = Stranger(folder)
    known.socket.sendall(known.hello())
    await listener.until(lambda: len(listener.ready) == 2)
    known.socket.sendall(rubbish)
    assert await known.is_hung_up_on()
    assert listener.reasons == ["corrupt"]
    known.socket.close()
    assert dialler.ready[0].send(unit(1))
    await listener.until(lambda: listener.units == [1])


async def test_a_message_may_come_byte_by_byte_and_several_at_once(house: House, folder: Path) -> None:
    listener = Recorder()
    there = await house.start("listener", listener, f"ipc://{folder}/l")
    stranger = Stranger(folder)
    for byte in stranger.hello():
        stranger.socket.sendall(bytes([byte]))
        await asyncio.sleep(0)
    await listener.until(lambda: len(listener.ready) == 1)
    stranger.socket.sendall(stranger.hello() * 3 + stranger.hello()[:7])
    stranger.socket.sendall(stranger.hello()[7:])
    stranger.say(b"\xc1")
    await listener.until(lambda: listener.reasons == ["corrupt"])
    assert there.stats.corrupt == 0
    stranger.socket.close()


async def test_a_peer_that_vanishes_in_the_middle_of_a_message(house: House, folder: Path) -> None:
    listener = Recorder()
    there = await house.start("listener", listener, f"ipc://{folder}/l")
    stranger = Stranger(folder)
    stranger.socket.sendall(stranger.hello())
    await listener.until(lambda: len(listener.ready) == 1)
    stranger.socket.sendall(stranger.hello()[:9])
    stranger.socket.close()
    await listener.until(lambda: listener.reasons == ["closed"])
    assert streams(there) == 0


# -- as processes run --------------------------------------------------------------------------------------


def test_it_runs_on_uvloop_and_comes_back_after_a_loss(folder: Path) -> None:
    async def main() -> list[int]:
        house, dialler, address = House(), Recorder(), f"ipc://{folder}/u"
        here = await house.start("dialler", dialler)
        here.dial("worker", address)
        for life in range(3):
            worker = LocalEndpoint(
                Peer("worker", "worker", f"life-{life}"),
                Recorder(echo=True),
                address,
                options=OPTIONS,
                zmq_options=ZmqOptions(),
            )
            await worker.start()
            await dialler.until(lambda life=life: len(dialler.ready) == life + 1)  # type: ignore[misc]
            link: Link = dialler.ready[-1]
            for number in range(100):
                assert link.send(unit(100 * life + number), [b"x" * 3000])
                await asyncio.sleep(0)
            await dialler.until(lambda life=life: len(dialler.units) == 100 * (life + 1))  # type: ignore[misc]
            await worker.abort()
            await dialler.until(lambda life=life: len(dialler.lost) == life + 1)  # type: ignore[misc]
        await here.close()
        return dialler.units

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == list(range(300))
