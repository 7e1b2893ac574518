"""What it costs to hand data from one stage worker to another through a shard, by its size.

    python bench/relay.py [--rounds 1000]

A worker, a shard and another worker in one process, on the ZeroMQ bus: the first sends what a stage made (`Output`),
the shard sends it on as the next stage's unit (`Append`) and never looks inside. CPU of all three and of ZeroMQ's
threads, one unit at a time. Stages of one worker hand over in memory: nothing of this.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence

import uvloop

from duologue.bus.link import Link, LinkHandler, Peer, PeerLost
from duologue.bus.messages import AnyMessage, Append, Output
from duologue.bus.zmq import ZmqEndpoint
from duologue.fence import StageFence

FENCE = StageFence(1, 1, 1)
SIZES = ((100, "a decision"), (5_120, "80 ms of sound, float32"), (64_000, "1 s of sound, float32"))
MORE = ((204_800, "25 hidden states of 4096, bfloat16"), (1_048_576, "a megabyte"))
HEAD = b"h" * 60


class Worker(LinkHandler):
    """Counts what comes."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self.moved = asyncio.Event()

    def on_ready(self, link: Link) -> None:
        self.link = link
        self.moved.set()

    def on_message(self, link: Link, message: AnyMessage, frames: Sequence[bytes]) -> None:
        self.moved.set()

    def on_credit(self, link: Link) -> None:
        """One unit at a time: there is always some."""

    def on_lost(self, link: Link, lost: PeerLost) -> None:
        """The end of the measurement."""


class Shard(Worker):
    """Sends on what one worker made to the other."""

    def __init__(self) -> None:
        super().__init__()
        self.next: Link | None = None

    def on_ready(self, link: Link) -> None:
        if link.peer.name == "b":
            self.next = link

    def on_message(self, link: Link, message: AnyMessage, frames: Sequence[bytes]) -> None:
        assert isinstance(message, Output) and self.next is not None
        self.next.send(Append(message.session_id, message.fence, message.to_stage, message.unit, 0), frames)


async def measure(rounds: int) -> None:
    a, b, shard = Worker(), Worker(), Shard()
    with tempfile.TemporaryDirectory(prefix="relay") as folder:
        ends = [
            ZmqEndpoint(Peer("a", "worker", "a-1"), a, f"ipc://{folder}/a"),
            ZmqEndpoint(Peer("b", "worker", "b-1"), b, f"ipc://{folder}/b"),
            ZmqEndpoint(Peer("shard", "shard", "s-1"), shard),
        ]
        for end in ends:
            await end.start()
        for end in ends[:2]:
            ends[2].dial(end.me.name, end.address)
        await a.moved.wait()
        await b.moved.wait()
        assert a.link is not None
        print("| bytes of a unit | such as | us of CPU for a unit, both hops |")
        print("|---|---|---|")
        for size, what in (*SIZES, *MORE):
            frames = (HEAD, b"x" * size)
            started = time.process_time()
            for number in range(rounds):
                b.moved.clear()
                a.link.send(Output("session_0123456789abcdef", FENCE, 1, 2, number, 0), frames)
                await b.moved.wait()
            print(f"| {size:,} | {what} | {(time.process_time() - started) / rounds * 1e6:.0f} |")
        for end in ends:
            await end.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    uvloop.run(measure(parser.parse_args().rounds))


if __name__ == "__main__":
    main()
