"""The real models on a voice that is computed: what the session's detector builds on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from duologue.hearing import parts
from duologue.hearing.mel import Floats
from duologue.hearing.voice_activity import FRAME, STATE_BYTES, Stream, VoiceDetector
from duologue.protocol.duplex import ServerVad
from duologue.session.core.detection import FRAME_MS, Detection, follow, rules_of
from duologue.session.detector import SpeechDetector, installed

pytestmark = pytest.mark.cascade

RATE = 16_000


def vowels(ms: int) -> Floats:
    """A voice: harmonics of a gliding pitch under two moving formants, four syllables a second."""
    t = np.arange(ms * RATE // 1000) / RATE
    pitch = 130 + 20 * np.sin(4.1 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    move = 0.5 + 0.5 * np.sin(12.0 * t)
    wave = np.zeros_like(t)
    for k in range(1, 28):
        hertz = k * pitch
        low = 1 / (1 + ((hertz - 350 - 400 * move) / 90) ** 2)
        high = 0.6 / (1 + ((hertz - 1900 + 1000 * move) / 120) ** 2)
        wave += (low + high) * np.sin(k * phase) / k**0.3
    syllables = np.clip(0.55 + 0.6 * np.sin(23.0 * t), 0.12, 1)
    return (0.25 * syllables * wave).clip(-0.99, 0.99).astype(np.float32)


def silence(ms: int) -> Floats:
    return np.zeros(ms * RATE // 1000, np.float32)


def detector() -> VoiceDetector:
    path = parts.VOICE_ACTIVITY.find()
    assert path is not None
    return VoiceDetector(path)


def boundaries(probabilities: Sequence[float]) -> list[float]:
    rules = rules_of(ServerVad(prefix_padding_ms=0), False)
    return [change.at_ms for change in follow(Detection(), rules, probabilities, FRAME_MS)]


def test_a_voice_is_a_turn_and_a_tone_is_none() -> None:
    """VAD-03: a pure tone never trips it."""
    model = detector()
    line = np.concatenate((silence(480), vowels(1280), silence(960)))
    start, stop = boundaries(model.advance([Stream()], [line])[0])
    assert abs(start - 480) <= 160
    assert 500 <= stop - 1760 <= 800
    tone = (0.3 * np.sin(2 * np.pi * 440 * np.arange(RATE * 2) / RATE)).astype(np.float32)
    assert boundaries(model.advance([Stream()], [np.concatenate((silence(480), tone))])[0]) == []


def test_an_exported_stream_goes_on_as_if_nothing_had_happened() -> None:
    model = detector()
    line = vowels(960)
    whole = model.advance([Stream()], [line])[0]
    first = Stream()
    told = model.advance([first], [line[: 10 * FRAME]])[0]
    exported = first.export()
    assert len(exported) == STATE_BYTES
    told += model.advance([Stream(exported)], [line[10 * FRAME :]])[0]
    assert np.allclose(told, whole, atol=1e-6)


async def test_many_sessions_share_one_model() -> None:
    """OVL-09: with what is installed, each hears what it hears alone."""
    shared = installed()
    assert isinstance(shared, SpeechDetector) and shared.judges_turns
    shared.start()
    loop = asyncio.get_running_loop()
    lines = [np.concatenate((silence(32 * n), vowels(960)))[: 30 * FRAME] for n in range(8)]
    told: list[asyncio.Future[tuple[float, ...]]] = []
    for line in lines:
        answer = loop.create_future()
        told.append(answer)
        shared.detect(b"", line.tobytes(), lambda state, p, error, answer=answer: answer.set_result(p))  # type: ignore[misc]
    together = await asyncio.gather(*told)
    judged = loop.create_future()
    shared.judge(lines[0].tobytes(), lambda finished, error: judged.set_result((finished, error)))
    finished, error = await judged
    assert error == "" and 0.0 <= finished <= 1.0
    shared.close()
    model = detector()
    for line, probabilities in zip(lines, together, strict=True):
        assert np.allclose(model.advance([Stream()], [line])[0], probabilities, atol=1e-5)


def test_a_path_that_leads_nowhere_is_named() -> None:
    with pytest.raises(OSError, match="nowhere.onnx"):
        installed("/nowhere.onnx")
