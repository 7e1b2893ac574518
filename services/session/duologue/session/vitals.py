"""Who is dead, as far as the registry tells. SANS-I/O: times are the process's monotonic seconds.

Rule 1. Dead is an incarnation that is not registered while the store has answered for one whole expiry, without a
        gap. After a gap (an outage, or we ourselves stood still) everybody has to register again first: nobody is
        judged for `LENIENT_S`.
Rule 2. An incarnation whose id another one has taken over is dead at once, whatever the store did.
Rule 3. Judged is only by a roster that is fresh. A wrong judgement costs a response, never more: the owner number
        protects the session, not this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from duologue.model.records import ShardRecord
from duologue.store.ports import Registration

_decode = msgspec.msgpack.Decoder(ShardRecord).decode

LENIENT_S: Final = 3.0
MAX_UNHEARD: Final = 256


class Vitals:
    """`heard` each roster; ask `dead`. `beat_s`, `expiry_s`: those of the registrations."""

    def __init__(self, beat_s: float, expiry_s: float) -> None:
        self._expiry_s = expiry_s
        self._gap_s = 2 * beat_s
        """Two answers further apart than that, and the store was away."""
        self._answered_at = float("-inf")
        self._judges_from = float("inf")
        self._members: dict[str, Registration] = {}
        self._known: dict[str, Registration] = {}
        """Every incarnation heard of that may be asked about, as it last described itself."""
        self._unheard: dict[str, float] = {}
        """Those asked about and never heard of, and since when."""

    def heard(self, members: Iterable[Registration], now: float) -> bool:
        """The store has answered with this roster. True: for the first time after a gap, in which others may have
        judged us."""
        gap = now - self._answered_at > self._gap_s
        if gap:
            first = self._answered_at == float("-inf")
            self._judges_from = now + (self._expiry_s if first else LENIENT_S)
        self._answered_at = now
        self._members = {member.incarnation: member for member in members}
        self._known.update(self._members)
        if len(self._known) > 4 * len(self._members) + 256:
            for old in list(self._known)[:256]:  # oldest first; what is asked about again is judged by rule 1
                del self._known[old]
        return gap

    def fresh(self, now: float) -> bool:
        """Whether the last roster is recent enough to act on."""
        return now - self._answered_at <= self._gap_s

    def dead(self, incarnation: str, now: float) -> bool:
        if incarnation in self._members or not self.fresh(now):
            return False
        known = self._known.get(incarnation)
        if known is not None and any(
            (member.kind, member.id) == (known.kind, known.id) for member in self._members.values()
        ):
            return True
        if now < self._judges_from:
            return False
        return known is not None or self._missed(incarnation, now)

    def _missed(self, incarnation: str, now: float) -> bool:
        """One never heard of: it may have joined just now. Not so when it has not shown for one expiry."""
        if incarnation not in self._unheard and len(self._unheard) >= MAX_UNHEARD:
            del self._unheard[next(iter(self._unheard))]
        return now - self._unheard.setdefault(incarnation, now) >= self._expiry_s

    def lives(self, incarnation: str) -> bool:
        """Whether it is registered."""
        return incarnation in self._members

    def sessions(self) -> int:
        """How many there are at all shards together, as they last told."""
        return sum(member.load for member in self._members.values() if member.kind == "shard")

    def shards(self, state: int = 0) -> Sequence[Registration]:
        """The shards that are registered, take sessions, and can go on from a checkpoint of this version."""
        return [member for member in self._members.values() if member.kind == "shard" and _takes(member, state)]

    def wrote(self, incarnation: str) -> int:
        """The version of the checkpoints that this shard saves, or saved while it lived; 0: it is not known."""
        known = self._known.get(incarnation)
        try:
            return 0 if known is None or known.kind != "shard" else _decode(known.extra).writes_state
        except msgspec.DecodeError:
            return 0


def _takes(member: Registration, state: int) -> bool:
    try:
        record = _decode(member.extra)
    except msgspec.DecodeError:  # another version: it cannot go on with what is ours either
        return False
    return record.accepting and record.reads_state >= state
