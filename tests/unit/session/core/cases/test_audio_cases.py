"""Faults of sound that users reported elsewhere; AUD-04 is in `test_turn_detection`, AUD-08 in `unit/protocol`."""

from __future__ import annotations

import base64
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest
from unit.session.core.session_world import World, pick, sound

from duologue.fence import DeliveryId
from duologue.model.outputs import ModelOutput, encode_output
from duologue.protocol.duplex import (
    AppendAudio,
    AudioFormat,
    CancelInput,
    Commit,
    Dialect,
    InputConverter,
    OutputConverter,
    TruncateItem,
)
from duologue.session.core import Adopted, Attached, Detached, DuplexSessionMachine, StageOutput

pytestmark = pytest.mark.unit

TONE_HZ = 440
MODEL_RATE_HZ = 24_000


def tone(units: int, rate: int = MODEL_RATE_HZ) -> list[bytes]:
    """80 ms pieces of one tone, int16."""
    size = rate * 80 // 1000
    wave = 12_000 * np.sin(2 * np.pi * TONE_HZ * np.arange(units * size) / rate)
    return [wave[n * size : (n + 1) * size].astype("<i2").tobytes() for n in range(units)]


def speaks_a_tone(world: World, units: int) -> None:
    """The open response says so many units of it, and ends."""
    for n, pcm in enumerate(tone(units)):
        unit = world.waiting.pop(0)
        output = ModelOutput(text="la ", audio_rate_hz=MODEL_RATE_HZ, end_of_turn=n == units - 1)
        world.fact(StageOutput(unit.fence, 1, -1, unit.unit, unit.turn_id, True, encode_output(output), (pcm,)))


def sung(units: int = 6, dialect: Dialect = Dialect.openai, **session: Any) -> World:
    rate = 16_000 if dialect is Dialect.duplex else 24_000
    session = {"turn_detection": None, **session}
    world = World(dialect=dialect, **session)
    world.send(AppendAudio(audio=sound(80 * units, rate=rate), format="pcm16", sample_rate_hz=rate))
    world.send(Commit(response_create=True))
    speaks_a_tone(world, units)
    return world


def deltas(world: World) -> list[bytes]:
    found = pick(world.events, "response.output_audio.delta", "response.audio.delta")
    return [base64.b64decode(event["delta"]) for event in found]


def pitch_hz(samples: np.ndarray[Any, Any], rate: int) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples)), 1 << 16))
    return float(np.argmax(spectrum) * rate / (1 << 16))


# -- AUD-01 -----------------------------------------------------------------------------------------------

GA = [
    ({"type": "audio/pcm", "rate": 24_000}, AudioFormat("pcm16", 24_000)),
    ({"type": "audio/pcm", "rate": 16_000}, AudioFormat("pcm16", 16_000)),
    ({"type": "audio/pcmu"}, AudioFormat("g711_ulaw", 8_000)),
    ({"type": "audio/pcma"}, AudioFormat("g711_alaw", 8_000)),
]
FLAT = [("pcm16", GA[0][1]), ("g711_ulaw", GA[2][1]), ("g711_alaw", GA[3][1])]


def judged(world: World, wanted: AudioFormat) -> None:
    """The first delta sounds like the tone, read in the format that was asked for, and only so."""
    first = InputConverter(wanted, wanted.rate).convert(deltas(world)[0])
    assert abs(len(first) - wanted.rate * 0.08) < wanted.rate * 0.02
    assert abs(pitch_hz(first, wanted.rate) - TONE_HZ) < 12
    whole = InputConverter(wanted, wanted.rate).convert(b"".join(deltas(world)))
    assert 0.2 < float(np.sqrt(np.mean(whole**2))) < 0.32


@pytest.mark.parametrize(("asked", "wanted"), GA)
@pytest.mark.parametrize("dialect", [Dialect.openai, Dialect.duplex])
def test_aud_01_the_format_that_was_asked_for_is_heard(dialect: Dialect, asked: Any, wanted: AudioFormat) -> None:
    world = sung(dialect=dialect, audio={"output": {"format": asked}})
    judged(world, wanted)
    told = pick(world.events, "session.updated")[0]["session"]["audio"]["output"]
    if dialect is Dialect.duplex:
        assert (told["format"], told["sample_rate_hz"]) == (wanted.name, wanted.rate)
    else:
        echoed = {"type": asked["type"]} | ({} if wanted.name != "pcm16" else {"rate": wanted.rate})
        assert {key.replace("sample_rate_hz", "rate"): value for key, value in told["format"].items()} == echoed


@pytest.mark.parametrize(("asked", "wanted"), FLAT)
def test_aud_01_the_flat_spelling_of_the_beta_too(asked: str, wanted: AudioFormat) -> None:
    world = sung(dialect=Dialect.openai_beta, output_audio_format=asked)
    judged(world, wanted)
    assert pick(world.events, "session.updated")[0]["session"]["output_audio_format"] == asked


# -- AUD-03 -----------------------------------------------------------------------------------------------


def heard_hash(world: World, since: int) -> str:
    return blake2b(b"".join(frame for unit in world.submits[since:] for frame in unit.frames)).hexdigest()


@pytest.mark.parametrize(
    "source", [AudioFormat("pcm_f32le", 16_000), AudioFormat("g711_ulaw", 8_000)], ids=["f32le", "ulaw"]
)
@pytest.mark.parametrize("move", ["resume", "process", "heir"])
def test_aud_03_the_input_format_survives(source: AudioFormat, move: str) -> None:
    """The same bytes, sent again without a format after a dropped socket, reach the worker as the same samples."""
    x = OutputConverter(16_000, source).convert(np.frombuffer(sound(320), "<i2")) + b""
    x += bytes(source.size_of(320) - len(x)) if len(x) < source.size_of(320) else b""
    format_ = {"type": source.name, "rate": source.rate}
    world = World(auto=True, input_audio_format=format_)
    world.send(AppendAudio(audio=x))
    world.send(CancelInput())  # the stream begins anew, so that what the filter holds does not count
    first = heard_hash(world, 0)
    world.fact(Detached(0))
    if move == "process":
        world.restart()
    if move == "heir":
        world.advance(1.2)
        body, n = world.checkpoints[-1].body, world.last_n
        world.machine = DuplexSessionMachine.restore(body, plugin=world.plugin, owner=2)
        world.last_n, world.fences = 0, []
        world.bodies.clear()
        world.fact(Adopted(2, DeliveryId(1, n)))
    world.fact(Attached(1))
    world.waiting.clear()
    since = len(world.submits)
    world.send(AppendAudio(audio=x))
    assert heard_hash(world, since) == first
    assert len(world.submits) - since == 4


# -- AUD-05 -----------------------------------------------------------------------------------------------

ALL_FORMATS = [
    AudioFormat("pcm16", 24_000),
    AudioFormat("pcm16", 8_000),
    AudioFormat("pcm16", 44_100),
    AudioFormat("pcm_f32le", 16_000),
    AudioFormat("g711_ulaw", 8_000),
    AudioFormat("g711_alaw", 8_000),
]


@pytest.mark.parametrize("target", ALL_FORMATS)
@pytest.mark.parametrize("units", [1, 7, 30])
def test_aud_05_client_and_server_agree_on_the_duration(target: AudioFormat, units: int) -> None:
    world = sung(units, Dialect.duplex, output_audio_format={"type": target.name, "rate": target.rate})
    item = pick(world.events, "response.output_item.done")[-1]["item"]
    counted = sum(map(len, deltas(world))) // target.width
    assert counted == target.rate * 80 * units // 1000, "to the sample"
    assert item["content"][0]["audio_duration_ms"] == round(counted / target.rate * 1000) == 80 * units


@pytest.mark.parametrize("beyond_ms", [0, 1, 85, 10_000])
@pytest.mark.parametrize("dialect", list(Dialect))
def test_aud_05_a_truncate_beyond_the_end_is_clamped_and_answered(dialect: Dialect, beyond_ms: int) -> None:
    world = sung(7, dialect)
    item = pick(world.events, "response.output_item.done")[-1]["item"]
    seen = world.send(TruncateItem(item_id=item["id"], audio_end_ms=560 + beyond_ms))
    assert pick(seen, "error") == []
    assert pick(seen, "conversation.item.truncated")[0]["audio_end_ms"] == 560
