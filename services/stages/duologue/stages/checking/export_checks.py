"""What an engine that exports promises: its state in a fresh slot goes on exactly where it was.

Each check returns what it found, for the report, or raises CheckFailed.
"""

from __future__ import annotations

from duologue.model.engine import Slot, StageRefused
from duologue.stages.checking.conversation import Talk, difference
from duologue.stages.checking.subject import CheckFailed, Declared, Subject

_NO_STATE = b"\xc1"
"""No engine exports this: no msgpack and no JSON begins with it."""
_HIGH = 2_000_000
_LATER_S = 0.05


def goes_on_elsewhere(subject: Subject) -> str:
    """While it listens, in the middle of what it says and after the end of it; moved, and only asked for its state."""
    if not any(engine.exports for engine in subject.stack.engines):
        raise Declared("no stage exports its state: the sessions of a drained worker are rebuilt elsewhere")
    whole = subject.whole(7)
    spoke = whole.spoke_at or [1]
    points = dict.fromkeys((0, spoke[0], spoke[len(spoke) // 2], spoke[-1]))
    sizes: list[int] = []
    for unit in points:
        for moves in (True, False):
            talk = subject.talk(7)
            sizes += _hold(subject, talk, unit, moves=moves)
            if talk.failed:
                raise CheckFailed(f"after unit {unit}: unit {talk.failed[-1][1]} failed: {talk.failed[-1][2].message}")
            different = difference(whole, talk)
            if different and subject.table.deterministic:
                what = "in a fresh slot" if moves else "in the slot that was asked for its state"
                raise CheckFailed(f"{what} it goes on another way after unit {unit}: {different}")
            talk.close()
    if not sizes:
        raise CheckFailed("it was asked for its state between units, and never gave it")
    _refuses(subject)
    found = f"{len(sizes)} times, at most {max(sizes)} bytes"
    if not subject.table.deterministic:
        raise Declared(f"{found}, all landed; {subject.why_not}")
    return found


def _hold(subject: Subject, talk: Talk, unit: int, *, moves: bool) -> list[int]:
    """The whole conversation, with a move or a question behind this unit; the size of the state, if there was one."""
    stack, sizes = subject.stack, list[int]()
    for _ in talk.ticks(subject.table.units):
        stack.settle([talk.seat])
        if sizes or talk.next_unit <= unit:
            continue
        states = stack.export(talk.seat)
        if states is None:
            continue  # not now: it is asked again behind the next one
        sizes.append(sum(map(len, states.values())))
        before = len(talk.said)
        stack.quiet(_LATER_S)
        if len(talk.said) != before:
            raise CheckFailed(f"it made something after it had given its state, behind unit {unit}")
        if moves:
            stack.move(talk.seat, states)
    return sizes


def _refuses(subject: Subject) -> None:
    """What is no state is refused with a code, and takes no slot."""
    for index, engine in enumerate(subject.stack.engines):
        if not engine.exports:
            continue
        name, slot = subject.stack.names[index], Slot(0, _HIGH)
        try:
            engine.import_state(slot, _NO_STATE)
        except StageRefused as refused:
            if not refused.code:
                raise CheckFailed(f"{name}: what is no state is refused without a code") from None
        except Exception as error:
            raise CheckFailed(f"{name}: import_state raised {type(error).__name__}: {error}") from None
        else:
            raise CheckFailed(f"{name}: it takes what is no state")
        if engine.usage().slots_used:
            raise CheckFailed(f"{name}: the slot of a refused state stays in use")
