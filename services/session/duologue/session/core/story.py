"""The story of a session: its last steps, for an operator and for the log of a fault. SANS-I/O.

Rule 1. Nothing of what was said: kinds, ids, numbers, sizes, codes and times; no sound, text, argument or message.
        What is shown of a fact or an effect is listed here, field by field; of another kind nothing is but its name.
Rule 2. Constant memory: the last `LENGTH` steps, each one flat tuple of plain values: a step costs one object, and
        nothing that the garbage collector has to look at. Names are put to the values when they are told.
Rule 3. It is no state: no checkpoint holds it, and an heir begins its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, get_args

from duologue.protocol.duplex import AppendAudio
from duologue.session.core import commands as facts
from duologue.session.core import effects as orders
from duologue.session.core.engine_session import DuplexEngineSession

LENGTH: Final = 200
MAX_ID: Final = 64
"""A client chooses its event ids; more of one is not kept."""
MAX_SHOWN: Final = 64
"""Effects shown of one step; a close of a long conversation may have more."""

_TYPE: Final = b'{"type":"'
_NAME_AT: Final = len(_TYPE)
_NAME_ENDS: Final = _NAME_AT + 64

Shown = tuple[Callable[[Any], tuple[Any, ...]], tuple[str, ...]]


def _from_client(fact: facts.FromClient) -> tuple[Any, ...]:
    command, no = fact.command, fact.no
    size = len(command.audio) if isinstance(command, AppendAudio) else 0
    event_id = None if command.event_id is None else command.event_id[:MAX_ID]
    return command.__struct_config__.tag, event_id, size, no.generation, no.n


def _bytes(made: facts.StageOutput | orders.Submit) -> int:
    size = len(made.head)
    for frame in made.frames:  # mostly one or none: what would sum them up costs more than the loop
        size += len(frame)
    return size


def _deliver(order: orders.Deliver) -> tuple[Any, ...]:
    body = order.body
    kind = body[_NAME_AT : body.find(b'"', _NAME_AT, _NAME_ENDS)] if body.startswith(_TYPE) else b""
    return order.n, kind, len(body), order.media_of, order.close_code


FACTS: Final[dict[type, Shown]] = {
    facts.FromClient: (_from_client, ("command", "event_id", "bytes", "generation", "n")),
    facts.InputRefused: (lambda f: (f.code, f.no.generation, f.no.n), ("code", "generation", "n")),
    facts.StagesReady: (lambda f: (f.fence.binding,), ("of_binding",)),
    facts.StagesLost: (lambda f: (f.fence.binding, f.code, f.refused), ("of_binding", "code", "refused")),
    facts.StageOutput: (
        lambda f: (f.stage, f.to_stage, f.unit, f.turn_id, f.fence.epoch, _bytes(f)),
        ("stage", "to_stage", "unit", "of_turn", "of_epoch", "bytes"),
    ),
    facts.StageFailed: (lambda f: (f.stage, f.unit, f.code), ("stage", "unit", "code")),
    facts.UnitsAborted: (lambda f: (len(f.consumed), len(f.dropped)), ("consumed", "dropped")),
    facts.InputRecalled: (lambda f: (f.ticket, len(f.units), f.error), ("ticket", "units", "error")),
    facts.Offloaded: (lambda f: (f.ticket, len(f.result), f.error != ""), ("ticket", "bytes", "failed")),
    facts.Detected: (lambda f: (f.ticket, len(f.probabilities), f.error), ("ticket", "frames", "error")),
    facts.TurnJudged: (lambda f: (f.ticket, f.error), ("ticket", "error")),
    facts.Attached: (lambda f: (f.generation,), ("generation",)),
    facts.Detached: (lambda f: (f.generation, f.clean), ("generation", "clean")),
    facts.Delivered: (lambda f: (f.through.owner, f.through.n), ("of_owner", "through")),
    facts.Covered: (lambda f: (f.number,), ("number",)),
    facts.Adopted: (lambda f: (f.before, f.journaled.n, len(f.told)), ("before", "journaled", "told")),
    facts.RebindWanted: (lambda f: (f.reason,), ("reason",)),
    facts.CloseRequested: (lambda f: (f.reason, f.close_code), ("reason", "close_code")),
}

EFFECTS: Final[dict[type, Shown]] = {
    orders.Deliver: (_deliver, ("n", "event", "bytes", "media_of", "close_code")),
    orders.Submit: (
        lambda e: (e.stage, e.unit, e.turn_id, _bytes(e), e.replay),
        ("stage", "unit", "of_turn", "bytes", "replay"),
    ),
    orders.Abort: (lambda e: (e.fence.epoch,), ("to_epoch",)),
    orders.OpenStages: (lambda e: (e.fence.binding, len(e.configs)), ("of_binding", "stages")),
    orders.ControlStage: (lambda e: (e.stage, e.kind, len(e.body)), ("stage", "kind", "bytes")),
    orders.CloseStages: (lambda e: (e.fence.binding,), ("of_binding",)),
    orders.Offload: (lambda e: (e.ticket, e.kind, len(e.body)), ("ticket", "kind", "bytes")),
    orders.Detect: (lambda e: (e.ticket, len(e.sound)), ("ticket", "bytes")),
    orders.JudgeTurn: (lambda e: (e.ticket, len(e.sound)), ("ticket", "bytes")),
    orders.Checkpoint: (lambda e: (e.number, len(e.body), e.applied.n), ("number", "bytes", "applied")),
    orders.RecordInput: (lambda e: (), ()),
    orders.RecallInput: (lambda e: (e.ticket, e.below), ("ticket", "below")),
    orders.Invalidate: (lambda e: (e.response_id, e.through_epoch), ("response_id", "through_epoch")),
    orders.TellFault: (lambda e: (e.where,), ("where",)),
    orders.Close: (lambda e: (e.reason,), ("reason",)),
}

_NOTHING: Final[Shown] = (lambda _: (), ())

_SHOWN: Final = {kind: FACTS.get(kind, _NOTHING) for kind in get_args(facts.SessionCommand)} | EFFECTS
_SEE: Final = {kind: (kind.__name__, see) for kind, (see, _) in _SHOWN.items()}
_NAMES: Final = {kind.__name__: names for kind, (_, names) in _SHOWN.items()}


class Story:
    """See the module."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: deque[tuple[Any, ...]] = deque(maxlen=LENGTH)

    def __len__(self) -> int:
        return len(self._steps)

    def step(
        self,
        now: float,
        state: DuplexEngineSession,
        fact: facts.SessionCommand,
        effects: Sequence[orders.SessionEffect],
    ) -> None:
        """One fact was handled, and this is what came of it. The fence is that after it."""
        count = len(effects)
        kind, see = _SEE[type(fact)]
        seen: tuple[Any, ...]
        seen = (now, state.owner, state.binding, state.epoch, state.turn_id, count, kind, *see(fact))
        for effect in effects if count <= MAX_SHOWN else effects[:MAX_SHOWN]:
            kind, see = _SEE[type(effect)]
            seen = (*seen, kind, *see(effect))
        self._steps.append(seen)

    def told(self) -> list[dict[str, object]]:
        """Oldest first, ready to be shown. Fields that say nothing are left out."""
        return [_told(*step) for step in self._steps]


def _told(at: float, owner: int, binding: int, epoch: int, turn: int, count: int, *seen: Any) -> dict[str, object]:
    (fact, fields), *effects = _named(seen)
    told = {"at": round(at, 3), "fact": fact, **fields}
    told["fence"] = {"owner": owner, "binding": binding, "epoch": epoch, "turn": turn}
    told["effects"] = [{"effect": effect, **fields} for effect, fields in effects]
    if count > len(effects):
        told["more_effects"] = count - len(effects)
    return told


def _named(seen: tuple[Any, ...]) -> Iterator[tuple[str, dict[str, object]]]:
    """The fact, then its effects: each a kind, and what is shown of it."""
    values = iter(seen)
    for kind in values:
        yield kind, _fields(zip(_NAMES[kind], values, strict=False))


def _fields(named: Iterable[tuple[str, Any]]) -> dict[str, object]:
    fields: dict[str, object] = {}
    for name, value in named:
        if value is not None and value is not False and value not in ("", b""):
            fields[name] = value.decode("ascii", "replace") if isinstance(value, bytes) else value
    return fields
