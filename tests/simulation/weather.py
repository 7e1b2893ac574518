"""What the bus of a simulated world is like: always a little late, now and then much, and sometimes broken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from duologue.bus.memory import Fate, Policy

if TYPE_CHECKING:
    from simulation.world import World

_LATENCY_S = (0.0001, 0.002)


class BusWeather(Policy):
    """Latency on every wire; `slow` makes the wires of a process late, `break_next` ends one of its connections."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.fork("bus")
        self._slow: dict[str, tuple[float, float]] = {}
        self._cut: dict[str, str] = {}
        self._lose: dict[str, str] = {}

    def slow(self, name: str, until: float, late_s: float) -> None:
        self._slow[name] = (until, late_s)

    @property
    def late(self) -> bool:
        """Some process has slow wires, or had just now."""
        return any(self._world.now < until + late_s for until, late_s in self._slow.values())

    def break_next(self, sender: str, receiver: str, *, lose: bool) -> None:
        """The next message that `sender` writes to `receiver` ends the connection, or is lost on the way."""
        (self._lose if lose else self._cut)[sender] = receiver

    def fate(self, sender: str, receiver: str, parts: Sequence[bytes]) -> Fate:
        sender, receiver = sender.removeprefix("memory://"), receiver.removeprefix("memory://")
        delay_s = self._random.uniform(*_LATENCY_S)
        for name in (sender, receiver):
            until, late_s = self._slow.get(name, (0.0, 0.0))
            if self._world.now < until:
                delay_s += late_s * self._random.random()
        if self._cut.get(sender) == receiver:
            del self._cut[sender]
            return Fate(cut=True)
        if self._lose.get(sender) == receiver:
            del self._lose[sender]
            return Fate(lose=True)
        return Fate(delay_s=delay_s)
