"""What a journal's bounds push out, against a list kept by the same rule, however sizes, times and holes fall."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from duologue.fence import DeliveryId, Owner
from duologue.store.journals import JournalLimits
from duologue.store.memory import MemoryServer, MemoryStore
from duologue.store.ports import Appended
from duologue.store.scripts import Arg, Reply, Script

pytestmark = pytest.mark.contract

ONE = Owner(1, "a")
MAX_BYTES, MAX_AGE_MS, SLACK_MS = 4096, 60_000, 1000
LIMITS = JournalLimits(ttl_s=3600, max_bytes=MAX_BYTES, max_age_s=MAX_AGE_MS / 1000)
READS = 22
"""Of one call at most: eight guesses, and halves of what is left."""


class Clock:
    ms = 1_000_000

    def __call__(self) -> float:
        return (self.ms + 0.5) / 1000


class Counted(MemoryServer):
    """Counts the reads of entries within one script."""

    reads = 0

    def evaluate(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Reply:
        self.reads = 0
        return super().evaluate(script, keys, args)

    def _call(self, name: bytes, *args: object) -> object:
        self.reads += name == b"XRANGE"
        return super()._call(name, *args)


class Kept:
    """The entries that stay: (seq, size, ms)."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, int]] = []

    def append(self, first: int, sizes: Sequence[int], now: int) -> int:
        """How many the bounds push out."""
        self.entries += [(first + i, size, now) for i, size in enumerate(sizes)]
        keep = MAX_BYTES
        if self.bytes > MAX_BYTES:
            keep -= MAX_BYTES // 64
        elif now - self.entries[0][2] <= MAX_AGE_MS + SLACK_MS:
            return 0
        before = len(self.entries)
        while self.entries and (self.bytes > keep or now - self.entries[0][2] > MAX_AGE_MS):
            del self.entries[0]
        return before - len(self.entries)

    @property
    def bytes(self) -> int:
        return sum(size for _, size, _ in self.entries)


Draw = Callable[[random.Random], int]

PAUSES_MS: dict[str, Draw] = {
    "even": lambda r: 80,
    "bursts": lambda r: r.choice([0, 0, 0, 0, 0, 0, 0, 20_000]),
    "ever slower": lambda r: int(10 ** r.uniform(0, 4.5)),
    "rare": lambda r: r.randrange(20_000, 90_000),
}
SIZES: dict[str, Draw] = {
    "small": lambda r: r.randrange(0, 4),
    "like sound": lambda r: r.choice([120, 7]),
    "uneven": lambda r: int(10 ** r.uniform(0, 3.7)),
}


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("pauses", PAUSES_MS)
async def test_exactly_the_oldest_beyond_the_bounds_are_pushed_out(pauses: str, sizes: str) -> None:
    for seed in range(4):
        r = random.Random(seed)
        clock = Clock()
        server = Counted(clock)
        store = MemoryStore(server=server, limits=LIMITS)
        await store.journal.claim("s", owner=ONE)
        kept, last = Kept(), 0
        for _ in range(400):
            clock.ms += PAUSES_MS[pauses](r)
            first = last + 1 + (r.randrange(1, 40) if r.random() < 0.05 else 0)
            some = [SIZES[sizes](r) for _ in range(r.randrange(1, 5))]
            last = first + len(some) - 1
            batch = [(DeliveryId(1, first + i), b"x" * size) for i, size in enumerate(some)]
            outcome = await store.journal.append("s", ONE, 1, first, batch)
            assert server.reads <= READS
            assert outcome == Appended(last, DeliveryId(1, last), kept.append(first, some, clock.ms))
            head = await store.journal.head("s")
            assert head is not None
            assert head.first_seq == (kept.entries[0][0] if kept.entries else last + 1)
            assert head.bytes_kept == kept.bytes
