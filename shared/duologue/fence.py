"""The numbers that guard a session. They only grow; each is compared in one place.

Fence *meaning*, never resources or durability: a late output of an old epoch is meaningless and
dropped, but a confirmation that bytes are durable, played or released is true whatever came since.
"""

from __future__ import annotations

import msgspec


class Owner(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """Who may change a session: a number the store hands out and the shard incarnation that got it.

    Order is by `number`; an equal number of another incarnation is a conflict and refused.
    """

    number: int = 0
    incarnation: str = ""


class CommandNo(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """One client command: the attachment generation it came on and its count there, from 1."""

    generation: int = 0
    n: int = 0


class DeliveryId(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """One output event: the owner number that produced it and its count under that owner, from 1."""

    owner: int = 0
    n: int = 0


class DuplexFence(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """What a client sees, and what staleness inside a session means."""

    session_id: str
    epoch: int = 0
    turn_id: int = 0


class StageFence(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """Guards what goes to a stage worker and comes back; compared for equality at the core's door and
    at the worker's. `binding` grows when the stages of a session are opened again."""

    owner: int = 0
    binding: int = 0
    epoch: int = 0
