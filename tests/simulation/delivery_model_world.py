"""The world of the delivery model: time, faults and the checks, all from one seed.

The checks know only what the client sent and got: every seq once and in order, every command's effect once,
responses opened and ended in order, their audio complete and never after the end.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from simulation.delivery_model import Bad, Client, Gateway, Shard, Store

FAULTS = ("gateway_kill", "gateway_pause", "shard_kill", "shard_pause", "lost", "late", "takeover", "drop")
"""`regress` (a failover that loses writes) is apart: it may cost a gap, never foreign or doubled events."""

PAIRS = tuple(itertools.combinations(FAULTS, 2))


class World:
    END = 6.0
    QUIET = 5.5
    """From here nobody speaks; the rest is for everything to arrive."""

    def __init__(self, seed: int, faults: Collection[str], mutant: str = "") -> None:
        self.random = random.Random(seed)
        self.faults, self.mutant = faults, mutant
        self.now = 0.0
        self.count: Counter[str] = Counter()
        self.holes: list[tuple[int, int]] = []
        self.store = Store(mutant)
        self.gateways: dict[int, Gateway] = {}
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._incarnations, self._gateways, self._attachments = (itertools.count(1) for _ in range(3))
        self.client = Client(self)
        self.adopt()
        self.client.connect()

    def at(self, delay: float, function: Callable[..., object], *args: Any) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._order), function, args))

    def new_gateway(self) -> Gateway:
        gateway = Gateway(self, next(self._gateways))
        self.gateways[gateway.id] = gateway
        return gateway

    def next_attachment(self) -> int:
        return next(self._attachments)

    def call(self, function: Callable[..., Any], answer: Callable[[tuple[Any, ...]], object], *args: Any) -> None:
        """A call to the store: it takes its time, its reply may be lost, it may be executed much later."""
        if "late" in self.faults and self.random.random() < 0.02:
            self.count["late"] += 1
            self.at(0.25, answer, ("timeout",))
            self.at(self.random.uniform(0.3, 0.6), function, *args)
            return

        def execute() -> None:
            result = function(*args)
            if "lost" in self.faults and self.random.random() < 0.04:
                self.count["lost"] += 1
                self.at(0.25, answer, ("timeout",))
            else:
                self.at(self.random.uniform(0.001, 0.004), answer, result)

        self.at(self.random.uniform(0.001, 0.004), execute)

    def run(self) -> None:
        """To the end of the world, then the checks. Raises `Bad`."""
        strikes: dict[str, Callable[[], None]] = {
            "gateway_kill": self._gateway_kill,
            "gateway_pause": self._gateway_pause,
            "shard_kill": self._shard_kill,
            "shard_pause": self._shard_pause,
            "regress": self._regress,
            "takeover": self.client.connect,
            "drop": self._drop,
        }
        for name, strike in strikes.items():
            if name in self.faults:
                for _ in range(2):
                    self.at(self.random.uniform(0.5, self.END - 2), self._strike, name, strike)
        while self._events and self.now < self.END + 4:
            self.now, _, function, args = heapq.heappop(self._events)
            function(*args)
        self._check_numbers()
        self._check_commands()
        if not self.holes:
            self._check_responses()

    def _strike(self, name: str, strike: Callable[[], None]) -> None:
        self.count[name] += 1
        strike()

    def adopt(self) -> None:
        live = [gateway for gateway in self.gateways.values() if gateway.alive and not gateway.egress.off]
        above = max((gateway.egress.owner[0] for gateway in live), default=0)
        owner = self.store.own(above, next(self._incarnations))
        self.shard = Shard(self, owner, self.store.saved[1])
        for gateway in live:
            if gateway.live:
                self.at(self.random.uniform(0.002, 0.03), gateway.owner_changed, self.shard)
        self.count["adoption"] += 1
        self.at(0.15, self.shard.nobody_came)

    def _current(self) -> Gateway | None:
        return self.gateways.get(self.client.attached or 0)

    def _detach(self, delay: float, gateway: Gateway) -> None:
        self.at(delay, self.shard.post, self.shard.detached, gateway.id)

    def _drop(self) -> None:
        gateway = self._current()
        if gateway:
            self.at(0.01, self.client.dropped, gateway.id, self.random.uniform(0.05, 0.5))
            self._detach(0.02, gateway)
            gateway.closed = True

    def _gateway_kill(self) -> None:
        gateway = self._current()
        if gateway:
            gateway.alive = False
            self.at(0.05, self.client.dropped, gateway.id, self.random.uniform(0, 0.4))
            self._detach(0.1, gateway)

    def _gateway_pause(self) -> None:
        gateway = self._current()
        if gateway:
            gateway.paused = True
            self.at(0.1, self.client.dropped, gateway.id, 0.1)
            self._detach(0.12, gateway)
            self.at(0.5, gateway.wake)

    def _shard_kill(self) -> None:
        if self.shard.alive:
            self.shard.alive = False
            self.at(0.2, self.adopt)

    def _shard_pause(self) -> None:
        shard = self.shard
        if shard.alive and not shard.paused:
            shard.paused = True
            self.at(0.2, self.adopt)
            self.at(0.6, shard.wake)

    def _regress(self) -> None:
        self.store.regress(self.random.randint(1, 4))

    def _check_numbers(self) -> None:
        due = 1
        for seq, _ in self.client.got:
            if seq != due and not any(low < seq <= high + 1 for low, high in self.holes):
                raise Bad(f"seq {seq} where {due} was due")
            due = seq + 1

    def _check_commands(self) -> None:
        shown = Counter(body[1] for _, body in self.client.got if body[0] == "ack")
        for k, times in shown.items():
            if times > 1:
                raise Bad(f"the effect of command {k} was shown {times} times")
        if not self.holes:
            for k in range(1, self.client.sent + 1):
                if k not in shown:
                    raise Bad(f"command {k} of {self.client.sent} was lost")

    def _check_responses(self) -> None:
        opened = ended = unit = 0
        for _, body in self.client.got:
            if body[0] == "open":
                if body[1] != opened + 1 or ended != opened:
                    raise Bad(f"response {body[1]} opened after {opened}, ended {ended}")
                opened, unit = body[1], 0
            elif body[0] == "end":
                if body[1] != opened or ended == opened:
                    raise Bad(f"response {body[1]} ended, open {opened}, ended {ended}")
                ended = body[1]
            elif body[0] == "media":
                if body[1] != opened or ended == opened:
                    raise Bad(f"audio of {body[1]} while {opened} is open, {ended} ended")
                if body[2] != unit:
                    raise Bad(f"unit {body[2]} where {unit} was due")
                unit += 1


def campaign(faults: Collection[str], seeds: range, mutant: str = "") -> tuple[dict[int, str], Counter[str]]:
    """What was found, by seed, and how often each hard thing happened."""
    found: dict[int, str] = {}
    total: Counter[str] = Counter()
    for seed in seeds:
        world = World(seed, faults, mutant)
        try:
            world.run()
        except Bad as bad:
            found[seed] = str(bad)
        total += world.count
    return found, total
