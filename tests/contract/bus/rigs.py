"""The two adapters behind one face, for the contract suite."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from contract.bus.recorder import Recorder

from duologue.bus.codec import DATA, decode_header
from duologue.bus.endpoint import LinkEndpoint
from duologue.bus.link import LinkHandler, Peer
from duologue.bus.machine import LinkOptions
from duologue.bus.memory import Fate, MemoryEndpoint, MemoryHub, Policy
from duologue.bus.zmq import ZmqEndpoint
from duologue.bus.zmq_options import ZmqOptions

WINDOW = 256 * 1024
EXPIRY_S = 2.0
HIGH_WATER = 20


class Remote(ABC):
    """A peer that echoes, and that can be stopped, continued and killed from outside."""

    @abstractmethod
    async def freeze(self) -> None: ...

    @abstractmethod
    async def thaw(self) -> None: ...

    @abstractmethod
    async def kill(self) -> None: ...


class Rig(ABC):
    options = LinkOptions(window_bytes=WINDOW, heartbeat_s=EXPIRY_S / 6, expiry_s=EXPIRY_S)

    def __init__(self) -> None:
        self.endpoints: list[LinkEndpoint] = []

    @abstractmethod
    def address(self, name: str) -> str: ...

    @abstractmethod
    def make(self, me: Peer, handler: LinkHandler, bind: str, options: LinkOptions) -> LinkEndpoint: ...

    @abstractmethod
    async def crash(self, endpoint: LinkEndpoint) -> None:
        """End it as kill -9 would: no goodbye."""

    @abstractmethod
    async def remote(self, name: str, incarnation: str = "first", *, dials: str = "") -> Remote:
        """A remote that listens, or that dials the listener of this name."""

    async def start(
        self,
        name: str,
        handler: LinkHandler,
        *,
        incarnation: str = "first",
        listen: bool = False,
        options: LinkOptions | None = None,
    ) -> LinkEndpoint:
        bind = self.address(name) if listen else ""
        endpoint = self.make(Peer(name, "shard", incarnation), handler, bind, options or self.options)
        await endpoint.start()
        self.endpoints.append(endpoint)
        return endpoint

    async def finish(self) -> None:
        for endpoint in self.endpoints:
            await endpoint.close()


class _MemoryRemote(Remote):
    def __init__(self, endpoint: MemoryEndpoint) -> None:
        self._endpoint = endpoint

    async def freeze(self) -> None:
        self._endpoint.freeze()

    async def thaw(self) -> None:
        self._endpoint.thaw()

    async def kill(self) -> None:
        await self._endpoint.abort()


class CountingPolicy(Policy):
    """Fair, and counts the DATA messages."""

    def __init__(self) -> None:
        self.batches = 0

    def fate(self, sender: str, receiver: str, parts: Sequence[bytes]) -> Fate:
        header = decode_header(parts[0])
        self.batches += header is not None and header.kind == DATA
        return Fate()


class MemoryRig(Rig):
    def __init__(self) -> None:
        super().__init__()
        self.hub = MemoryHub(high_water=HIGH_WATER)

    def address(self, name: str) -> str:
        return f"memory://{name}"

    def make(self, me: Peer, handler: LinkHandler, bind: str, options: LinkOptions) -> LinkEndpoint:
        return self.hub.endpoint(me, handler, bind, options)

    async def crash(self, endpoint: LinkEndpoint) -> None:
        assert isinstance(endpoint, MemoryEndpoint)
        await endpoint.abort()

    async def remote(self, name: str, incarnation: str = "first", *, dials: str = "") -> Remote:
        endpoint = await self.start(name, Recorder(echo=True), incarnation=incarnation, listen=not dials)
        assert isinstance(endpoint, MemoryEndpoint)
        if dials:
            endpoint.dial(dials, self.address(dials))
        return _MemoryRemote(endpoint)


class _ProcessRemote(Remote):
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    async def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


class ZmqRig(Rig):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._remotes: list[_ProcessRemote] = []

    def address(self, name: str) -> str:
        return f"ipc://{self._folder}/{name}"

    def make(self, me: Peer, handler: LinkHandler, bind: str, options: LinkOptions) -> LinkEndpoint:
        marks = ZmqOptions(high_water=HIGH_WATER)
        return ZmqEndpoint(me, handler, bind, options=options, zmq_options=marks)

    async def crash(self, endpoint: LinkEndpoint) -> None:
        assert isinstance(endpoint, ZmqEndpoint)
        await endpoint.abort()

    async def remote(self, name: str, incarnation: str = "first", *, dials: str = "") -> Remote:
        way = ("", dials, self.address(dials)) if dials else (self.address(name), "", "")
        tests = Path(__file__).parents[2]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "contract.bus.echo_process",
            *(name, incarnation, *way, str(WINDOW), str(EXPIRY_S), str(HIGH_WATER)),
            cwd=tests,
            env={**os.environ, "PYTHONPATH": str(tests)},
            stdin=asyncio.subprocess.PIPE,
        )
        remote = _ProcessRemote(process)
        self._remotes.append(remote)
        return remote

    async def finish(self) -> None:
        await super().finish()
        for remote in self._remotes:
            await remote.kill()
            if remote.process.stdin is not None:
                remote.process.stdin.close()
