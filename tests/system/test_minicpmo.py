"""MiniCPM-o through gateway, shard and worker: units of a second, voices that are sent, a context that rolls over."""

from __future__ import annotations

import asyncio
import base64
import io
import subprocess
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from system.frames import LISTENED, Answer, answered, answers
from system.running import RunningSystem
from system.wire import PATIENCE_S, Event, Wire, append, pick, transcript

from duologue.model.environments import environment_path

PYTHON = environment_path("minicpmo") / "bin" / "python"
BUILDER = Path(__file__).parents[1] / "models" / "minicpmo_4_5" / "tiny.py"
UNITS = 12

pytestmark = [
    pytest.mark.system,
    pytest.mark.models,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not PYTHON.exists(), reason="the environment `minicpmo` is not here: `make env NAME=minicpmo`"),
]


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    """Without a voice of its own: sessions bring theirs."""
    folder = tmp_path_factory.mktemp("minicpmo")
    done = subprocess.run([PYTHON, BUILDER, folder, "--vision"], capture_output=True, text=True, check=True)
    pipeline = Path(done.stdout.splitlines()[-1])
    lines = [line for line in pipeline.read_text().splitlines() if not line.startswith("ref_audio")]
    replayed = ["rebuild_window_s = 2", *lines]  # with frames a second takes more of the small context
    pipeline.write_text("\n".join(replayed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))  # the vocoder of the tiny checkpoint
        with RunningSystem(tmp_path_factory.mktemp("system"), "--pipelines", str(pipeline)) as running:
            yield running


def voice(hz: float) -> str:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(16000)
        t = np.arange(16000) / 16000
        writer.writeframes((np.sin(2 * np.pi * hz * t) * 9000).astype("<i2").tobytes())
    return "data:audio/wav;base64," + base64.b64encode(file.getvalue()).decode()


@dataclass(frozen=True)
class Part:
    seed: int
    hz: float = 180.0
    units: int = UNITS
    piece: int = 16000
    """Samples of one append."""

    @property
    def object(self) -> Event:
        return {
            "model": "minicpmo_4_5",
            "ref_audio": voice(self.hz),
            "turn_detection": None,
            "extra_body": {"auto_response": True, "minicpmo_4_5": {"seed": self.seed}},
        }

    async def open(self, url: str) -> Wire:
        return await Wire.open(url, self.object)

    async def say(self, wire: Wire) -> None:
        noise = np.random.default_rng(self.seed)
        sound = noise.standard_normal(self.units * 16000) * np.repeat(noise.uniform(0.02, 0.3, self.units), 16000)
        pcm = (np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes()
        for at in range(0, len(pcm), self.piece * 2):
            await wire.send(append(pcm[at : at + self.piece * 2]))

    async def alone(self, url: str) -> list[Answer]:
        wire = await self.open(url)
        await self.say(wire)
        told = await answered(wire, self.units - 2)
        await wire.end()
        return told


async def test_sessions_side_by_side_equal_solo_runs(system: RunningSystem) -> None:
    """The last two units are left out: the second of two that end a turn may be told after the end of the log."""
    parts = [Part(1, 120.0), Part(2, 250.0, piece=7000), Part(3, 400.0, piece=32000)]
    wires = [await part.open(system.url) for part in parts]
    for part, wire in zip(parts, wires, strict=True):
        await part.say(wire)
    together = await asyncio.gather(*(answered(wire, UNITS - 2) for wire in wires))
    for wire in wires:
        assert (await wire.end())["type"] == "session.closed"
        assert not pick(wire.log, "error")
    for part, told in zip(parts, together, strict=True):
        assert told == await part.alone(system.url)
        assert told[0] == LISTENED, "force_listen_count"
        assert any(text for text, sound in told if sound) and len(told) == UNITS - 2
    created = wires[0].log[0]["session"]
    assert created["capabilities"]["chunk_period_ms"] == 1000
    assert created["capabilities"]["optional_input_modalities"] == ["video"]
    assert transcript(wires[0].log).strip()


async def test_who_is_to_be_heard_must_send_a_voice(system: RunningSystem) -> None:
    for sent, code in ((None, "ref_audio_required"), ("https://a.example/b.wav", "invalid_duplex_runtime_config")):
        wire = await Wire.dial(system.url, autostart="0")
        session = {**Part(1).object, "ref_audio": sent}
        await wire.send({"type": "session.update", "session": session})
        while (event := await wire.read())["type"] != "error":
            pass
        assert event["error"]["code"] == code and "ref_audio" in event["error"]["param"]
        await wire.cut()
    wire = await Wire.open(system.url, {**Part(1).object, "ref_audio": None, "modalities": ["text"]})
    await Part(1).say(wire)
    while not pick(wire.log, "response.output_text.delta", "response.output_audio_transcript.delta"):
        await wire.read()
    assert not pick(wire.log, "response.output_audio.delta"), "who only reads needs none"
    await wire.end()


async def test_a_session_outlives_its_context(system: RunningSystem) -> None:
    """A context of 1,024 tokens is full after about fifty seconds of this."""
    part = Part(5, units=80)
    wire = await part.open(system.url)
    await part.say(wire)
    async with asyncio.timeout(4 * PATIENCE_S):
        while len(answers(wire.log)) < 70:
            await wire.read()
    codes = {event["error"]["code"] for event in pick(wire.log, "error")}
    assert codes <= {"context_exhausted"}, "nothing ends but what was being said"
    assert (await wire.end())["type"] == "session.closed"
