"""Which faults a run has, and in which order: drawn from its seed and nothing else.

Rule 1. Kinds come from a deck that is shuffled anew when it is empty, so that a run of some minutes meets each.
Rule 2. A single fault comes at least 5 s after the one before it is over and everything runs again. `double`: two at
        a time, the second within 3 s of the first; no bound holds for what comes of that.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

KILLS: Final = ("kill gateway", "kill shard", "kill worker", "kill store")
PAUSES: Final = ("pause gateway", "pause shard", "pause worker", "stall store")
CUTS: Final = ("reset sockets", "half-open sockets")
DRAINS: Final = ("drain gateway", "drain shard", "drain worker")
KINDS: Final = (*KILLS, *PAUSES, *CUTS, *DRAINS)

QUIET_S: Final = 5.0
MOST_QUIET_S: Final = 8.0
PAUSE_S: Final = (1.0, 10.0)
FREEZE_S: Final = (0.2, 2.0)
DOUBLE_S: Final = 3.0


class Fault(msgspec.Struct, frozen=True):
    """One fault. `share` (0 to 1) chooses among the processes of a kind, or how many sockets."""

    kind: str
    after_s: float
    """From the end of the one before; in a pair, from the beginning of the other."""
    share: float
    seconds: float = 0.0
    """How long a pause lasts."""
    seed: int = 0
    """For what is drawn while it is carried out."""

    def of(self, names: Sequence[str]) -> str:
        """The process that it meets."""
        return names[min(len(names) - 1, int(self.share * len(names)))]


def schedule(seed: int, *, double: bool = False, kinds: Sequence[str] = KINDS) -> Iterator[tuple[Fault, ...]]:
    """Endless: one fault at a time, or two."""
    chance = random.Random(f"chaos {seed}")
    deck = _deck(chance, kinds)
    while True:
        first = _fault(next(deck), chance, chance.uniform(QUIET_S, MOST_QUIET_S))
        if not double:
            yield (first,)
            continue
        yield first, _fault(next(deck), chance, chance.uniform(0.0, DOUBLE_S))


def _deck(chance: random.Random, kinds: Sequence[str]) -> Iterator[str]:
    while True:
        yield from chance.sample(kinds, len(kinds))


def _fault(kind: str, chance: random.Random, after_s: float) -> Fault:
    share, seed = chance.random(), chance.randrange(2**32)
    least, most = FREEZE_S if kind in CUTS else PAUSE_S
    seconds = round(chance.uniform(least, most), 1)
    return Fault(kind, after_s, share, seconds if kind in PAUSES or kind == "half-open sockets" else 0.0, seed)
