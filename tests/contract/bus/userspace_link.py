"""Two network namespaces and a link between them that this process carries: late, lossy, or down without a word.

Needs root and /dev/net/tun (`why_not` says what is missing). Each side gets a TUN device; the packets of one are
written to the other. Order is kept in each direction.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import random
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_CLONE_NEWNET: Final = 0x40000000
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN_NO_PI: Final = 0x0001 | 0x1000
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def why_not() -> str:
    """What keeps this machine from it; empty: nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    name = f"duo-{os.getpid()}-try"
    try:
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "iproute2 is not installed"
    if made.returncode:
        return f"no network namespace can be made: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return ""


def _enter(namespace: Path) -> None:
    descriptor = os.open(namespace, os.O_RDONLY)
    try:
        if _LIBC.setns(descriptor, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(descriptor)


class Side:
    """One end: a namespace with an address."""

    def __init__(self, name: str, address: str, other: str) -> None:
        self.name = name
        self.address = address
        _ip("netns", "add", name)
        with self.inside():
            self.device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(self.device, _TUNSETIFF, struct.pack("16sH", b"duo0", _IFF_TUN_NO_PI))
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "addr", "add", address, "peer", other, "dev", "duo0")
        _ip("-n", name, "link", "set", "duo0", "up")

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """This thread, and every thread and socket that it makes meanwhile, is in the namespace."""
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _enter(Path("/var/run/netns") / self.name)
            try:
                yield
            finally:
                if _LIBC.setns(here, _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
        finally:
            os.close(here)

    def close(self) -> None:
        os.close(self.device)
        _ip("netns", "del", self.name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class UserspaceLink:
    """`with`, inside a running loop. `delay_s` and `jitter_s` each way, `loss` of 1; `down`: nothing passes, and nobody
    is told."""

    def __init__(self, delay_s: float = 0.0, jitter_s: float = 0.0, loss: float = 0.0, seed: int = 0) -> None:
        self.delay_s, self.jitter_s, self.loss = delay_s, jitter_s, loss
        self.down = False
        self.carried = self.dropped = 0
        self._random = random.Random(seed)

    def __enter__(self) -> UserspaceLink:
        self._loop = asyncio.get_running_loop()
        number = os.getpid()
        with contextlib.ExitStack() as stack:
            self.left = Side(f"duo-{number}-l", "10.211.0.1", "10.211.0.2")
            stack.callback(self.left.close)
            self.right = Side(f"duo-{number}-r", "10.211.0.2", "10.211.0.1")
            stack.callback(self.right.close)
            self._stack = stack.pop_all()
        self._due = {self.left.device: 0.0, self.right.device: 0.0}
        for here, there in ((self.left, self.right), (self.right, self.left)):
            self._loop.add_reader(here.device, self._carry, here.device, there.device)
        return self

    def __exit__(self, *_: object) -> None:
        for side in (self.left, self.right):
            self._loop.remove_reader(side.device)
        self.down = True  # what is under way still may not be written to a closed device
        self._stack.close()

    def _carry(self, source: int, target: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while packet := os.read(source, 65536):
                if self.down or self._random.random() < self.loss:
                    self.dropped += 1
                    continue
                late = max(0.0, self._random.gauss(self.delay_s, self.jitter_s)) if self.delay_s else 0.0
                self._due[source] = due = max(self._due[source], self._loop.time() + late)
                self._loop.call_at(due, self._deliver, target, packet)

    def _deliver(self, target: int, packet: bytes) -> None:
        if self.down:
            self.dropped += 1
            return
        with contextlib.suppress(BlockingIOError):  # a full queue drops, as a router's does
            os.write(target, packet)
            self.carried += 1
