"""Where a session's script stands in the first stage, and what it decides for each unit. SANS-I/O.

Rule 1. A unit of a newer epoch sets the playhead back to the position that the session holds: what was
        decided ahead of a cancellation has not happened.
Rule 2. In a turn-based session only units of a turn that is to be answered decide anything; the first listen
        decision, the end of a turn, the last of consecutive calls and a failed unit end the turn, and the
        rest of its input is undecided.
Rule 3. A decision takes one unit. Transcripts and satisfied waits take none, and can never loop for ever.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from duologue.models.loopback import script as steps
from duologue.models.loopback.heads import (
    AUTO,
    CALL,
    CALL_FIRST,
    CONTINUATION,
    DECIDE,
    FINAL,
    FORCE_LISTEN,
    LISTEN,
    NOTHING,
    RESULT,
    SPEAK,
    UNDECIDED,
    Decision,
    Position,
    StageConfig,
    UnitHead,
    encode,
)
from duologue.models.loopback.speech import looks_like_speech

ANSWER_UNITS: Final = 25
"""How long loopback-talk answers."""


class Playhead(ABC):
    """One session's place. Its fields are those of `Position`."""

    __slots__ = ("done", "ended", "epoch", "heard_ms", "run", "script", "spoken", "step", "turn")

    def __init__(self, config: StageConfig) -> None:
        self.script = config.script
        self.epoch = config.epoch
        self.move_to(config.at)

    def move_to(self, at: Position) -> None:
        self.step = at.step
        self.done = at.done
        self.run = at.run
        self.spoken = at.spoken
        self.heard_ms = at.heard_ms
        self.turn = at.turn
        self.ended = at.ended

    @property
    def at(self) -> Position:
        return Position(self.step, self.done, self.run, self.spoken, self.heard_ms, self.turn, self.ended)

    def decide(self, epoch: int, head: UnitHead, pcm: bytes) -> Decision:
        """What becomes of this unit. `pcm` is float32 at the model's input rate."""
        flags = head.flags
        if epoch > self.epoch:
            self.epoch = epoch
            self.move_to(head.at)
        if head.turn != self.turn:
            self.turn = head.turn
            self.ended = False
            self._begin(flags)
        if flags & AUTO:
            if flags & FORCE_LISTEN:
                return self._told(LISTEN)
        elif self.ended or flags & FORCE_LISTEN or not flags & DECIDE:
            return self._told(UNDECIDED)
        return self._decide(flags, pcm)

    def give_up(self) -> None:
        """This unit fails: the step that was being spoken is over, and so is the turn."""
        self.ended = True
        self._leave()

    @abstractmethod
    def _begin(self, flags: int) -> None:
        """A turn that is to be answered begins."""

    @abstractmethod
    def _decide(self, flags: int, pcm: bytes) -> Decision: ...

    @abstractmethod
    def _leave(self) -> None: ...

    def _told(self, kind: int, step: int = 0, index: int = 0, end_of_turn: bool = False) -> Decision:
        state = encode(self.at)
        spoken = self.spoken - 1 if kind == SPEAK else self.spoken
        return Decision(kind, step, index, spoken, end_of_turn, self.heard_ms, state)


class ScriptPlayhead(Playhead):
    """Follows `extra_body.loopback.script`."""

    __slots__ = ()

    def _begin(self, flags: int) -> None:
        """The script goes on where it is."""

    def _leave(self) -> None:
        if self.script[self.step].kind == steps.SPEAK:
            self._advance()

    def _advance(self) -> None:
        self.done = self.run = 0
        if self.step < len(self.script) - 1:
            self.step += 1

    def _decide(self, flags: int, pcm: bytes) -> Decision:
        for _ in range(len(self.script) + 1):
            at = self.step
            step = self.script[at]
            kind = step.kind
            if kind == steps.SPEAK:
                return self._speak(at, step)
            if kind == steps.LISTEN:
                self.done += 1
                if self.done >= step.units:
                    self._advance()
                break
            if kind == steps.CALL:
                return self._call(at, bool(flags & AUTO))
            if kind == steps.UNTIL_SPEECH and not looks_like_speech(flags, pcm):
                break
            if kind == steps.UNTIL_SILENCE:
                self.run = 0 if looks_like_speech(flags, pcm) else self.run + 1
                if self.run < step.units:
                    break
            self._advance()
        self.ended = True
        return self._told(LISTEN)

    def _speak(self, at: int, step: steps.Step) -> Decision:
        index = self.done
        self.done += 1
        self.spoken += 1
        end = False
        if self.done >= step.units:
            end = step.end_of_turn
            self._advance()
        self.ended = end
        return self._told(SPEAK, at, index, end)

    def _call(self, at: int, auto: bool) -> Decision:
        self._advance()
        follows = self.step != at and self.script[self.step].kind == steps.CALL
        end = not auto and not follows
        self.ended = end
        return self._told(CALL, at, 0, end)


class TalkPlayhead(Playhead):
    """Answers every committed turn. `step`: 1 while it answers."""

    __slots__ = ("unit_ms",)

    def __init__(self, config: StageConfig, unit_ms: int) -> None:
        super().__init__(config)
        self.unit_ms = unit_ms

    def _begin(self, flags: int) -> None:
        self.done = 0
        self.step = 0
        if flags & AUTO:
            self._take_turn(flags)  # what was said has been heard already
        else:
            self.run = 0

    def _leave(self) -> None:
        self.step = self.done = 0

    def _take_turn(self, flags: int) -> None:
        self.step = 1
        if not flags & RESULT:
            self.heard_ms = self.run
        self.run = 0

    def _decide(self, flags: int, pcm: bytes) -> Decision:
        if not flags & CONTINUATION and looks_like_speech(flags, pcm):
            self.run += self.unit_ms
        if self.step == 0 and not flags & AUTO:
            if not flags & (FINAL | CONTINUATION):
                return self._told(NOTHING)  # how long the user spoke is known at the end of the turn
            self._take_turn(flags)
        if self.step == 0:
            return self._told(LISTEN)
        if flags & CALL_FIRST and self.done == 0:
            self.step = 0
            self.ended = True
            return self._told(CALL, end_of_turn=not flags & AUTO)
        return self._speak()

    def _speak(self) -> Decision:
        index = self.done
        self.done += 1
        self.spoken += 1
        end = self.done >= ANSWER_UNITS
        if end:
            self.step = self.done = 0
        self.ended = end
        return self._told(SPEAK, 0, index, end)
