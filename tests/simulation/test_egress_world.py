"""The real egress keeps the delivery rules in every faulty world; the checks would notice if it did not."""

from __future__ import annotations

import itertools
from collections import Counter, deque

import msgspec
import pytest
from simulation.egress_world import FAULTS, campaign

from duologue.bus.messages import Delivered
from duologue.delivery.egress import Egress, Frame
from duologue.fence import Owner
from duologue.store.ports import AppendOutcome, Unknown
from duologue.store.scripts import SCRIPTS, Script

pytestmark = pytest.mark.sim

PAIRS = tuple(itertools.combinations(FAULTS, 2))
HARD = (
    "resume",
    "cancel with a batch out",
    "lost reply",
    "late execution",
    "sent without the journal",
    "adopt",
)


@pytest.mark.parametrize("faults", [(), *((fault,) for fault in FAULTS)], ids=lambda f: "+".join(f) or "none")
def test_single_faults(faults: tuple[str, ...]) -> None:
    found, count = campaign(faults, range(15))
    assert not found
    assert all(count[fault] for fault in faults if fault not in ("lost", "late"))


@pytest.mark.parametrize("faults", PAIRS, ids="+".join)
def test_pairs(faults: tuple[str, str]) -> None:
    found, _ = campaign(faults, range(6))
    assert not found


def test_everything_at_once_and_how_often_it_happened() -> None:
    found, count = campaign(FAULTS, range(100))
    print({name: count[name] for name in (*HARD, *FAULTS)})
    assert not found
    assert all(count[name] >= 100 for name in HARD), count


# -- planted bugs -------------------------------------------------------------------------------------


class Hasty(Egress):
    """Sends before the journal has answered."""

    def live(self, now: float, room: bool) -> list[Frame]:
        self._breaker.open = True
        return super().live(now, room)


class Renumbers(Egress):
    """Gives a batch of unknown outcome new numbers."""

    def on_outcome(self, outcome: AppendOutcome, now: float) -> list[Frame]:
        if isinstance(outcome, Unknown):
            for event in self._numbered:
                event.seq += 1
        return super().on_outcome(outcome, now)


class PurgesTheBatch(Egress):
    """Takes from the outstanding batch what is invalidated."""

    def invalidate(self, owner: Owner, response_id: str, through_epoch: int) -> int:
        if self._unsent and owner == self.owner:
            left = deque(event for event in self._numbered if event.what.media_of != response_id)
            self._unsent -= len(self._numbered) - len(left)
            self._numbered = left
            for seq, event in enumerate(left, self.seq + 1):
                event.seq = seq
        return super().invalidate(owner, response_id, through_epoch)


class NumbersAgain(Egress):
    """Does not notice what was numbered before."""

    def _settle_repeated(self) -> bool:
        return bool(self._queue)


class Forgets(Egress):
    """Keeps nothing of what it sent while the store was away."""

    def live(self, now: float, room: bool) -> list[Frame]:
        frames = super().live(now, room)
        if frames:
            self._numbered.clear()
        return frames


class AcksTooMuch(Egress):
    """Acknowledges what has not been handed on."""

    def take_ack(self) -> Delivered | None:
        ack = super().take_ack()
        return ack and msgspec.structs.replace(ack, through=max(ack.through, self._tail))


EGRESS_BUGS: list[tuple[type[Egress], tuple[str, ...]]] = [
    (Hasty, ("kill", "late")),
    (Renumbers, ("lost",)),
    (PurgesTheBatch, ("lost", "late")),
    (NumbersAgain, ("takeover", "adopt")),
    (Forgets, ("down", "takeover")),
    (AcksTooMuch, ("kill", "full", "adopt")),
]


@pytest.mark.parametrize(("bug", "faults"), EGRESS_BUGS, ids=lambda p: getattr(p, "__name__", ""))
def test_bugs_of_the_egress_are_caught(bug: type[Egress], faults: tuple[str, ...]) -> None:
    assert _caught(faults, bug), f"nobody notices an egress that {bug.__doc__}"


SCRIPT_BUGS = {
    "append does not compare the egress": ("journal/append", b"if egress < stored_egress", b"if false"),
    "append gives a new number to what is there": (
        "journal/append",
        b"if seq <= last then",
        b"if false then",
    ),
    "claim does not raise the egress": (
        "journal/claim",
        b"math.max(num(ARGV[4]), num(v[1]) + 1)",
        b"num(v[1])",
    ),
}


@pytest.mark.parametrize("name", SCRIPT_BUGS)
def test_bugs_of_the_scripts_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    which, right, wrong = SCRIPT_BUGS[name]
    script = SCRIPTS[which]
    assert script.source.count(right) == 1
    source = script.source.replace(right, wrong)
    monkeypatch.setitem(SCRIPTS, which, Script(which, source, b"mutant"))
    assert _caught(("takeover", "late", "lost"), Egress), f"nobody notices that {name}"


def _caught(faults: tuple[str, ...], egress: type[Egress]) -> Counter[str] | None:
    for start in range(0, 500, 10):
        found, count = campaign(faults, range(start, start + 10), egress)
        if found:
            print(next(iter(found.items())))
            return count
    return None
