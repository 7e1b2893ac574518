"""The bus inside one event loop: the same links, with the wire replaced and, on purpose, unreliable.

Everything goes through the codec, so what cannot be serialised fails here too. A `Policy` decides the fate of
every multipart message: late, lost, twice, out of order, or the end of its connection.

Rule 1. Without a policy that says otherwise the wire is fair: FIFO, nothing lost.
Rule 2. A full wire refuses, as ZeroMQ's does; it never queues without bound.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from duologue.bus.driven import Connection, Written
from duologue.bus.endpoint import Broke, LinkEndpoint
from duologue.bus.errors import BusError
from duologue.bus.link import Frame, LinkHandler, Peer
from duologue.bus.machine import LinkOptions

_SCHEME = "memory://"


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to one multipart message."""

    delay_s: float = 0.0
    lose: bool = False
    twice: bool = False
    hold_back: bool = False
    """Let the next one pass first."""
    cut: bool = False
    """The connection ends; this message is not delivered."""


class Policy(ABC):
    """Decides fates. Must answer from its own seed only."""

    @abstractmethod
    def fate(self, sender: str, receiver: str, parts: Sequence[bytes]) -> Fate:
        """Names are of peers; `receiver` is an address while the dialler does not know more."""


class FairWeather(Policy):
    """Everything arrives, once, in order, at once."""

    def fate(self, sender: str, receiver: str, parts: Sequence[bytes]) -> Fate:
        return Fate()


class SeededWeather(Policy):
    """Misfortunes by chance; the same seed and the same traffic give the same ones."""

    def __init__(
        self,
        seed: int,
        *,
        late: float = 0.0,
        late_s: float = 0.01,
        lose: float = 0.0,
        twice: float = 0.0,
        hold_back: float = 0.0,
        cut: float = 0.0,
    ) -> None:
        self._random = random.Random(seed)
        self._late, self._late_s = late, late_s
        self._lose, self._twice, self._hold_back, self._cut = lose, twice, hold_back, cut

    def fate(self, sender: str, receiver: str, parts: Sequence[bytes]) -> Fate:
        draw = self._random.random
        return Fate(
            delay_s=self._late_s * draw() if draw() < self._late else 0.0,
            lose=draw() < self._lose,
            twice=draw() < self._twice,
            hold_back=draw() < self._hold_back,
            cut=draw() < self._cut,
        )


class MemoryHub:
    """The wires between the endpoints of one event loop. `policy` may be changed at any time."""

    def __init__(self, policy: Policy | None = None, *, high_water: int = 1000) -> None:
        self.policy = policy or FairWeather()
        self.high_water = high_water
        self._listening: dict[str, MemoryEndpoint] = {}
        self._endpoints: list[MemoryEndpoint] = []
        self._wires = 0

    def endpoint(
        self, me: Peer, handler: LinkHandler, bind: str = "", options: LinkOptions | None = None
    ) -> MemoryEndpoint:
        """A new endpoint; `bind` is `memory://NAME`, or empty for one that only dials."""
        if bind and not bind.startswith(_SCHEME):
            raise BusError(f"bus address {bind!r}: use {_SCHEME}NAME")
        return MemoryEndpoint(self, me, handler, bind, options)

    def listener(self, address: str) -> MemoryEndpoint | None:
        return self._listening.get(address)

    def started(self, endpoint: MemoryEndpoint) -> None:
        if endpoint.address:
            if endpoint.address in self._listening:
                raise BusError(f"bus address {endpoint.address!r} is in use")
            self._listening[endpoint.address] = endpoint
        self._endpoints.append(endpoint)
        self.stir()

    def stopped(self, endpoint: MemoryEndpoint) -> None:
        if self._listening.get(endpoint.address) is endpoint:
            del self._listening[endpoint.address]
        self._endpoints.remove(endpoint)

    def stir(self) -> None:
        """Something may be written now that could not be before."""
        for endpoint in self._endpoints:
            endpoint.loop.call_soon(endpoint.retry)

    def wire_key(self) -> bytes:
        self._wires += 1
        return b"w%d" % self._wires


class _Direction:
    """One way of one wire: what is under way, in order, each with the time it may arrive."""

    def __init__(self, hub: MemoryHub, wire: _Wire, sender: str) -> None:
        self._hub, self._wire, self._sender = hub, wire, sender
        self._under_way: deque[tuple[float, list[bytes]]] = deque()
        self._held: list[bytes] | None = None
        self._scheduled = False
        self._when_empty: Callable[[], None] | None = None

    def when_empty(self, then: Callable[[], None], to: MemoryEndpoint) -> None:
        """Nothing more is written: call `then` once what is under way has arrived."""
        self._when_empty = then
        if self._held is not None:
            self._under_way.append((to.loop.time(), self._held))
            self._held = None
        if not self._under_way or not to.running:
            self._empty()

    def _empty(self) -> None:
        then, self._when_empty = self._when_empty, None
        if then is not None:
            then()

    def write(self, to: MemoryEndpoint, parts: list[bytes]) -> Written:
        if not to.running:
            return Written.GONE
        if len(self._under_way) >= self._hub.high_water:
            return Written.BLOCKED
        fate = self._hub.policy.fate(self._sender, to.me.name, parts)
        if fate.cut:
            self._wire.cut()
            return Written.GONE
        if fate.lose:
            return Written.SENT
        due = to.loop.time() + fate.delay_s
        if fate.hold_back and self._held is None:
            self._held = parts
            return Written.SENT
        self._under_way.append((due, parts))
        if fate.twice:
            self._under_way.append((due, parts))
        if self._held is not None:
            self._under_way.append((due, self._held))
            self._held = None
        self.schedule(to)
        return Written.SENT

    def schedule(self, to: MemoryEndpoint) -> None:
        if self._scheduled or not self._under_way or to.frozen:
            return
        self._scheduled = True
        due = self._under_way[0][0]
        if due <= to.loop.time():
            to.loop.call_soon(self._arrive, to)
        else:
            to.loop.call_at(due, self._arrive, to)

    def _arrive(self, to: MemoryEndpoint) -> None:
        self._scheduled = False
        if not to.running:
            return self._empty()
        if to.frozen:
            return None
        was_full = len(self._under_way) >= self._hub.high_water
        now = to.loop.time()
        while self._under_way and self._under_way[0][0] <= now and not self._wire.ended:
            _, parts = self._under_way.popleft()
            self._wire.deliver(to, parts)
        if self._wire.ended:
            self._under_way.clear()  # cut: what was under way is lost
        if not self._under_way:
            self._empty()
        elif to.running:
            self.schedule(to)
        if was_full:
            self._hub.stir()
        return None


class _Wire:
    """One dialler's connection to one address."""

    def __init__(
        self,
        hub: MemoryHub,
        dialler: MemoryEndpoint,
        address: str,
        heard: Callable[[Sequence[bytes]], None],
        broke: Broke,
    ) -> None:
        self.key = hub.wire_key()
        self.ended = False
        self.dialler = dialler
        self.listener: MemoryEndpoint | None = None
        self._hub, self._address = hub, address
        self._heard, self._broke = heard, broke
        self._there = _Direction(hub, self, dialler.me.name)
        self._back = _Direction(hub, self, address)

    def write_there(self, parts: Sequence[Frame]) -> Written:
        if self.ended:
            return Written.GONE
        if self.listener is None:
            self.listener = self._hub.listener(self._address)
            if self.listener is None:
                return Written.BLOCKED
            self.listener.wires[self.key] = self
        return self._there.write(self.listener, [bytes(part) for part in parts])

    def write_back(self, parts: Sequence[Frame]) -> Written:
        if self.ended:
            return Written.GONE
        return self._back.write(self.dialler, [bytes(part) for part in parts])

    def deliver(self, to: MemoryEndpoint, parts: list[bytes]) -> None:
        if to is self.dialler:
            self._heard(parts)
        else:
            to.heard(self.key, parts)

    def thawed(self) -> None:
        if self.listener is not None:
            self._there.schedule(self.listener)
        self._back.schedule(self.dialler)

    def cut(self) -> None:
        """The connection ends. The dialler is told; the listener finds out when it writes."""
        if self.ended:
            return
        self._let_go()
        if self.dialler.running:
            self.dialler.loop.call_soon(self._broke)

    def hang_up(self) -> None:
        """The dialler closes it; what is under way to the listener still arrives."""
        if not self.ended and self.listener is not None and self.listener.running:
            self._there.when_empty(self._let_go, self.listener)
        else:
            self._let_go()

    def listener_stopped(self) -> None:
        """What it sent before it stopped, its goodbye included, still arrives; then the connection ends."""
        if self.dialler.running:
            self._back.when_empty(self.cut, self.dialler)
        else:
            self._let_go()

    def _let_go(self) -> None:
        self.ended = True
        self.dialler.wires.pop(self.key, None)
        if self.listener is not None:
            self.listener.wires.pop(self.key, None)


class _DiallerEnd(Connection):
    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    def write(self, parts: Sequence[Frame]) -> Written:
        return self._wire.write_there(parts)

    def close(self) -> None:
        self._wire.hang_up()


class _ListenerEnd(Connection):
    def __init__(self, wire: _Wire | None) -> None:
        self._wire = wire

    def write(self, parts: Sequence[Frame]) -> Written:
        return Written.GONE if self._wire is None else self._wire.write_back(parts)

    def close(self) -> None:
        """As over ZeroMQ: the connection is the dialler's to end."""


class MemoryEndpoint(LinkEndpoint):
    """Made by `MemoryHub.endpoint`."""

    def __init__(self, hub: MemoryHub, me: Peer, handler: LinkHandler, bind: str, options: LinkOptions | None) -> None:
        super().__init__(me, handler, options)
        self._hub = hub
        self._address = bind
        self.wires: dict[bytes, _Wire] = {}
        self.frozen = False

    async def start(self) -> None:
        self._begin()
        try:
            self._hub.started(self)
        except BusError:
            self._finish(tell=False)
            raise

    @property
    def address(self) -> str:
        return self._address

    def dial(self, name: str, address: str) -> None:
        if not address.startswith(_SCHEME):
            raise BusError(f"bus address {address!r}: use {_SCHEME}NAME")
        super().dial(name, address)

    async def close(self) -> None:
        self._shut(tell=True)

    async def abort(self) -> None:
        """Close without a goodbye, as a dying process does."""
        self._shut(tell=False)

    def freeze(self) -> None:
        """Stand still, as a stopped process does: nothing arrives, nothing is sent, no time passes."""
        self.frozen = True
        if self._tick_timer is not None:
            self._tick_timer.cancel()

    def thaw(self) -> None:
        self.frozen = False
        self._arm_tick()
        for wire in list(self.wires.values()):
            wire.thawed()

    def retry(self) -> None:
        if self.running and not self.frozen:
            self._retry_stuck()

    def heard(self, key: bytes, parts: list[bytes]) -> None:
        self._heard_accepted(key, parts, lambda name: _ListenerEnd(self.wires.get(name)))

    def _connect(self, address: str, heard: Callable[[Sequence[bytes]], None], broke: Broke) -> Connection:
        wire = _Wire(self._hub, self, address, heard, broke)
        self.wires[wire.key] = wire
        return _DiallerEnd(wire)

    def _shut(self, *, tell: bool) -> None:
        if not self.running:
            return
        self._finish(tell=tell)
        self._hub.stopped(self)
        for wire in list(self.wires.values()):
            if wire.listener is self:
                wire.listener_stopped()
