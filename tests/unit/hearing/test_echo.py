"""Faults of interruption that only the real detector can show: a loudspeaker that is heard by its own microphone.

The room is closed: what the session says is played, heard 150 ms later and much softer, and sent as input. Who plays
stops when it is told to, as clients do.
"""

from __future__ import annotations

import base64
from collections import deque
from typing import Any

import numpy as np
import pytest
from unit.hearing.test_models import RATE, detector, vowels
from unit.session.core.fake_models import FakeModel
from unit.session.core.session_world import World, pick

from duologue.hearing.mel import Floats
from duologue.hearing.voice_activity import FRAME, STATE_BYTES, Stream
from duologue.model.outputs import ModelOutput, encode_output
from duologue.protocol.duplex import AppendAudio
from duologue.session.core import Detect, Detected, StageOutput

pytestmark = [pytest.mark.cascade, pytest.mark.timeout(300)]

STARTED, STOPPED = "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped"
COMMITTED = "input_audio_buffer.committed"
STEP_MS, DELAY_MS, UNIT_MS = 40, 150, 80
STEP = RATE * STEP_MS // 1000
TWO_MINUTES_MS = 120_000
ANSWER_MS, QUESTION_MS, PAUSE_MS = 2960, 2000, 1000
SILENCE_MS = 500
"""What ends a turn by default."""


class Heard(World):
    """A world whose detector is the real one."""

    def __init__(self, **session: Any) -> None:
        self.silero = detector()
        super().__init__(FakeModel(), **session)

    def verdict(self, question: Detect) -> Detected:
        stream = Stream(question.state if len(question.state) == STATE_BYTES else b"")
        frames = np.frombuffer(question.sound, "<f4").reshape(-1, FRAME)
        told = tuple(self.silero.judge([stream], [frame])[0] for frame in frames)
        return Detected(question.ticket, stream.export(), told)


class EchoingRoom:
    """Somebody asks whenever it has been quiet for a second; the model answers at once, faster than it is played."""

    voice = vowels(24_000)

    def __init__(self, echo_db: float, **detection: Any) -> None:
        self.world = Heard(
            turn_detection={"type": "server_vad", **detection}, output_audio_format={"type": "pcm16", "rate": RATE}
        )
        self.gain = 10 ** (echo_db / 20)
        self.chance = np.random.default_rng(13)
        self.speaker: Floats = np.zeros(0, np.float32)
        self.question: Floats = np.zeros(0, np.float32)
        late = DELAY_MS // STEP_MS + 1
        self.air = deque([np.zeros(STEP, np.float32)] * late, late)
        self.read, self.quiet_ms, self.questions = 0, 0, 0
        for _ in range(TWO_MINUTES_MS // STEP_MS):
            self.step()

    def step(self) -> None:
        self.answer()
        self.obey()
        echo = self.air[0]
        self.speaker, played = self.speaker[STEP:], self.speaker[:STEP]
        self.air.append(np.pad(played, (0, STEP - len(played))))
        self.question, asked = self.question[STEP:], self.question[:STEP]
        self.ask(quiet=not len(played) and not len(asked))
        heard = echo * self.gain + np.pad(asked, (0, STEP - len(asked))) + self.chance.normal(0, 1e-4, STEP)
        self.world.send(AppendAudio(audio=(heard * 32767).clip(-32768, 32767).astype("<i2").tobytes()))
        self.world.advance(STEP_MS / 1000)

    def ask(self, *, quiet: bool) -> None:
        self.quiet_ms = self.quiet_ms + STEP_MS if quiet and not self.turn_is_open else 0
        if self.quiet_ms > PAUSE_MS:
            self.question, self.quiet_ms = self.piece(QUESTION_MS), 0
            self.questions += 1

    @property
    def turn_is_open(self) -> bool:
        events = self.world.events
        return len(pick(events, STARTED)) > len(pick(events, STOPPED)) or bool(self.world.waiting)

    def piece(self, ms: int) -> Floats:
        at = int(self.chance.integers(0, len(self.voice) - ms * RATE // 1000))
        return self.voice[at : at + ms * RATE // 1000]

    def answer(self) -> None:
        """The whole answer at the turn's last unit."""
        world = self.world
        while len(world.waiting) > 1:
            world.answer(ModelOutput(undecided=True))
        if not world.waiting:
            return
        unit, units = world.waiting.pop(), ANSWER_MS // UNIT_MS
        for n, pcm in enumerate(np.split((self.piece(ANSWER_MS) * 32767).astype("<i2"), units)):
            last = n == units - 1
            said = encode_output(ModelOutput(text="la ", audio_rate_hz=RATE, end_of_turn=last))
            world.fact(StageOutput(unit.fence, 1, -1, unit.unit, unit.turn_id, last, said, (pcm.tobytes(),)))

    def obey(self) -> None:
        """What was told since is played, or is played no more."""
        told, self.read = self.world.events[self.read :], len(self.world.events)
        for event in told:
            if event["type"] == "response.output_audio.delta":
                pcm: Floats = np.frombuffer(base64.b64decode(event["delta"]), "<i2").astype(np.float32)
                pcm /= 32768
                self.speaker = np.concatenate((self.speaker, pcm))
            elif event["type"] == "output_audio_buffer.cleared":
                self.speaker = self.speaker[:0]

    @property
    def interruptions(self) -> int:
        decided = pick(self.world.events, "overlap.decision")
        return sum(event["action"] == "barge_in" for event in decided)


def test_bar_13_an_echo_interrupts_no_faster_than_the_knob_allows() -> None:
    """At -20 dB a detector of speech hears speech. Each self-interruption costs its delay, the speech that is asked
    for and the silence that ends it; each answer is interrupted once at most; asking for more speech means fewer."""
    counts = []
    for knob_ms in (96, 1600):
        room = EchoingRoom(-20, min_speech_duration_ms=knob_ms)
        assert room.interruptions <= TWO_MINUTES_MS / (DELAY_MS + knob_ms + SILENCE_MS)
        assert room.interruptions <= room.world.response_count()
        counts.append(room.interruptions)
    assert counts == sorted(counts, reverse=True) and counts[-1] < counts[0] / 2


@pytest.mark.parametrize(
    ("echo_db", "detection"),
    [(-30, {"min_speech_duration_ms": 1000}), (-20, {"interrupt_response": False}), (-60, {})],
    ids=["softer and patient", "not to be interrupted", "cancelled by the client"],
)
def test_bar_13_an_echo_need_not_interrupt_at_all(echo_db: float, detection: dict[str, Any]) -> None:
    """And the user is heard all the while: a knob that stopped everything would pass the other test."""
    room = EchoingRoom(echo_db, **detection)
    assert room.interruptions == 0
    assert room.world.response_count() > 3 or not detection.get("interrupt_response", True)
    assert room.questions and len(pick(room.world.events, COMMITTED)) >= room.questions - 1


def sent(line: Floats) -> World:
    """A session in the middle of an answer hears this."""
    world = Heard(auto=True, turn_detection={"type": "server_vad"})
    world.say(160, loud=False)
    for at in range(0, len(line), STEP):
        world.send(AppendAudio(audio=(line[at : at + STEP] * 32767).astype("<i2").tobytes()))
        world.answer(ModelOutput(text="on ", audio_rate_hz=24_000)) if world.waiting else None
    return world


@pytest.mark.parametrize("kind", ["white", "brown", "clicks", "tone"])
def test_bar_07_noise_of_the_world_cancels_nothing(kind: str) -> None:
    """As loud as speech; VAD-03 has it that a pure tone is none."""
    chance, size = np.random.default_rng(7), 10 * RATE
    noise = chance.normal(0, 0.1, size)
    if kind == "brown":
        noise = np.cumsum(noise - np.mean(noise))
        noise *= 0.1 / np.std(noise)
    elif kind == "clicks":
        noise *= chance.random(size) < 0.002
    elif kind == "tone":
        noise = 0.3 * np.sin(2 * np.pi * 440 * np.arange(size) / RATE)
    world = sent(noise.astype(np.float32).clip(-0.99, 0.99))
    assert pick(world.events, STARTED, "response.done") == []
    assert world.machine.fence.epoch == 0


def test_bar_07_a_voice_over_the_answer_cancels_it_once() -> None:
    """The same room and the same detector: what is silent above is not deaf."""
    world = sent(vowels(2000))
    assert [event["response"]["status"] for event in pick(world.events, "response.done")][:1] == ["cancelled"]
    assert len(pick(world.events, STARTED)) == 1


def test_vad_03_a_voice_that_breaks_off_is_no_open_turn() -> None:
    """Nothing is sent any more in the middle of a word, not even silence."""
    world = Heard(turn_detection={"type": "server_vad"})
    for at in range(0, RATE, STEP):
        world.send(AppendAudio(audio=(vowels(1000)[at : at + STEP] * 32767).astype("<i2").tobytes()))
    assert len(pick(world.events, STARTED)) == 1 and pick(world.events, STOPPED) == []
    world.advance(5.0)
    assert len(pick(world.events, STOPPED)) == len(pick(world.events, COMMITTED)) == 1
