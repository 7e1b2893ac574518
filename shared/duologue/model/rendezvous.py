"""Weighted rendezvous hashing: which shard a session goes to, and which one inherits it. SANS-I/O.

Everybody who knows the same shards computes the same order, so an heir is agreed on without asking anybody. When a
shard goes, only its own sessions move.
"""

from __future__ import annotations

import hashlib
import math


def weight(session_id: str, shard_id: str, capacity: int) -> float:
    """The score of a shard for a session, the highest first: over many sessions each shard comes first in proportion
    to its capacity."""
    digest = hashlib.blake2b(f"{session_id}|{shard_id}".encode(), digest_size=8).digest()
    uniform = (int.from_bytes(digest, "big") + 1) / (2**64 + 1)
    return -max(capacity, 1) / math.log(uniform)
