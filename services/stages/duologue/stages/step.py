"""One step of an engine: what it is given, in which order it is done, and what comes back.

Rule 1. Orders go before units: a cancelled or closed session costs no more compute.
Rule 2. Nothing that an engine raises gets out of a step: it fails the units or the order that it was for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from duologue.model.engine import Emission, Slot, StageEngine, StageRefused, StageUnit
from duologue.stages.cursor import Cursor, Entry

_log = logging.getLogger("duologue.stages")


class Kind(Enum):
    OPEN = "open"
    CANCEL = "cancel"
    CONTROL = "control"
    CLOSE = "close"
    EXPORT = "export"
    IMPORT = "import"


@dataclass(frozen=True, slots=True)
class Order:
    """Something other than a unit. `body`: the configuration of an open, the body of a control, the state of an import.
    `epoch` of an export: its ticket."""

    kind: Kind
    slot: Slot
    cursor: Cursor | None = None
    body: bytes = b""
    epoch: int = 0
    name: str = ""


@dataclass(slots=True)
class Work:
    """What an engine does in one step."""

    orders: list[Order]
    batch: list[Entry]
    units: list[StageUnit]
    """Those of the batch, as the engine gets them."""
    read: bool = False


@dataclass(slots=True)
class Done:
    """What came of it."""

    work: Work
    emissions: list[Emission] = field(default_factory=list)
    refused: dict[int, StageRefused] = field(default_factory=dict)
    """Orders (by their place in the work) that the engine refused or failed on."""
    exported: dict[int, bytes | None] = field(default_factory=dict)
    """What orders to export (by their place in the work) gave."""
    error: str = ""
    """Not empty: the whole batch failed."""
    compute_s: float = 0.0


def perform(engine: StageEngine, work: Work) -> Done:
    """Do the work on the calling thread."""
    done = Done(work)
    for place, order in enumerate(work.orders):
        _carry_out(engine, order, place, done)
    started = time.perf_counter()
    if work.units:
        try:
            done.emissions.extend(engine.append_batch(work.units))
        except Exception as error:
            _log.exception("a step of %s over %d units failed", type(engine).__name__, len(work.units))
            done.error = f"{type(error).__name__}: {error}"
    if work.read:
        done.emissions.extend(_read(engine))
    done.compute_s = time.perf_counter() - started
    return done


def _read(engine: StageEngine) -> Sequence[Emission]:
    try:
        return engine.read()
    except Exception:
        # The units that it belonged to reach their deadline.
        _log.exception("reading from %s failed", type(engine).__name__)
        return ()


def _carry_out(engine: StageEngine, order: Order, place: int, done: Done) -> None:
    try:
        if order.kind is Kind.OPEN:
            engine.open(order.slot, order.body)
        elif order.kind is Kind.CANCEL:
            engine.cancel(order.slot, order.epoch)
        elif order.kind is Kind.CONTROL:
            engine.control(order.slot, order.name, order.body)
        elif order.kind is Kind.EXPORT:
            done.exported[place] = engine.export_state(order.slot)
        elif order.kind is Kind.IMPORT:
            engine.import_state(order.slot, order.body)
        else:
            engine.close(order.slot)
    except StageRefused as refused:
        done.refused[place] = refused
    except Exception as error:
        _log.exception("%s of %s failed", order.kind.value, type(engine).__name__)
        done.refused[place] = StageRefused("engine_error", f"{type(error).__name__}: {error}")
