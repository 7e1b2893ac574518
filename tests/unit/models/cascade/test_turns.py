"""Turn-taking on a made-up microphone: units with what the detector says, words from a script."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from duologue.model.outputs import ModelOutput, UserTurn
from duologue.models.cascade.settings import Turns
from duologue.models.cascade.turns import (
    MAX_CLOSING,
    SETTLE_MS,
    Act,
    Decode,
    Purpose,
    Recognised,
    TurnTaker,
)
from duologue.models.cascade.wire import UNKNOWN, HeardUnit

pytestmark = pytest.mark.unit
UNIT = 160


class Mic:
    """Feeds a turn-taker. `words`: what the recogniser would say now; None leaves questions unanswered."""

    def __init__(self, *, auto: bool = True, partial_ms: int = 800, turns: Turns | None = None) -> None:
        self.taker = TurnTaker(turns or Turns(), partial_ms)
        self.auto = auto
        self.now = 0
        self.voice_end = UNKNOWN
        self.speaking = False
        self.words: str | None = "Hello there."
        self.confidence = -0.2
        self.hum = False
        self.finished: float = UNKNOWN
        self.open = False
        self.told: list[tuple[int, ModelOutput]] = []
        self.asked: list[Decode] = []
        self.unanswered: list[Decode] = []

    def speech(self, ms: int, *, final: bool = False) -> Mic:
        for i in range(ms // UNIT):
            onset = UNKNOWN if self.speaking else self.now
            self.speaking, self.voice_end = True, self.now + UNIT
            self._unit(onset, final and (i + 1) * UNIT >= ms)
        return self

    def quiet(self, ms: int, *, final: bool = False) -> Mic:
        for i in range(ms // UNIT):
            self.speaking = False
            self._unit(UNKNOWN, final and (i + 1) * UNIT >= ms)
        return self

    def answer(self, text: str) -> Mic:
        """The recogniser answers the oldest question that it left open."""
        ask = self.unanswered.pop(0)
        self._do(self.taker.recognised(ask.ticket, Recognised(text, self.confidence, self.hum)))
        return self

    def skip(self) -> Mic:
        self._do(self.taker.skipped(self.unanswered.pop(0).ticket))
        return self

    def _unit(self, onset: int, final: bool) -> None:
        start, self.now = self.now, self.now + UNIT
        finished = UNKNOWN if self.speaking else self.finished
        unit = HeardUnit(start, self.now, self.speaking, onset, self.voice_end, finished, self.auto, final, self.open)
        self._do(self.taker.hear(unit))

    def _do(self, acts: Sequence[Act]) -> None:
        for act in acts:
            if isinstance(act, ModelOutput):
                self.told.append((self.now, act))
                continue
            self.asked.append(act)
            if self.words is None:
                self.unanswered.append(act)
            else:
                self._do(self.taker.recognised(act.ticket, Recognised(self.words, self.confidence, self.hum)))

    @property
    def turns(self) -> list[UserTurn]:
        return [output.user_turn for _, output in self.told if output.user_turn is not None]

    @property
    def interrupts(self) -> list[int]:
        return [at for at, output in self.told if output.interrupt]

    @property
    def started(self) -> list[int]:
        return [o.speech_started_ms for _, o in self.told if o.speech_started_ms is not None]

    @property
    def stopped(self) -> list[int]:
        return [o.speech_stopped_ms for _, o in self.told if o.speech_stopped_ms is not None]


def test_a_turn() -> None:
    mic = Mic().quiet(480).speech(960).quiet(1600)
    assert mic.started == [480]
    assert mic.stopped == [1440]
    assert mic.turns == [UserTurn("Hello there.", 480, 1440)]


def test_silence_says_nothing() -> None:
    mic = Mic().quiet(3200)
    assert mic.told == []
    assert mic.asked == []


@pytest.mark.parametrize(
    ("words", "finished", "silence"),
    [
        ("Hello there.", 0.9, 320),
        ("Hello there.", 0.1, 640),
        ("Hello there.", UNKNOWN, 640),
        ("I went to", 0.9, 640),
        ("I went to", 0.1, 1120),
    ],
)
def test_how_long_a_silence_ends_a_turn(words: str, finished: float, silence: int) -> None:
    mic = Mic()
    mic.words, mic.finished = words, finished
    mic.speech(960).quiet(1600)
    at = next(at for at, output in mic.told if output.user_turn is not None)
    assert at - 960 == silence


def test_silence_must_be_unbroken() -> None:
    mic = Mic()
    mic.words, mic.finished = "I went to", 0.1
    for _ in range(5):
        mic.speech(320).quiet(480)
    assert mic.turns == []
    mic.quiet(800)
    assert [turn.end_ms for turn in mic.turns] == [3520]
    assert mic.started == [0]


def test_words_that_come_late_end_the_turn_when_they_come() -> None:
    mic = Mic()
    mic.words = None
    mic.speech(960).quiet(1120)
    assert mic.stopped == [960]
    assert mic.turns == []
    mic.quiet(480)
    while mic.unanswered:
        mic.answer("Hello there.")
    assert [turn.transcript for turn in mic.turns] == ["Hello there."]


def test_noise_is_no_turn() -> None:
    mic = Mic()
    mic.words = ""
    mic.speech(480).quiet(1600)
    assert mic.turns == []
    assert mic.started == [0]
    assert mic.stopped == [480]


def test_a_back_channel_alone_is_a_turn() -> None:
    mic = Mic()
    mic.words = "Okay."
    mic.speech(480).quiet(1600)
    assert [turn.transcript for turn in mic.turns] == ["Okay."]


class TestOverAnAnswer:
    @pytest.mark.parametrize("ms", [320, 640, 960, 1920])
    def test_a_back_channel_leaves_no_trace(self, ms: int) -> None:
        mic = Mic()
        mic.open, mic.words = True, "Mm-hmm."
        mic.speech(ms).quiet(1600)
        assert mic.told == []

    def test_a_hum_is_none_whatever_was_written(self) -> None:
        mic = Mic()
        mic.open, mic.words, mic.hum = True, "Mama.", True
        mic.speech(480).quiet(1600)
        assert mic.told == []

    def test_a_long_hum_does_not_hide_words(self) -> None:
        mic = Mic()
        mic.open, mic.words, mic.hum = True, "We knew you.", True
        mic.speech(1120).quiet(1600)
        assert len(mic.interrupts) == 1

    def test_stop_interrupts_once_and_becomes_the_next_turn(self) -> None:
        mic = Mic()
        mic.open, mic.words = True, "Stop. Wait."
        mic.quiet(800).speech(800)
        assert len(mic.interrupts) == 1
        assert mic.interrupts[0] - 800 <= 640
        mic.open = False
        mic.quiet(1600)
        assert len(mic.interrupts) == 1
        assert mic.started == [800]
        assert mic.turns == [UserTurn("Stop. Wait.", 800, 1600)]

    def test_a_short_stop_interrupts_by_its_words(self) -> None:
        mic = Mic()
        mic.open, mic.words = True, "Stop."
        mic.speech(320).quiet(320)
        assert len(mic.interrupts) == 1

    def test_the_sound_before_the_onset_is_kept(self) -> None:
        mic = Mic()
        mic.open, mic.words = True, "Stop."
        mic.quiet(800).speech(480)
        assert mic.asked[0].from_ms == 800 - Turns().pre_roll_ms

    def test_words_need_time_or_a_pause(self) -> None:
        mic = Mic()
        mic.open, mic.words = True, "My hat"
        mic.speech(480)
        assert mic.interrupts == []
        mic.speech(480)
        assert len(mic.interrupts) == 1

    def test_short_unsure_words_do_not_interrupt(self) -> None:
        mic = Mic()
        mic.open, mic.words, mic.confidence = True, "It has.", -0.9
        mic.speech(480).quiet(1600)
        assert mic.told == []

    def test_a_busy_recogniser_does_not_make_it_deaf(self) -> None:
        mic = Mic()
        mic.open, mic.words = True, None
        mic.speech(1440)
        assert mic.interrupts == []
        mic.speech(320)
        assert len(mic.interrupts) == 1

    def test_noise_does_not_interrupt(self) -> None:
        mic = Mic()
        mic.open, mic.words = True, ""
        mic.speech(3200).quiet(1600)
        assert mic.told == []

    def test_a_back_channel_that_goes_on_as_words(self) -> None:
        mic = Mic()
        mic.open, mic.words = True, "Okay."
        mic.speech(640)
        assert mic.interrupts == []
        mic.words = "Okay, so tell me more."
        mic.speech(640)
        assert len(mic.interrupts) == 1

    def test_the_answer_ends_before_the_words_are_known(self) -> None:
        mic = Mic()
        mic.open, mic.words = True, None
        mic.speech(320)
        mic.open = False
        mic.speech(160).quiet(640)
        while mic.unanswered:
            mic.answer("Yes.")
        assert mic.interrupts == []
        assert [turn.transcript for turn in mic.turns] == ["Yes."]
        assert mic.started == [0]
        assert mic.stopped == [480]

    def test_going_on_after_the_turn_was_taken_for_finished(self) -> None:
        mic = Mic()
        mic.finished = 0.9
        mic.speech(640).quiet(320)
        assert len(mic.turns) == 1
        mic.speech(160)
        mic.open = True
        mic.words = "And tell me about London."
        mic.speech(960)
        assert len(mic.interrupts) == 1
        mic.open = False
        mic.quiet(1600)
        assert [turn.transcript for turn in mic.turns] == ["Hello there.", "And tell me about London."]
        assert len(mic.started) == len(mic.stopped) == 2


class TestCommit:
    def test_ends_the_turn_at_once(self) -> None:
        mic = Mic().speech(960, final=True)
        assert mic.turns == [UserTurn("Hello there.", 0, 960)]
        assert mic.stopped == [960]

    def test_of_silence_gets_its_empty_turn(self) -> None:
        mic = Mic().quiet(480, final=True)
        assert mic.turns == [UserTurn("", 480, 480, answer=False)]

    @pytest.mark.parametrize("voiced", [True, False])
    def test_turn_based(self, voiced: bool) -> None:
        mic = Mic(auto=False)
        mic.speech(960) if voiced else mic.quiet(960)
        mic.quiet(3200)
        assert mic.told == []
        mic.quiet(160, final=True)
        text = "Hello there." if voiced else ""
        assert mic.turns == [UserTurn(text, 0, 4320, answer=voiced)]

    def test_turn_based_turns_do_not_share_sound(self) -> None:
        mic = Mic(auto=False).speech(960, final=True).speech(640, final=True)
        assert [(ask.from_ms, ask.to_ms) for ask in mic.asked] == [(0, 960), (960, 1600)]
        assert all(ask.purpose is Purpose.FINAL for ask in mic.asked)


def test_partial_words_are_told_while_somebody_speaks() -> None:
    mic = Mic().speech(2400)
    assert [output.partial_transcript for _, output in mic.told if output.partial_transcript] == ["Hello there."] * 3


def test_no_partial_words_if_nobody_wants_them() -> None:
    assert Mic(partial_ms=0).speech(2400).asked == []


def test_long_speech_is_not_recognised_again_from_the_start() -> None:
    mic = Mic(partial_ms=0)
    mic.words, mic.finished = "One and", 0.1
    mic.speech(SETTLE_MS + 480).quiet(320)
    mic.words = "two."
    mic.speech(960).quiet(1600)
    assert mic.asked[-1].from_ms > SETTLE_MS
    assert [turn.transcript for turn in mic.turns] == ["One and two."]


def test_nobody_speaks_for_ever() -> None:
    mic = Mic(turns=Turns(max_utterance_ms=3200), partial_ms=0).speech(6400)
    assert [(turn.start_ms, turn.end_ms) for turn in mic.turns] == [(0, 3200), (3200, 6400)]


def test_a_turn_that_cannot_be_recognised_is_told_of() -> None:
    mic = Mic()
    mic.words = None
    mic.speech(160, final=True).skip()
    assert [output.error_code for _, output in mic.told if output.error_code] == ["recognition_overloaded"]
    assert [turn.transcript for turn in mic.turns] == [""]


def test_turns_that_wait_for_words_are_bounded() -> None:
    mic = Mic()
    mic.words = None
    for _ in range(MAX_CLOSING + 1):
        mic.speech(160, final=True)
    assert len(mic.unanswered) == MAX_CLOSING
    assert [output.error_code for _, output in mic.told if output.error_code] == ["recognition_overloaded"]


def test_a_question_that_was_turned_away_is_asked_again() -> None:
    mic = Mic()
    mic.words = None
    mic.speech(480).quiet(160)
    assert len(mic.unanswered) == 1
    mic.skip().quiet(160)
    assert len(mic.unanswered) == 1


def test_sound_is_forgotten() -> None:
    mic = Mic().quiet(16_000)
    assert mic.taker.keep_from_ms > 14_000
    mic.speech(1600)
    assert mic.taker.keep_from_ms == 16_000 - Turns().pre_roll_ms
    mic.quiet(3200)
    assert mic.taker.keep_from_ms > 18_000
