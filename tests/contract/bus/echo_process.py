"""A peer in a process of its own that sends everything back.

Arguments: name, incarnation, address to listen on or "", name and address to dial or "" "", then window,
expiry and high-water mark.
"""

from __future__ import annotations

import asyncio
import sys

from contract.bus.recorder import Recorder

from duologue.bus.link import Peer
from duologue.bus.machine import LinkOptions
from duologue.bus.zmq import ZmqEndpoint
from duologue.bus.zmq_options import ZmqOptions


async def main(arguments: list[str]) -> None:
    name, incarnation, address, dial_name, dial_address = arguments[:5]
    window, expiry_s, marks = int(arguments[5]), float(arguments[6]), int(arguments[7])
    options = LinkOptions(window_bytes=window, heartbeat_s=expiry_s / 6, expiry_s=expiry_s)
    endpoint = ZmqEndpoint(
        Peer(name, "worker", incarnation),
        Recorder(echo=True),
        address,
        options=options,
        zmq_options=ZmqOptions(high_water=marks),
    )
    await endpoint.start()
    if dial_name:
        endpoint.dial(dial_name, dial_address)
    # Ends with its parent, whatever becomes of that.
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    await reader.read()
    await endpoint.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
