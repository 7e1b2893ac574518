"""StageEngine: what a stage worker runs. Weights, KV cache and codec state of the sessions bound to it.

Rule 1. All methods are called by one thread at a time (the engine's step loop), never from two at once.
Rule 2. An engine knows slots, never sessions' policy. What belongs to a slot is freed by `close`.
Rule 3. A step may take as long as it must; what it made for a slot that changed hands meanwhile is thrown
        away by the worker, which compares incarnations after the step, before anything leaves.
Rule 4. Output made between appends (a language model that streams, synthesis in a thread) is kept by the
        engine, bounded, until `read`; `wake` may be called from any thread to have `read` called soon.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import msgspec

NEXT = -2
"""`Emission.to`: the stage after this one."""
SESSION = -1
"""`Emission.to`: a result for the session (`ModelOutput` in the head)."""
NO_UNIT = -1
"""`Emission.unit`: made between appends."""


class Slot(msgspec.Struct, frozen=True, gc=False):
    """A place in an engine's batch and the life of it. Equal only if nobody else had the place since."""

    index: int
    incarnation: int


class StageUnit(msgspec.Struct, frozen=True, gc=False):
    """One append for one stage. `frames` are opaque to everything but the model's own code."""

    slot: Slot
    unit: int
    turn_id: int
    epoch: int
    attempt: int
    head: bytes
    frames: tuple[bytes, ...]
    replay: bool = False
    """It was heard before, and the context with it was lost (`DuplexModelPlugin.plan_rebuild`): take it in, answer
    nothing. What a stage still makes of it for the session is thrown away."""


class Failure(msgspec.Struct, frozen=True, gc=False):
    """Why a unit failed. `retryable`: the same unit may be tried again after a rebuild: the session binds its stages
    anew. With the code `context_exhausted` that is a rollover, not a death."""

    code: str
    message: str
    retryable: bool = False


class Emission(msgspec.Struct, frozen=True, gc=False):
    """What a stage made for one slot. `last`: the unit is consumed, nothing more comes of it here."""

    slot: Slot
    to: int
    unit: int
    turn_id: int
    head: bytes = b""
    frames: tuple[bytes, ...] = ()
    last: bool = True
    failure: Failure | None = None


class EngineUsage(msgspec.Struct, frozen=True, gc=False):
    slots_used: int
    slots_total: int
    state_bytes: int = 0
    kv_tokens: int = 0


class StageRefused(Exception):
    """The slot cannot be opened: no room, a bad configuration, a context that does not fit."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class StageEngine(ABC):
    #: How many units one step may hold; set by the builder from the pipeline.
    max_batch: int = 8
    #: Whether what a slot holds can go to another worker's engine: `export_state` and `import_state`.
    exports: bool = False
    #: Set by the worker before `warm_up`. Thread-safe.
    wake: Callable[[], None]

    def warm_up(self) -> None:
        """Load and run once, so that the first session does not pay. The worker is ready after it."""

    @abstractmethod
    def open(self, slot: Slot, config: bytes) -> None:
        """Take a slot. `config` is what the plugin's `stage_configs` made for this stage.

        Raises StageRefused."""

    @abstractmethod
    def append_batch(self, batch: Sequence[StageUnit]) -> Sequence[Emission]:
        """One step over at most `max_batch` units of different slots. Every unit gets an emission with
        `last=True` from this call or from a later `read`, replays included: to the next stage whatever that one
        needs to take the unit in too, to the session an empty result. An exception fails every unit of the batch.

        A step holds units of live sessions and replays of others side by side; the pump puts live ones first."""

    def blocks(self, batch: Sequence[StageUnit]) -> bool:
        """Whether this step may take more than about a millisecond. If not, the worker may run it on its
        link thread and spare two thread switches."""
        return True

    def read(self) -> Sequence[Emission]:
        """What was made between appends since the last call."""
        return ()

    @abstractmethod
    def cancel(self, slot: Slot, epoch: int) -> None:
        """The session moved to `epoch`: stop work for older ones and forget what they were about to say.
        What was heard stays (a listening stage goes on with the sound it has), and so does the cache of it: a
        cancel must not cost a new prefill where the engine can avoid it. Roll back to before what was being said,
        or keep it as said; an engine that can do neither says so with `ModelTraits.cancel_keeps_context`, and its
        sessions are bound anew and rebuilt after each cancel."""

    def control(self, slot: Slot, kind: str, body: bytes) -> None:
        """A preempting control from the plugin (`update`)."""

    @abstractmethod
    def close(self, slot: Slot) -> None:
        """Free the slot. Idempotent."""

    @abstractmethod
    def usage(self) -> EngineUsage: ...

    def export_state(self, slot: Slot) -> bytes | None:
        """All that the slot holds, for `import_state` of this stage in another worker, which may be of a neighbouring
        release: let it begin with a version. Asked for between units: each that was given has had its last, and after
        it nothing may leave for the slot before it is given something again. The slot itself is as it was: it is
        closed once the other one is open, and goes on here if that comes to nothing.

        None: not now (something is still to be read of it). It is asked again, and otherwise moves by a rebuild."""
        return None

    def import_state(self, slot: Slot, state: bytes) -> None:
        """Take a slot, in place of `open`, that goes on exactly where the one did that `state` is of.

        Raises StageRefused: no room, or a state that this engine cannot read (`state_unreadable`)."""
        raise StageRefused("state_unreadable", "this engine takes no state")

    def shut_down(self) -> None:
        """Stop threads; the process ends."""
