"""vLLM's stages as real processes, in two environments, on tiny checkpoints. Asked for with VLLM_SYSTEM=1: an engine
takes minutes to start on a busy machine, and 3 GB."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from system.running import RunningSystem, until
from system.wire import Event, Wire, append, audio, pick

from duologue.model.environments import environment_path

PYTHON = environment_path("vllm") / "bin" / "python"
BUILDER = Path(__file__).parents[1] / "models" / "vllm" / "tiny.py"
START_S = 400.0

pytestmark = [
    pytest.mark.system,
    pytest.mark.models,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not PYTHON.exists() or not os.environ.get("VLLM_SYSTEM"),
        reason="it is asked for with VLLM_SYSTEM=1, and wants the environment `vllm` (`make env NAME=vllm`)",
    ),
]


def serving(folder: Path, *options: str) -> Iterator[RunningSystem]:
    command = [str(PYTHON), str(BUILDER), str(folder), *options]
    pipeline = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    running = RunningSystem(folder / "home", "--pipelines", pipeline, "--ready-s", str(START_S))
    try:
        until(running.ready, "the system is ready", running.log, START_S)
        yield running
    finally:
        running.__exit__()


@pytest.fixture
def cascade(tmp_path: Path) -> Iterator[RunningSystem]:
    yield from serving(tmp_path, "--text")


@pytest.fixture
def hearing(tmp_path: Path) -> Iterator[RunningSystem]:
    yield from serving(tmp_path)


async def type_in(wire: Wire, text: str) -> Event:
    """One turn in writing; its `response.done`."""
    content = [{"type": "input_text", "text": text}]
    await wire.send(
        {"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": content}}
    )
    await wire.send({"type": "response.create"})
    return await wire.until("response.done")


async def test_the_cascade_thinks_in_another_environment(cascade: RunningSystem) -> None:
    wires = [await Wire.open(cascade.url, {"model": "cascade-vllm-tiny", "turn_detection": None}) for _ in range(2)]
    for question in ("Hello.", "And then?"):
        for done in await asyncio.gather(*(type_in(wire, question) for wire in wires)):
            assert done["response"]["status"] == "completed", done
            assert done["response"]["usage"]["input_token_details"]["text_tokens"] > 10
    for wire in wires:
        assert audio(wire.log) and not pick(wire.log, "error")
        assert (await wire.end())["type"] == "session.closed"


async def test_a_turn_model_hears_reads_and_writes(hearing: RunningSystem) -> None:
    session = {"model": "vllm-tiny", "turn_detection": None, "sample_rate_hz": 16_000, "input_audio_format": "pcm16"}
    wire = await Wire.open(hearing.url, session)
    noise = (np.random.default_rng(1).standard_normal(16_000) * 3000).astype("<i2").tobytes()
    usages = []
    for _ in range(2):
        await wire.send(append(noise))
        await wire.send({"type": "input_audio_buffer.commit", "response_create": True})
        done = await wire.until("response.done")
        assert done["response"]["status"] == "completed", done
        usages.append(done["response"]["usage"]["input_token_details"])
    assert usages[1]["cached_tokens"] > usages[0]["text_tokens"], "the first turn is not read again"
    done = await type_in(wire, "And in writing?")
    assert done["response"]["status"] == "completed" and not pick(wire.log, "error")
    assert (await wire.end())["type"] == "session.closed"
