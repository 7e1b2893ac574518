"""Addresses, session objects, WAV files."""

from __future__ import annotations

import wave
from pathlib import Path

import pytest

from duologue.client import (
    BadWav,
    SessionConfig,
    build_realtime_url,
    read_pcm16_wav,
    write_pcm16_wav,
)

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("given", "dialled"),
    [
        ("ws://h:1", "ws://h:1/v1/realtime?duplex=1&model=m&autostart=0"),
        ("h:1", "ws://h:1/v1/realtime?duplex=1&model=m&autostart=0"),
        ("https://h", "wss://h/v1/realtime?duplex=1&model=m&autostart=0"),
        ("ws://h/v1/duplex", "ws://h/v1/duplex?duplex=1&model=m&autostart=0"),
        ("ws://h?model=other&autostart=1", "ws://h/v1/realtime?model=other&autostart=0&duplex=1"),
    ],
)
def test_the_address_that_is_dialled(given: str, dialled: str) -> None:
    assert build_realtime_url(given, "m") == dialled


def test_another_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="ftp://h"):
        build_realtime_url("ftp://h")


def test_the_session_object_names_both_rates_and_model_owned_turns() -> None:
    session = SessionConfig(extra_body={"loopback": {"script": []}}).to_realtime("loopback")
    assert session["sample_rate_hz"] == session["audio"]["input"]["sample_rate_hz"] == 16_000
    assert session["audio"]["output"]["sample_rate_hz"] == 24_000
    assert session["turn_detection"] is None
    assert session["extra_body"] == {"auto_response": True, "loopback": {"script": []}}
    assert "instructions" not in session


def test_a_wav_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write_pcm16_wav(tmp_path / "a.wav", b"\x01\x00\x02\x00", 8000)
    assert read_pcm16_wav(tmp_path / "a.wav") == (b"\x01\x00\x02\x00", 8000)


def test_of_a_stereo_wav_the_first_channel_is_read(tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "s.wav"), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(b"\x01\x00\x09\x00\x02\x00\x09\x00")
    assert read_pcm16_wav(tmp_path / "s.wav")[0] == b"\x01\x00\x02\x00"


@pytest.mark.parametrize("content", [b"", b"RIFF nonsense", b"ID3 an mp3"])
def test_a_corrupt_wav_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.wav"
    path.write_bytes(content)
    with pytest.raises(BadWav, match=r"bad\.wav"):
        read_pcm16_wav(path)


def test_eight_bit_samples_are_refused(tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "e.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(1)
        file.setframerate(8000)
        file.writeframes(b"\x01\x02")
    with pytest.raises(BadWav, match="8-bit"):
        read_pcm16_wav(tmp_path / "e.wav")
