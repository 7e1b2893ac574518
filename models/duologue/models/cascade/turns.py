"""When somebody speaks, interrupts, and is done: the turn-taking of one session. Pure, media time only.

Rule 1. Speech while no answer is heard is announced at once. Speech over an answer is announced with the
        decision that it is an interruption; a back-channel leaves no trace.
Rule 2. The silence that ends a turn is unbroken, and shorter when the end-of-turn model and the words agree
        that it is finished. Neither decides alone: `hard_ms` ends any turn.
Rule 3. An interruption is decided once for an utterance; the utterance goes on and becomes the next turn.
Rule 4. A commit of the client ends the turn at once and always gets its answer, an empty one included.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from duologue.model.outputs import ModelOutput, UserTurn
from duologue.models.cascade.phrases import Kind, classify, sounds_finished
from duologue.models.cascade.settings import Turns
from duologue.models.cascade.wire import UNKNOWN, HeardUnit

TAIL_MS = 120
"""How much sound after the last voiced frame is recognised with it."""
OVERLAP_STEP_MS = 320
"""How often undecided speech over an answer is looked at again."""
SETTLE_MS = 12_000
"""Words before a pause this far into an utterance are final: what follows is recognised by itself."""
SURE_CONFIDENCE = -0.5
"""Short words over an answer that are less sure than this do not interrupt: a hum can look like any word."""
URGENT_CONFIDENCE = -1.0
"""The same for words that take the floor."""
SHORT_MS = 900
MAX_CLOSING = 4
"""Turns that may wait for their words; beyond it one is lost, by name (`recognition_overloaded`)."""
ONSET_MS = 600
"""How late the detector may tell of an onset."""


class Purpose(IntEnum):
    """Why sound is recognised; a smaller one goes first."""

    FINAL = 0
    OVERLAP = 1
    PAUSE = 2
    PARTIAL = 3


class Decode(msgspec.Struct, frozen=True, gc=False):
    """Recognise this span; answered by `TurnTaker.recognised` or, when there is no room, `skipped`."""

    ticket: int
    purpose: Purpose
    from_ms: int
    to_ms: int


class Recognised(msgspec.Struct, frozen=True, gc=False):
    text: str
    confidence: float = 0.0
    hum: bool = False
    """Nearly all of its energy is low: lips closed, no word."""


Act = Decode | ModelOutput


class Utterance(msgspec.Struct):
    """Speech from its onset to the end of the turn."""

    start_ms: int
    from_ms: int
    """Where the sound begins that is recognised next."""
    voice_end_ms: int
    overlap: bool = False
    """Over an answer, and not decided yet."""
    over: bool = False
    """An answer was open when voice was heard last."""
    announced: bool = False
    settled: str = ""
    """Words of an earlier part that is not recognised again."""
    heard: Recognised | None = None
    heard_to_ms: int = UNKNOWN
    """`voice_end_ms` when this was asked for at a pause; UNKNOWN: it was asked for amid speech."""
    pending: int = 0
    """The ticket of what is being recognised; 0: nothing."""
    pending_to_ms: int = UNKNOWN
    next_look_ms: int = 0
    commit: bool = False
    answer: bool = True

    @property
    def spoken_ms(self) -> int:
        return self.voice_end_ms - self.start_ms

    @property
    def text(self) -> str:
        words = "" if self.heard is None else self.heard.text
        return f"{self.settled} {words}".strip()


class TurnTaker:
    """The ears' judgement in one session. Every method returns what is to be done, in order."""

    def __init__(self, turns: Turns, partial_ms: int) -> None:
        self._turns = turns
        self._partial_ms = partial_ms
        self._ticket = 0
        self._now = HeardUnit(0, 0)
        self._open: Utterance | None = None
        self._closing: dict[int, Utterance] = {}
        self._last_end_ms = 0
        self._commit_from_ms = UNKNOWN
        self._commit_voiced = False

    @property
    def keep_from_ms(self) -> int:
        """Sound before this is not needed any more."""
        needed = [u.from_ms for u in self._closing.values()]
        if self._open is not None:
            needed.append(self._open.from_ms)
        if self._commit_from_ms != UNKNOWN:
            needed.append(self._commit_from_ms)
        return min([*needed, self._now.end_ms - self._turns.pre_roll_ms - ONSET_MS])

    def hear(self, unit: HeardUnit) -> list[Act]:
        """One unit of input, in order."""
        self._now = unit
        return self._hear_auto(unit) if unit.auto else self._hear_committed(unit)

    def recognised(self, ticket: int, result: Recognised) -> list[Act]:
        """The answer to a `Decode`; one that nobody waits for any more does nothing."""
        closing = self._closing.pop(ticket, None)
        if closing is not None:
            closing.heard = result
            return self._finish(closing)
        current = self._open
        if current is None or current.pending != ticket:
            return []
        current.heard, current.heard_to_ms = result, current.pending_to_ms
        current.pending, current.pending_to_ms = 0, UNKNOWN
        acts = self._judge(current)
        if result.text and not current.overlap:
            acts.append(ModelOutput(partial_transcript=current.text))
        return acts + self._maybe_end(current)

    def skipped(self, ticket: int) -> list[Act]:
        """There was no room to recognise this, or it failed."""
        closing = self._closing.pop(ticket, None)
        if closing is not None:
            return [_OVERLOADED, *self._finish(closing)]
        if self._open is not None and self._open.pending == ticket:
            self._open.pending, self._open.pending_to_ms = 0, UNKNOWN
        return []

    def idle(self, ticket: int) -> bool:
        """Nobody waits for this any more."""
        return ticket not in self._closing and (self._open is None or self._open.pending != ticket)

    # -- turn-based sessions: only a commit ends a turn -------------------------------------------------

    def _hear_committed(self, unit: HeardUnit) -> list[Act]:
        if self._commit_from_ms == UNKNOWN:
            self._commit_from_ms = unit.start_ms
        self._commit_from_ms = max(self._commit_from_ms, unit.end_ms - self._turns.max_utterance_ms)
        self._commit_voiced = self._commit_voiced or unit.speaking or unit.onset_ms != UNKNOWN
        if not unit.final:
            return []
        start, voiced = self._commit_from_ms, self._commit_voiced
        self._commit_from_ms, self._commit_voiced = UNKNOWN, False
        turn = Utterance(start, start, unit.end_ms, commit=True, answer=not unit.force_listen)
        return self._close(turn, unit.end_ms) if voiced else self._finish(turn)

    # -- auto sessions ------------------------------------------------------------------------------------

    def _hear_auto(self, unit: HeardUnit) -> list[Act]:
        acts: list[Act] = []
        current = self._open
        if current is None:
            if not unit.speaking and unit.onset_ms == UNKNOWN:
                return self._finish(_silent_commit(unit)) if unit.final else []
            current = self._open = self._begin(unit)
            if not current.overlap:
                acts.append(_announce(current))
        elif unit.onset_ms != UNKNOWN:
            _settle(current)
        current.voice_end_ms = max(current.voice_end_ms, unit.voice_end_ms)
        current.answer = not unit.force_listen
        if unit.speaking:
            if unit.response_open and not current.over and not current.overlap:
                # Their turn was taken for finished, and they went on: over the answer.
                current.overlap = True
                current.next_look_ms = current.voice_end_ms
            current.over = unit.response_open
        if unit.final:
            current.commit = True
            return acts + self._end(current)
        acts += self._look(current, unit)
        return acts + self._maybe_end(current)

    def _begin(self, unit: HeardUnit) -> Utterance:
        start = unit.onset_ms if unit.onset_ms != UNKNOWN else unit.start_ms
        look = self._turns.early_ms if unit.response_open else self._partial_ms
        return Utterance(
            start_ms=start,
            from_ms=max(self._last_end_ms, start - self._turns.pre_roll_ms, 0),
            voice_end_ms=max(start, unit.voice_end_ms),
            overlap=unit.response_open,
            over=unit.response_open,
            next_look_ms=start + look,
        )

    def _look(self, current: Utterance, unit: HeardUnit) -> list[Act]:
        """Ask the recogniser when there is reason to."""
        if unit.speaking:
            if current.overlap and current.heard is None and current.spoken_ms >= self._turns.limit_ms:
                return [_announce(current, self._interrupts())]
            looks = current.overlap or self._partial_ms > 0
            if not looks or current.pending or current.voice_end_ms < current.next_look_ms:
                return []
            current.next_look_ms = current.voice_end_ms + (OVERLAP_STEP_MS if current.overlap else self._partial_ms)
            purpose = Purpose.OVERLAP if current.overlap else Purpose.PARTIAL
            return [self._decode(current, purpose, unit.end_ms, UNKNOWN)]
        if current.voice_end_ms in (current.heard_to_ms, current.pending_to_ms):
            return []
        purpose = Purpose.OVERLAP if current.overlap else Purpose.PAUSE
        return [self._decode(current, purpose, current.voice_end_ms + TAIL_MS, current.voice_end_ms)]

    def _decode(self, utterance: Utterance, purpose: Purpose, to_ms: int, covers_ms: int) -> Decode:
        self._ticket += 1
        utterance.pending, utterance.pending_to_ms = self._ticket, covers_ms
        return Decode(self._ticket, purpose, utterance.from_ms, to_ms)

    def _interrupts(self) -> str:
        """The reason, if there is still something to interrupt."""
        return "turn_detected" if self._now.response_open else ""

    def _judge(self, current: Utterance) -> list[Act]:
        """Whether what was heard so far is an interruption."""
        whole = current.heard_to_ms == current.voice_end_ms and not self._now.speaking
        if current.overlap and current.heard and self._takes_the_floor(current.heard, current.spoken_ms, whole):
            return [_announce(current, self._interrupts())]
        return []

    def _takes_the_floor(self, heard: Recognised, spoken_ms: int, whole: bool) -> bool:
        if heard.hum and spoken_ms < SHORT_MS:
            return False
        kind = classify(heard.text)
        if kind is Kind.URGENT:
            return heard.confidence >= URGENT_CONFIDENCE or spoken_ms >= self._turns.sustained_ms
        if kind is not Kind.WORDS:
            return False
        return spoken_ms >= self._turns.sustained_ms or (whole and heard.confidence >= SURE_CONFIDENCE)

    # -- the end of a turn ----------------------------------------------------------------------------------

    def _maybe_end(self, current: Utterance) -> list[Act]:
        if current.spoken_ms >= self._turns.max_utterance_ms:
            return self._end(current)
        silence = self._now.end_ms - current.voice_end_ms
        return self._end(current) if not self._now.speaking and silence >= self._patience(current) else []

    def _patience(self, current: Utterance) -> int:
        """How long a silence must be to end this turn, ms."""
        if current.overlap or current.heard_to_ms != current.voice_end_ms:
            said = None
        else:
            said = sounds_finished(current.text)
        finished = None if self._now.finished == UNKNOWN else self._now.finished >= 0.5
        if said and finished:
            return self._turns.complete_ms
        if said is False and finished is False:
            return self._turns.hard_ms
        return min(self._turns.unsure_ms, self._turns.hard_ms)

    def _end(self, current: Utterance) -> list[Act]:
        self._open = None
        self._last_end_ms = current.voice_end_ms + TAIL_MS
        acts: list[Act] = [ModelOutput(speech_stopped_ms=current.voice_end_ms)] if current.announced else []
        if current.heard_to_ms == current.voice_end_ms and not self._now.speaking:
            return acts + self._finish(current)
        if current.pending and current.pending_to_ms == current.voice_end_ms:
            self._closing[current.pending] = current
            return acts
        return acts + self._close(current, min(self._now.end_ms, current.voice_end_ms + TAIL_MS))

    def _close(self, utterance: Utterance, to_ms: int) -> list[Act]:
        """It is over, and its words are still to be recognised."""
        if len(self._closing) >= MAX_CLOSING:
            return [_OVERLOADED, *self._finish(utterance)]
        decode = self._decode(utterance, Purpose.FINAL, to_ms, utterance.voice_end_ms)
        self._closing[decode.ticket] = utterance
        return [decode]

    def _finish(self, ended: Utterance) -> list[Act]:
        """Its words are known: is it a turn?"""
        text = ended.text
        turn = UserTurn(text, ended.start_ms, ended.voice_end_ms, answer=ended.answer and bool(text))
        if ended.commit:
            return [ModelOutput(user_turn=turn)]
        if classify(text) is Kind.EMPTY:
            return []
        if not ended.overlap:
            return [ModelOutput(user_turn=turn)]
        heard = ended.heard
        interrupts = heard is not None and self._takes_the_floor(heard, ended.spoken_ms, whole=True)
        if ended.over and not interrupts:
            return []
        known = ended.announced
        acts: list[Act] = [_announce(ended, self._interrupts() if ended.over else "")]
        if not known:
            acts.append(ModelOutput(speech_stopped_ms=ended.voice_end_ms))
        return [*(act for act in acts if act != ModelOutput()), ModelOutput(user_turn=turn)]


_OVERLOADED = ModelOutput(error_code="recognition_overloaded", error="speech could not be recognised in time")


def _announce(utterance: Utterance, interrupt: str = "") -> ModelOutput:
    """Speech has begun, as far as the client is concerned."""
    started = None if utterance.announced else utterance.start_ms
    utterance.announced, utterance.overlap = True, False
    return ModelOutput(interrupt=interrupt, speech_started_ms=started)


def _settle(utterance: Utterance) -> None:
    """Speech goes on after a pause: words before it are final, if there are many."""
    to = utterance.heard_to_ms
    if utterance.heard is None or to != utterance.voice_end_ms or to - utterance.from_ms < SETTLE_MS:
        return
    utterance.settled, utterance.from_ms = utterance.text, to + TAIL_MS // 2
    utterance.heard, utterance.heard_to_ms = None, UNKNOWN


def _silent_commit(unit: HeardUnit) -> Utterance:
    return Utterance(unit.end_ms, unit.end_ms, unit.end_ms, commit=True)
