"""Worlds whose checkpoints are late: structural events leave without one, and the shard dies before the next is stored.

Whatever else a world of adoptions checks holds here too: nothing is told twice, nothing that was told open stays open,
each command has one answer. What was told beyond the checkpoint stands in the journal alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulation.adoption_world import AdoptionFaults, AdoptionWorld
from simulation.faults import Faults

if TYPE_CHECKING:
    from simulation.client import Client

OTHERS = ("drop", "takeover", "bus late", "gateway link broken", "worker link broken", "slow reader")
LATE_S = (0.4, 1.6)
"""So long before its death no checkpoint of a shard is stored."""
RESTART_S = (0.3, 1.5, 6.0)


class LateCheckpointWorld(AdoptionWorld):
    """See the module."""

    def make_faults(self) -> Faults:
        return LateCheckpointFaults(self)

    def acts_of(self, client: Client) -> dict[str, int]:
        return super().acts_of(client) | {"delete": 3, "create": 4}


class LateCheckpointFaults(AdoptionFaults):
    """Checkpoints stay away from one shard until it dies, beside what else may happen."""

    def __init__(self, world: LateCheckpointWorld) -> None:
        super().__init__(world)
        self._kinds = {name: self._kinds[name] for name in OTHERS} | {
            "checkpoints late": (20, self._checkpoints_late),
        }

    def _checkpoints_late(self) -> bool:
        victim = self._victim()
        if victim is None:
            return False
        world, late_s = self._of, self._random.uniform(*LATE_S)
        world.depot.no_checkpoints_of.add(victim)
        world.shard_struck_at = world.now + late_s
        world.loop.call_later(late_s, world.kill_shard, victim, self._random.choice(RESTART_S))
        return True
