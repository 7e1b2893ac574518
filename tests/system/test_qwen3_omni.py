"""Qwen3-Omni's session and engine as real processes, before an OpenAI-compatible server that is this one's own: chat
completions of `loopback-talk`, which tell how long the user spoke."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from system.running import RunningSystem
from system.wire import Event, Wire, append, audio, breaks, level, transcript

from duologue.cli.temporary import free_port
from duologue.model.catalog import installed
from duologue.models.cascade.parts import missing_parts
from duologue.models.cascade.voices import say

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    home, port = tmp_path_factory.mktemp("omni"), free_port()
    pipeline = home / "omni.toml"
    text = installed()["qwen3-omni"].read_text()
    text = text.replace("http://127.0.0.1:8091/v1", f"http://127.0.0.1:{port}/v1")
    pipeline.write_text(text.replace("Qwen/Qwen3-Omni-30B-A3B-Instruct", "loopback-talk"))
    with RunningSystem(home / "home", "--pipelines", f"loopback-talk,{pipeline}", port=port) as running:
        yield running


def session(**more: object) -> Event:
    return {"model": "qwen3-omni", "input_audio_format": "pcm16", "sample_rate_hz": 16_000, **more}


async def speak(wire: Wire, units: int) -> None:
    for _ in range(units):
        await wire.send(append(level(6000)))
    await wire.send({"type": "input_audio_buffer.commit", "response_create": True})


async def test_a_committed_turn_is_answered_aloud_and_paced(system: RunningSystem) -> None:
    wire = await Wire.open(system.url, session(turn_detection=None))
    loop = asyncio.get_running_loop()
    await speak(wire, 10)
    await wire.until("response.output_audio.delta")
    began = loop.time()
    await wire.until("response.done")
    assert transcript(wire.log) == "you spoke for 800 ms"
    assert len(audio(wire.log)) == 25 * 80 * 48
    assert breaks(audio(wire.log), 440) == []
    assert loop.time() - began > 0.7, "2 s of sound, at most 1 s of it ahead of its time"
    assert (await wire.end())["type"] == "session.closed"


async def test_an_interruption_ends_the_answer_and_the_next_turn_is_answered(system: RunningSystem) -> None:
    wire = await Wire.open(system.url, session(turn_detection=None))
    await speak(wire, 10)
    await wire.until("response.output_audio.delta")
    await wire.send({"type": "response.cancel"})
    assert (await wire.until("response.done"))["response"]["status"] == "cancelled"
    seen = len(wire.log)
    await speak(wire, 5)
    assert (await wire.until("response.done"))["response"]["status"] == "completed"
    assert transcript(wire.log[seen:]) == "you spoke for 1200 ms", "what nobody heard an answer to is said again"
    await wire.end()


@pytest.mark.cascade
@pytest.mark.skipif(bool(missing_parts()), reason="there is no voice to speak with: the cascade's packages")
async def test_the_session_hears_when_a_turn_is_over_and_when_it_is_interrupted(system: RunningSystem) -> None:
    question = await asyncio.to_thread(say, "What is the capital of France, and of Japan?")
    said = (question.clip(-1, 1) * 32767).astype("<i2").tobytes()
    wire = await Wire.open(system.url, session())
    updated = await wire.until("session.updated")
    assert updated["session"]["turn_detection"]["silence_duration_ms"] == 800

    async def talk() -> None:
        """At the pace of speech, silence after it."""
        unit = len(level(0))
        sound = said + bytes(-len(said) % unit)
        for at in range(0, len(sound) + 40 * unit, unit):
            await wire.send(append(sound[at : at + unit] or level(0)))
            await asyncio.sleep(0.08)

    for ending in ("completed", "cancelled"):
        talking = asyncio.create_task(talk())
        await wire.until("input_audio_buffer.committed")
        await wire.until("response.output_audio.delta")
        if ending == "cancelled":
            talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)
            talking = asyncio.create_task(talk())  # into the answer
        done = await wire.until("response.done")
        assert done["response"]["status"] == ending
        talking.cancel()
        await asyncio.gather(talking, return_exceptions=True)
    assert done["response"]["status_details"]["reason"] == "turn_detected"
    await wire.cut()
