"""Sessions of the frame-locked models over the wire: sound in, and what each unit was answered, one by one."""

from __future__ import annotations

import asyncio
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from system.wire import PATIENCE_S, Event, Wire, append, audio, pick

from duologue.model.environments import environment_path

RATE_HZ, FRAME = 24_000, 1920
BUILDER = Path(__file__).parents[1] / "models" / "moshi" / "tiny.py"


def python_of_environment() -> Path:
    return environment_path("moshi") / "bin" / "python"


def write_checkpoint(folder: Path, *options: str) -> Path:
    """A tiny checkpoint, made in the environment of the model; its pipeline file."""
    command = [str(python_of_environment()), str(BUILDER), str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Path(done.stdout.splitlines()[-1])


@dataclass(frozen=True)
class Part:
    """One session: what it says, how it is configured, in which pieces it sends."""

    model: str
    seed: int
    frames: int
    piece: int = FRAME
    """Samples of one append."""
    temperature: float = 0.0
    session: tuple[tuple[str, Any], ...] = ()

    @property
    def pcm(self) -> bytes:
        noise = np.random.default_rng(self.seed)
        level = np.repeat(noise.uniform(0.02, 0.3, self.frames), FRAME)
        sound = noise.standard_normal(self.frames * FRAME) * level
        return (np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes()

    @property
    def object(self) -> Event:
        return {
            "model": self.model,
            "modalities": ["audio", "text"],
            "input_audio_format": "pcm16",
            "output_audio_format": "pcm16",
            "sample_rate_hz": RATE_HZ,
            "audio": {"input": {"sample_rate_hz": RATE_HZ}, "output": {"sample_rate_hz": RATE_HZ}},
            "turn_detection": None,
            "temperature": self.temperature,
            "extra_body": {"auto_response": True, self.model: {"seed": self.seed}},
            **dict(self.session),
        }

    async def open(self, url: str) -> Wire:
        return await Wire.open(url, self.object)

    async def open_when_free(self, url: str) -> Wire:
        """As soon as a slot is free again: a session that has ended gives its slot back a moment later."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                wire = await Wire.dial(url, autostart="0")
                await wire.send({"type": "session.update", "session": self.object})
                while (event := await wire.read())["type"] not in ("session.created", "error"):
                    pass
                if event["type"] == "session.created":
                    return wire
                assert event["error"]["code"] == "resource_exhausted", event
                await wire.cut()
                await asyncio.sleep(event["error"]["retry_after_ms"] / 1000)

    async def say(self, wire: Wire, start: int = 0, end: int | None = None) -> None:
        """Send the sound of these frames, all at once."""
        pcm = self.pcm[start * FRAME * 2 : (self.frames if end is None else end) * FRAME * 2]
        for at in range(0, len(pcm), self.piece * 2):
            await wire.send(append(pcm[at : at + self.piece * 2]))


Answer = tuple[str, bytes]
LISTENED: Answer = ("listened", b"")


def answers(log: list[Event]) -> list[Answer]:
    """What each unit was answered: that the model listens, or its sound with the text that came with it."""
    told: list[Answer] = []
    for event in log:
        if event["type"] == "response.listen":
            told.append(LISTENED)
        elif event["type"] == "response.output_audio.delta":
            told.append(("", audio([event])))
        elif event["type"] == "response.output_audio_transcript.delta" and event["delta"]:
            text, sound = told[-1]
            told[-1] = (text + event["delta"], sound)
    return told


async def answered(wire: Wire, count: int) -> list[Answer]:
    """Read until so many units are answered, and what came with the last of them is there."""
    while len(answers(wire.log)) <= count and not _complete(wire, count):
        await wire.read()
    return answers(wire.log)[:count]


def _complete(wire: Wire, count: int) -> bool:
    told = answers(wire.log)
    if len(told) < count:
        return False
    last = pick(wire.log, "response.listen", "response.output_audio.delta", "response.output_audio_transcript.delta")[
        -1
    ]
    return bool(last["type"] != "response.output_audio.delta")
