"""Whose messages count: the sessions bound to this worker and the numbers that guard them. SANS-I/O.

Rule 1. What belongs to a unit must carry exactly the fence that the worker holds; anything else is stale.
Rule 2. A higher (owner, binding) replaces what is held; a lower one is refused. An equal one is a repetition.
Rule 3. Closing frees what is held up to the closer's numbers, and is always confirmed.
Rule 4. The sessions of a lost shard incarnation are kept for `orphan_s`, for its heir or its return.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from duologue.bus.link import Link
from duologue.fence import StageFence
from duologue.stages.cursor import Cursor


class Claim(Enum):
    """What an attempt to open comes to."""

    NEW = "new"
    REPLACES = "replaces"
    REPEATED = "repeated"
    STALE = "stale"


class Export:
    """A session's state on its way out. `states`: what the stages gave, from when all of them are asked."""

    __slots__ = ("size", "states", "ticket")

    def __init__(self, ticket: int) -> None:
        self.ticket = ticket
        self.states: dict[int, bytes] | None = None
        self.size = 0


class Binding:
    """One session's hold on this worker."""

    __slots__ = ("cursors", "export", "fence", "link", "opening", "orphan_since", "pipeline", "session_id", "shard")

    def __init__(self, session_id: str, fence: StageFence, pipeline: str, link: Link) -> None:
        self.session_id = session_id
        self.fence = fence
        self.pipeline = pipeline
        self.link: Link | None = link
        self.shard = link.peer.incarnation
        self.cursors: dict[int, Cursor] = {}
        """By stage of the pipeline."""
        self.opening = 0
        """Stages that have not answered yet."""
        self.orphan_since: float | None = None
        self.export: Export | None = None
        """Its state is asked for."""


class Door:
    """All bindings, by session."""

    def __init__(self, orphan_s: float = 10.0) -> None:
        self.orphan_s = orphan_s
        self._bindings: dict[str, Binding] = {}

    def __len__(self) -> int:
        return len(self._bindings)

    def __iter__(self) -> Iterator[Binding]:
        return iter(self._bindings.values())

    def get(self, session_id: str) -> Binding | None:
        return self._bindings.get(session_id)

    def claim(self, session_id: str, fence: StageFence) -> Claim:
        held = self._bindings.get(session_id)
        if held is None:
            return Claim.NEW
        mine, theirs = _rank(held.fence), _rank(fence)
        if theirs > mine:
            return Claim.REPLACES
        return Claim.REPEATED if theirs == mine else Claim.STALE

    def admit(self, session_id: str, fence: StageFence, link: Link) -> Binding | None:
        """The binding that this message may act on, or None: it is stale."""
        held = self._bindings.get(session_id)
        if held is None or held.fence != fence:
            return None
        if held.link is not link:
            self._reach(held, link)
        return held

    def advance(self, session_id: str, fence: StageFence, link: Link) -> Binding | None:
        """Move the epoch on. None: not this binding, or the epoch is not newer."""
        held = self._bindings.get(session_id)
        if held is None or _rank(held.fence) != _rank(fence) or fence.epoch <= held.fence.epoch:
            return None
        held.fence = fence
        if held.link is not link:
            self._reach(held, link)
        return held

    def closable(self, session_id: str, fence: StageFence) -> Binding | None:
        """The binding that a close with this fence ends, if any."""
        held = self._bindings.get(session_id)
        return held if held is not None and _rank(fence) >= _rank(held.fence) else None

    def add(self, binding: Binding) -> None:
        self._bindings[binding.session_id] = binding

    def remove(self, binding: Binding) -> None:
        if self._bindings.get(binding.session_id) is binding:
            del self._bindings[binding.session_id]

    def lose(self, link: Link, now: float) -> list[Binding]:
        """The link is gone: its sessions have nobody to tell anything to."""
        lost = [binding for binding in self if binding.link is link]
        for binding in lost:
            binding.link = None
            binding.orphan_since = now
        return lost

    def orphans(self, now: float) -> list[Binding]:
        """The sessions that nobody has come back for in time."""
        return [
            binding
            for binding in self
            if binding.orphan_since is not None and now - binding.orphan_since >= self.orphan_s
        ]

    def _reach(self, held: Binding, link: Link) -> None:
        """A valid message came on another link: the session's shard is there."""
        held.link = link
        held.shard = link.peer.incarnation
        held.orphan_since = None


def _rank(fence: StageFence) -> tuple[int, int]:
    return fence.owner, fence.binding
