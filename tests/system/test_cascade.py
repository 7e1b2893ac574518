"""The voice agent as real processes: several people at once, each heard and answered for themselves."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from system.running import RunningSystem, duologue
from system.wire import PATIENCE_S

from duologue.client import DuplexClient, ResponseHandle
from duologue.client.presets import cascade
from duologue.models.cascade.parts import missing_parts
from duologue.models.cascade.voices import RENDERINGS, Rendering, say, silence, write_wav
from duologue.protocol.duplex import TranscriptionCompleted

pytestmark = [
    pytest.mark.system,
    pytest.mark.cascade,
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(missing_parts()), reason="the model packages of the cascade are not installed"),
]

#: Each with a word that is in no other.
COUNTRIES = ("france", "japan", "italy", "spain")
QUESTIONS = tuple((f"What is the capital of {country.title()}?", country) for country in COUNTRIES)
MARKS = set(COUNTRIES)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    with RunningSystem(tmp_path_factory.mktemp("cascade"), "--pipelines", "cascade") as running:
        yield running


def spoken(text: str, rendering: Rendering) -> bytes:
    """PCM16 at 16 kHz, with the silence in which an answer is due."""
    sound = say(text, rendering)
    return b"".join((part.clip(-1, 1) * 32767).astype("<i2").tobytes() for part in (sound, silence(6000)))


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z']+", text.lower()))


async def ask(url: str, question: str, rendering: Rendering) -> tuple[str, ResponseHandle, bytes]:
    """Speak at the pace of speech: what was heard, the answer, its sound."""
    sound = await asyncio.to_thread(spoken, question, rendering)
    async with DuplexClient(url, model="cascade", config=cascade()) as client, asyncio.timeout(2 * PATIENCE_S):
        hearing = asyncio.create_task(client.wait_for("conversation.item.input_audio_transcription.completed"))
        await asyncio.sleep(0)
        speaking = asyncio.create_task(client.stream_pcm(sound, chunk_ms=80))
        answer = await anext(client.responses())
        pieces = b"".join([piece async for piece in answer.audio()])
        await answer.wait()
        heard = await hearing
        speaking.cancel()
        assert isinstance(heard, TranscriptionCompleted)
        return heard.transcript, answer, pieces


async def test_four_people_at_once_are_each_heard_and_answered(system: RunningSystem) -> None:
    renderings = [RENDERINGS[n % len(RENDERINGS)] for n in range(len(QUESTIONS))]
    asked = zip(QUESTIONS, renderings, strict=True)
    results = await asyncio.gather(*(ask(system.url, question, rendering) for (question, _), rendering in asked))
    for (_, mark), (heard, answer, sound) in zip(QUESTIONS, results, strict=True):
        assert words(heard) & MARKS == {mark}, "one's own words and nobody else's"
        assert answer.status == "completed" and answer.transcript.strip()
        assert words(answer.transcript) & MARKS <= {mark}
        assert abs(len(sound) / 48 - answer.audio_ms) < 1
    sessions = {answer.response_id.rsplit("-", 2)[0] for _, answer, _ in results}
    assert len(sessions) == len(QUESTIONS), "every response names a session of its own"
    assert len({sound for _, _, sound in results}) == len(QUESTIONS)


async def test_a_typed_turn_is_answered_aloud(system: RunningSystem) -> None:
    async with DuplexClient(system.url, model="cascade", config=cascade()) as client, asyncio.timeout(PATIENCE_S):
        await client.send_text(QUESTIONS[2][0])
        await client.create_response()
        answer = await anext(client.responses())
        await answer.wait()
        assert answer.status == "completed" and answer.transcript.strip() and answer.audio_ms > 300


def test_talk_keeps_the_answer_as_a_wav(system: RunningSystem, tmp_path: Path) -> None:
    question, out = tmp_path / "question.wav", tmp_path / "answer.wav"
    write_wav(question, say(QUESTIONS[0][0]))
    done = duologue("talk", "--wav", str(question), "--out", str(out), "--url", system.url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "France" in done.stdout and "first sound after" in done.stdout
    assert out.stat().st_size > 24_000
