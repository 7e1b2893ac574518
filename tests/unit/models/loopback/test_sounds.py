"""What a spoken unit sounds like: an unbroken tone, the user's own voice, nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from unit.models.loopback.chain import follow, said, sound, voice

from duologue.models.loopback.tones import MAX_TONES, ToneBank
from duologue.protocol.duplex import RealtimeProtocolError

pytestmark = pytest.mark.unit


def off_tone(samples: npt.NDArray[np.float64], hz: float) -> float:
    """The part of the samples that is not one sine of this pitch."""
    angle = 2 * np.pi * hz * np.arange(len(samples)) / 24_000
    basis = np.stack([np.sin(angle), np.cos(angle)], axis=1)
    fit, *_ = np.linalg.lstsq(basis, samples, rcond=None)
    return float(np.std(samples - basis @ fit) / np.std(samples))


def spoken(units: int) -> list[dict[str, Any]]:
    return [{"speak": {"units": units}}]


@pytest.mark.parametrize("hz", [440, 440.3, 333.333, 1000.7, 0.5, 11_999])
@pytest.mark.parametrize("model", ["loopback", "loopback-1s"])
def test_a_tone_is_unbroken_over_units(hz: float, model: str) -> None:
    samples = sound(follow(*spoken(30), loopback={"audio": f"tone:{hz}"}, model=model).run(6))
    assert off_tone(samples, hz) < 0.001
    assert samples[0] == 0
    assert 0.29 < np.max(np.abs(samples)) <= 0.301


def test_a_tone_goes_on_over_pauses_and_answers() -> None:
    chain = follow({"speak": {"units": 2, "end_of_turn": False}}, {"listen": 3}, {"speak": {"units": 3}})
    assert off_tone(sound(chain.run(14)), 440) < 0.001


def test_a_lost_unit_is_heard() -> None:
    results = follow(*spoken(9)).run(6)
    assert off_tone(sound(results[:3] + results[4:]), 440) > 0.3


def test_a_unit_made_ahead_of_a_cancellation_leaves_no_gap() -> None:
    chain = follow({"speak": {"units": 9}}, {"speak": {"units": 9}}, {"listen": 1})
    results = chain.run(2)
    for _ in range(3):
        chain.ahead()
    chain.cancel()
    assert off_tone(sound(results + chain.run(3)), 440) < 0.001


def test_each_session_has_its_own_tone() -> None:
    bank = ToneBank(24_000)
    first = [bank.unit(440.3, n, 1920) for n in range(20)]
    for hz in range(100, 100 + 2 * MAX_TONES):
        bank.unit(hz, 0, 1920)
    assert [bank.unit(440.3, n, 1920) for n in range(20)] == first


@pytest.mark.parametrize("hz", [50.0, 440.0, 3000.0, 6500.0])
def test_an_echo_is_the_same_sound(hz: float) -> None:
    chain = follow(*spoken(99), loopback={"audio": "echo"})
    samples = sound([chain.feed(voice(80, hz=hz, at_ms=80 * n)) for n in range(10)])
    assert len(samples) == 10 * 1920
    assert off_tone(samples[2400:], hz) < 0.01
    assert abs(np.std(samples[2400:]) - 0.3 / np.sqrt(2)) < 0.005


def test_an_echo_is_late_by_a_millisecond() -> None:
    click = np.zeros(1280, dtype="<f4")
    click[100] = 0.5
    chain = follow(*spoken(9), loopback={"audio": "echo"})
    assert abs(int(np.argmax(np.abs(sound([chain.feed(click.tobytes())])))) - 100 * 1.5) <= 25


def test_an_echo_hears_what_came_before_it_spoke() -> None:
    whole = follow(*spoken(9), loopback={"audio": "echo"})
    late = follow({"listen": 2}, *spoken(9), loopback={"audio": "echo"})
    units = [voice(80, at_ms=80 * n) for n in range(5)]
    assert (
        sound([late.feed(pcm) for pcm in units]).tolist() == sound([whole.feed(pcm) for pcm in units])[3840:].tolist()
    )


def test_an_echo_that_is_too_loud_is_clipped() -> None:
    chain = follow(*spoken(9), loopback={"audio": "echo"})
    samples = sound([chain.feed(voice(80, level=1.5, at_ms=80 * n)) for n in range(3)])
    assert np.max(samples) > 0.999 and np.min(samples) < -0.999
    assert np.count_nonzero(np.abs(np.diff(samples)) > 0.5) == 0


def test_silence_is_silent() -> None:
    samples = sound(follow(*spoken(9), loopback={"audio": "silence"}).run(2))
    assert len(samples) == 3840 and not samples.any()


def test_a_faster_voice_says_the_same_in_less_time() -> None:
    chain = follow({"speak": {"units": 5, "text": "one two three four five"}}, {"listen": 1}, speed=1.25)
    results = chain.run(5)
    assert said(results) == "one two three four five"
    wave = sound(results)
    assert len(wave) == 5 * 80 * 24 / 1.25
    assert [mark.audio_ms for output, _ in results for mark in output.marks] == [64.0] * 5
    expected = 0.3 * np.sin(2 * np.pi * 440 * np.arange(len(wave)) / 24_000)
    assert np.allclose(wave, expected, atol=1e-3), "its phase does not break"


def test_an_update_of_the_speed_reaches_the_voice() -> None:
    chain = follow({"speak": {"units": 50}})
    assert len(chain.feed()[1]) == 2 * 80 * 24
    config = msgspec.structs.replace(chain.config, speed=0.5)
    chain.plugin.validate(config, chain.config)
    for engine, body in zip(chain.engines, chain.plugin.stage_configs(config, chain.state), strict=True):
        engine.control(chain.slot, "update", body)
    assert len(chain.feed()[1]) == 2 * 2 * 80 * 24


def test_an_echo_has_no_speed_of_its_own() -> None:
    with pytest.raises(RealtimeProtocolError) as refusal:
        follow(loopback={"audio": "echo"}, speed=1.5)
    assert (refusal.value.code, refusal.value.param) == ("unsupported", "session.speed")
    with pytest.raises(RealtimeProtocolError) as refusal:
        follow().plugin.check_options({"speed": 1.5})
    assert refusal.value.param == "response.speed"
