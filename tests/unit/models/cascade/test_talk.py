"""Whole conversations: sound in, sound out, through all four engines and the models themselves."""

from __future__ import annotations

import re
from difflib import SequenceMatcher

import numpy as np
import pytest
import soxr
from unit.models.cascade.harness import Answer, Engines, Floats, Talk

from duologue.models.cascade import voices
from duologue.models.cascade.engines.whisper import Whisper
from duologue.models.cascade.parts import RECOGNITION, locate
from duologue.models.cascade.voices import Rendering, say, silence

pytestmark = pytest.mark.cascade


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", text.lower())


def share_heard(printed: str, recognised: str) -> float:
    matcher = SequenceMatcher(None, words(printed), words(recognised), autojunk=False)
    return sum(block.size for block in matcher.get_matching_blocks()) / len(words(printed))


def recognise(answer: Answer) -> str:
    whisper = Whisper(locate(RECOGNITION, ""), 1, -1.6, 0.8)
    sound: Floats = np.asarray(np.frombuffer(answer.pcm, "<i2") / 32768, np.float32)
    return whisper.transcribe(np.asarray(soxr.resample(sound, 24_000, 16_000), np.float32))


def ask(talk: Talk, sound: Floats) -> Answer:
    """Say it, and wait until the answer has been played."""
    before = len(talk.answers)
    talk.hear(np.concatenate((silence(480), sound)))
    talk.silence(4800, until=lambda: len(talk.answers) > before)
    talk.silence(60_000, until=lambda: not talk.playing)
    return talk.answers[before]


def begin_long_answer(talk: Talk) -> Answer:
    talk.type(voices.LONG_QUESTION)
    talk.silence(1600, until=lambda: talk.answers[-1].pcm)
    return talk.answers[-1]


def test_a_question_is_heard_and_answered(engines: Engines) -> None:
    talk = Talk(engines)
    answer = ask(talk, say(voices.QUESTION))
    (turn,) = talk.turns
    assert turn.user_turn is not None
    assert share_heard(voices.QUESTION, turn.user_turn.transcript) >= 0.8
    assert answer.done
    assert answer.failure is None
    assert share_heard(answer.text, recognise(answer)) >= 0.8
    assert [role_of(talk, i) for i in range(2)] == ["user", "assistant"]
    assert answer.marks[-1][0] == len(answer.text)
    assert 0 < answer.marks[-1][1] <= answer.ms
    talk.close()


def role_of(talk: Talk, i: int) -> object:
    return talk.items[i].role


@pytest.mark.parametrize("rendering", voices.renderings(), ids=lambda rendering: rendering.name)
def test_listening_is_not_interrupting_but_stop_is(engines: Engines, rendering: Rendering) -> None:
    talk = Talk(engines)
    answer = begin_long_answer(talk)
    for phrase in voices.BACK_CHANNELS:
        talk.silence(480)
        talk.hear(say(phrase, rendering))
        talk.silence(1280)
        assert talk.interrupts == [], phrase
        assert talk.turns == [], phrase
    assert talk.playing, "the answer was too short for this test"
    begun = talk.now_ms
    talk.hear(say(voices.INTERRUPTION, rendering))
    assert len(talk.interrupts) == 1
    talk.silence(1600)
    assert len(talk.interrupts) == 1
    print(f"{rendering.name}: interrupted {talk.interrupts[0] - begun} ms after the sound began")
    played = answer.cancelled_at_ms - answer.began_ms
    heard = talk.items[1].text
    assert 0 < len(heard) < len(answer.text)
    assert heard == answer.heard(played)
    (turn,) = talk.turns
    assert turn.user_turn is not None
    assert words(turn.user_turn.transcript) == ["stop", "wait"]
    talk.close()


def test_nothing_is_said_after_a_cancel(engines: Engines) -> None:
    talk = Talk(engines)
    begin_long_answer(talk)
    talk.cancel()
    talk.wait()
    count = len(talk.outputs)
    talk.silence(3200)
    assert len(talk.outputs) == count
    talk.type("What is two plus two?")
    talk.silence(30_000, until=lambda: talk.answers[-1].done)
    assert talk.answers[-1].text
    talk.close()


def test_a_cancel_in_the_middle_of_a_thought(engines: Engines) -> None:
    talk = Talk(engines)
    talk.type(voices.LONG_QUESTION)
    talk.cancel()
    talk.wait()
    assert [output for _, _, output in talk.outputs if output.audio_rate_hz] == []
    talk.close()


def test_what_was_heard_is_told_again_after_a_cancel(engines: Engines) -> None:
    talk = Talk(engines, answers=False)
    talk.hear(say(voices.QUESTION))
    talk.silence(1600, until=lambda: talk.turns)
    talk.state.turns_heard = 0  # as if the session had dropped it with the old epoch
    talk.cancel()
    talk.wait()
    first, again = talk.turns
    assert first == again
    talk.cancel()
    talk.wait()
    assert len(talk.turns) == 2  # the session has it: the plugin drops it
    talk.close()


def test_commits_in_a_turn_based_session(engines: Engines) -> None:
    talk = Talk(engines, auto=False, answers=False)
    talk.hear(np.concatenate((say("Hello there."), silence(2000))))
    assert talk.turns == []
    talk.hear(say(voices.QUESTION), commit=True)
    talk.hear(silence(640), commit=True)
    first, second = (turn.user_turn for turn in talk.turns)
    assert first is not None
    assert second is not None
    assert words(first.transcript) == words("Hello there " + voices.QUESTION)
    assert (second.transcript, second.answer) == ("", False)
    talk.close()


def test_a_commit_ends_a_turn_of_an_auto_session(engines: Engines) -> None:
    talk = Talk(engines, answers=False)
    talk.hear(say("What is two plus two?")[: 16_000 * 3 // 2], commit=True)
    (turn,) = talk.turns
    assert turn.user_turn is not None
    assert turn.user_turn.transcript
    talk.close()


def test_every_unit_is_confirmed_once(engines: Engines) -> None:
    talk = Talk(engines, answers=False)
    talk.hear(np.concatenate((say(voices.QUESTION), silence(1600))))
    assert talk.confirmed == list(range(1, talk.unit + 1))
    talk.close()


def test_sessions_at_once_do_not_mix(engines: Engines) -> None:
    talks = [Talk(engines) for _ in range(4)]
    questions = ["Where is the moon?", "What is the capital of France?", "How do I make tea?", "Who are you?"]
    sounds = [np.concatenate((silence(320 + 160 * i), say(q), silence(1600))) for i, q in enumerate(questions)]
    for at in range(0, max(map(len, sounds)), 2560):
        for talk, sound in zip(talks, sounds, strict=True):
            piece = np.zeros(2560, np.float32)
            rest = sound[at : at + 2560]
            piece[: len(rest)] = rest
            talk.hear(piece)
    for talk, question in zip(talks, questions, strict=True):
        talk.wait()
        assert [share_heard(question, o.user_turn.transcript) for o in talk.turns if o.user_turn] == [1.0]
        assert talk.answers[0].done
        assert talk.answers[0].text
        talk.close()
    assert len({talk.answers[0].text for talk in talks}) == 4


def test_noise_is_no_turn(engines: Engines) -> None:
    talk = Talk(engines, answers=False)
    noise = np.random.default_rng(1).normal(0, 0.05, 64_000).astype(np.float32)
    talk.hear(np.concatenate((noise, silence(1600))))
    assert talk.turns == []
    talk.close()


def test_figures(engines: Engines) -> None:
    """Real time, for the record: nothing here depends on how fast it was."""
    talk = Talk(engines, lockstep=False)
    talk.hear(np.concatenate((silence(480), say(voices.QUESTION))))
    talk.silence(8000, until=lambda: talk.answers and talk.answers[-1].first_audio_at)
    (turn,) = (o.user_turn for o in talk.turns)
    assert turn is not None
    answer = talk.answers[0]
    told_at = next(at for _, at, o in talk.outputs if o.user_turn is not None)
    silent_at = talk.due - (talk.now_ms - 160 - turn.end_ms) / 1000
    print(f"silent to transcript {1000 * (told_at - silent_at):.0f} ms")
    print(f"transcript to first audio {1000 * (answer.first_audio_at - told_at):.0f} ms")
    print(f"silent to first audio {1000 * (answer.first_audio_at - silent_at):.0f} ms")
    assert silent_at < told_at < answer.first_audio_at
    talk.cancel()
    talk.wait()
    talk.close()
