"""How long clients heard nothing because of a fault, less what the witnesses saw the machine stand still.

A session hears its model in every unit of 80 ms, a decision to listen at least. Its longest silence that begins between
a fault and 3 s after everything ran again, and before the next fault, is what that fault cost it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

import msgspec
from chaos.witness import Stalls

RECONNECT_S: Final = 1.0
"""What one reconnect may take: the policy's first pause, a handshake and the replay."""

BOUNDS: Final[dict[str, tuple[float, str]]] = {
    "kill gateway": (RECONNECT_S, "one reconnect"),
    "kill shard": (1.0, "supervised exit 1 s"),
    "kill worker": (1.0, "supervised exit 1 s, plus rebuild"),
    "kill store": (0.5, "nothing while live (its deadline, twice)"),
    "pause gateway": (RECONNECT_S, "the pause, and one reconnect"),
    "pause shard": (4.0, "silent death 4 s"),
    "pause worker": (4.0, "silent death 4 s, plus rebuild"),
    "stall store": (0.5, "nothing while live (its deadline, twice)"),
    "reset sockets": (RECONNECT_S, "one reconnect"),
    "half-open sockets": (RECONNECT_S, "until the client notices, and one reconnect"),
    "drain gateway": (RECONNECT_S, "one reconnect"),
    "drain shard": (0.5, "nothing"),
    "drain worker": (1.0, "one turn-end pause"),
}
"""Seconds, and the words of architecture.md, section 10."""

AFTERMATH_S: Final = 3.0
USUAL_S: Final = 0.2
"""A silence that begins so shortly before a fault is that fault's."""

BESIDES: Final = ("pause gateway", "half-open sockets")
"""Here the silence itself is the fault: it does not count as an outage."""


class Happened(msgspec.Struct, frozen=True):
    """A fault as it was carried out. `over`: when everything ran again."""

    kind: str
    target: str
    began: float
    ended: float
    over: float

    def told(self) -> str:
        return f"{self.kind} {self.target}".rstrip()


class Outage(msgspec.Struct, frozen=True):
    """The longest of one kind. Seconds."""

    kind: str
    times: int
    longest_s: float
    stall_s: float
    excused_s: float
    at: float

    @property
    def net_s(self) -> float:
        return max(0.0, self.longest_s - self.stall_s - self.excused_s)

    @property
    def within(self) -> bool:
        return self.net_s <= BOUNDS[self.kind][0]


def outages(
    heard: Sequence[Sequence[float]], happened: Sequence[Happened], witnesses: Sequence[Stalls]
) -> list[Outage]:
    """The longest outage of each kind. `heard`: of each recording, when its model was heard."""
    worst: dict[str, Outage] = {}
    nexts = [fault.began - USUAL_S for fault in happened[1:]] + [float("inf")]
    for times_heard in heard:
        for fault, next_ in zip(happened, nexts, strict=True):
            outage = _longest(fault, min(next_, fault.over + AFTERMATH_S), times_heard, witnesses)
            known = worst.get(fault.kind)
            if known is None or outage.net_s > known.net_s:
                worst[fault.kind] = outage
    times = [fault.kind for fault in happened]
    return [msgspec.structs.replace(worst[kind], times=times.count(kind)) for kind in BOUNDS if kind in worst]


def _longest(fault: Happened, until: float, heard: Sequence[float], witnesses: Sequence[Stalls]) -> Outage:
    best = Outage(fault.kind, 1, 0.0, 0.0, 0.0, fault.began)
    first, last = bisect_right(heard, fault.began) - 1, bisect_left(heard, until)
    for before, after in zip(heard[max(0, first) : last], heard[max(0, first) + 1 : last + 1], strict=False):
        length = after - before
        if length <= best.net_s:
            continue
        stall = max((witness.within(before, after) for witness in witnesses), default=0.0)
        excused = max(0.0, min(after, fault.ended) - max(before, fault.began)) if fault.kind in BESIDES else 0.0
        outage = Outage(fault.kind, 1, length, stall, excused, before)
        if outage.net_s > best.net_s:
            best = outage
    return best


def table(found: Sequence[Outage]) -> str:
    """For a person."""
    head = f"{'fault':18} {'times':>5} {'longest s':>9} {'stall s':>8} {'own s':>6} {'net s':>6}  bound"
    rows = [
        f"{o.kind:18} {o.times:5} {o.longest_s:9.2f} {o.stall_s:8.2f} {o.excused_s:6.2f} {o.net_s:6.2f}  "
        f"{BOUNDS[o.kind][1]}{'' if o.within else '   <-- LONGER'}"
        for o in found
    ]
    return "\n".join([head, *rows])
