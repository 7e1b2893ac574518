"""Names, rates and codecs."""

from __future__ import annotations

import io
import warnings
import wave
from typing import Any

import numpy as np
import pytest

from duologue.protocol import duplex as p
from duologue.protocol.realtime.audio.g711 import g711_decode, g711_encode
from duologue.protocol.realtime.formats import check_rate, read_format

pytestmark = pytest.mark.unit

EVERY_INT16 = np.arange(-32768, 32768, dtype=np.int16)


@pytest.mark.parametrize(
    ("spellings", "name"),
    [
        ("pcm16 pcm PCM16 pcm_s16le s16le audio/pcm audio/pcm16", "pcm16"),
        ("pcm_f32le f32le audio/pcm_f32le", "pcm_f32le"),
        ("g711_ulaw ulaw mulaw G711-ULAW audio/g711_ulaw audio/pcmu", "g711_ulaw"),
        ("g711_alaw alaw g711-alaw audio/g711_alaw audio/PCMA", "g711_alaw"),
    ],
)
def test_every_spelling_is_folded(spellings: str, name: str) -> None:
    for spelling in spellings.split():
        assert p.fold_format(spelling) == p.fold_format(spelling, output=True) == name


def test_wav_is_for_output_only() -> None:
    assert p.fold_format("audio/wav", output=True) == "wav"
    for spelling, output in (("wav", False), ("mp3", True), ("", False)):
        with pytest.raises(p.RealtimeProtocolError) as refused:
            p.fold_format(spelling, output=output)
        assert (refused.value.code, refused.value.param) == ("unsupported_audio_format", "format")


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("pcm16", ("pcm16", None)),
        ({"type": "audio/pcm", "rate": 24_000}, ("pcm16", 24_000)),
        ({"format": "ulaw", "sample_rate_hz": 8000}, ("g711_ulaw", 8000)),
        ({"type": "audio/pcma", "sample_rate": 16_000.0}, ("g711_alaw", 16_000)),
    ],
)
def test_a_format_object_is_read(value: Any, read: tuple[str, int | None]) -> None:
    assert read_format(value) == read


@pytest.mark.parametrize("rate", [7999, 192_001, True, "8000", 8000.5, None])
def test_a_rate_out_of_bounds_is_refused(rate: Any) -> None:
    with pytest.raises(p.RealtimeProtocolError) as refused:
        check_rate(rate)
    assert (refused.value.code, refused.value.param) == ("bad_event", "sample_rate_hz")


def test_duration_arithmetic() -> None:
    assert p.AudioFormat("pcm16", 16_000).duration_ms(2560) == 80
    assert p.AudioFormat("g711_ulaw", 8000).duration_ms(640) == 80
    assert p.AudioFormat("pcm_f32le", 44_100).size_of(80) == 3528 * 4
    assert p.AudioFormat("pcm16", 22_050).size_of(1) == 44


@pytest.mark.parametrize("law", ["g711_ulaw", "g711_alaw"])
def test_g711_agrees_with_the_reference_on_every_value(law: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated in 3.11, gone in 3.13
        audioop = pytest.importorskip("audioop")
    short = law.removeprefix("g711_")
    encode, decode = getattr(audioop, f"lin2{short}"), getattr(audioop, f"{short}2lin")
    assert g711_encode(EVERY_INT16, law) == encode(EVERY_INT16.tobytes(), 2)
    codes = bytes(range(256))
    expected = np.frombuffer(decode(codes, 2), "<i2").astype(np.float32) / 32768
    assert (g711_decode(codes, law) == expected).all()


@pytest.mark.parametrize("law", ["g711_ulaw", "g711_alaw"])
def test_g711_codes_survive_the_round_trip(law: str) -> None:
    samples = p.decode_samples(bytes(range(256)), law)
    again = p.encode_samples(samples, p.AudioFormat(law, 8000))
    assert (p.decode_samples(again, law) == samples).all()  # mu-law has two zeros


@pytest.mark.parametrize(
    ("code", "value"), [(0xFF, 0), (0x80, 32124), (0x00, -32124), (0x7F, 0), (0xF0, 120), (0x8F, 16764)]
)
def test_known_values_of_mu_law(code: int, value: int) -> None:
    assert p.decode_samples(bytes([code]), "g711_ulaw")[0] * 32768 == value


@pytest.mark.parametrize(("code", "value"), [(0xD5, 8), (0x55, -8), (0xAA, 32256), (0x2A, -32256), (0x80, 5504)])
def test_known_values_of_a_law(code: int, value: int) -> None:
    assert p.decode_samples(bytes([code]), "g711_alaw")[0] * 32768 == value


def test_int16_survives_the_round_trip_bit_for_bit() -> None:
    samples = p.decode_samples(EVERY_INT16.tobytes(), "pcm16")
    assert samples.dtype == np.float32
    assert p.encode_samples(samples, p.AudioFormat("pcm16", 16_000)) == EVERY_INT16.tobytes()
    floats = p.encode_samples(EVERY_INT16, p.AudioFormat("pcm_f32le", 16_000))
    assert (p.decode_samples(floats, "pcm_f32le") == samples).all()


def test_what_is_too_loud_is_clipped() -> None:
    pcm = p.encode_samples(np.array([2, -2, 1, 0], np.float32), p.AudioFormat("pcm16", 16_000))
    assert np.frombuffer(pcm, "<i2").tolist() == [32767, -32768, 32767, 0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_float_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(p.RealtimeProtocolError) as refused:
        p.decode_samples(np.array([0, value], "<f4").tobytes(), "pcm_f32le")
    assert (refused.value.code, refused.value.param) == ("bad_audio", "audio")


def test_wav_is_a_whole_file() -> None:
    data = p.encode_samples(EVERY_INT16, p.AudioFormat("wav", 22_050))
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (22_050, 1, 2)
        assert file.readframes(file.getnframes()) == EVERY_INT16.tobytes()


def test_loudness() -> None:
    assert p.rms(np.zeros(0, np.float32)) == 0
    assert p.rms(np.full(160, -0.5, np.float32)) == pytest.approx(0.5)
    assert p.rms(np.full(160, 16_384, np.int16)) == pytest.approx(0.5)
