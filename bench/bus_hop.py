"""What one hop over the ZeroMQ bus costs: CPU of both ends and of ZeroMQ's threads, for 1 to 16 units a message.

    python bench/bus_hop.py [--rounds 1500]

Two endpoints in one process exchange units of 3.9 KB; a burst is sent in one turn of the loop and comes
back in one.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence

import uvloop

from duologue.bus.link import Link, LinkHandler, Peer, PeerLost
from duologue.bus.messages import AnyMessage, Append
from duologue.bus.zmq import ZmqEndpoint
from duologue.fence import StageFence

FENCE = StageFence(1, 1, 1)
PAYLOAD = (b"h" * 50, b"x" * 3840)


class End(LinkHandler):
    """`echo`: send everything back."""

    def __init__(self, *, echo: bool) -> None:
        self._echo = echo
        self.link: Link | None = None
        self.moved = asyncio.Event()
        self.wanted = self.heard = 0

    def on_ready(self, link: Link) -> None:
        self.link = link
        self.moved.set()

    def on_message(self, link: Link, message: AnyMessage, frames: Sequence[bytes]) -> None:
        self.heard += 1
        if self._echo:
            link.send(message, frames)
        elif self.heard == self.wanted:
            self.moved.set()

    def on_credit(self, link: Link) -> None:
        raise SystemExit("no credit: the burst is larger than the window")

    def on_lost(self, link: Link, lost: PeerLost) -> None:
        """The end of the measurement."""


async def measure(rounds: int) -> None:
    near, far = End(echo=False), End(echo=True)
    with tempfile.TemporaryDirectory(prefix="hop") as folder:
        there = ZmqEndpoint(Peer("far", "worker", "there"), far, f"ipc://{folder}/far")
        here = ZmqEndpoint(Peer("near", "shard", "here"), near)
        await there.start()
        await here.start()
        here.dial("far", there.address)
        await near.moved.wait()
        assert near.link is not None
        print(f"{'units a message':16}{'us per unit and hop':>20}")
        for burst in (1, 2, 4, 8, 16):
            started = time.process_time()
            for _ in range(rounds):
                near.moved.clear()
                near.wanted = near.heard + burst
                for number in range(burst):
                    near.link.send(Append("session_0123456789abcdef", FENCE, 0, number, 0), PAYLOAD)
                await near.moved.wait()
            spent = time.process_time() - started
            print(f"{burst:16}{spent / rounds / burst / 2 * 1e6:20.1f}")
        await here.close()
        await there.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1500)
    uvloop.run(measure(parser.parse_args().rounds))


if __name__ == "__main__":
    main()
