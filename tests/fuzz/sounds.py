"""Sound as clients write it: base64, WAV files, samples of every format, cut anywhere."""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterator
from math import ceil
from random import Random

import numpy as np
from fuzz.target import Target

from duologue.gateway.chat.wav import read_wav, write_wav
from duologue.protocol.duplex import AudioFormat, InputConverter, OutputConverter, RealtimeProtocolError
from duologue.protocol.realtime.formats import MAX_RATE_HZ, MIN_RATE_HZ, SAMPLE_BYTES
from duologue.protocol.realtime.item_input import decode_base64

_INPUTS = ("pcm16", "pcm_f32le", "g711_ulaw", "g711_alaw")
_RATES = (8_000, 16_000, 24_000, 48_000, 44_100, 11_025, 192_000, 16_001)
_HEAD = struct.Struct("<BBBIH")


def check_conversion(data: bytes) -> bool:
    if len(data) < _HEAD.size:
        return False
    name, at_rate, way, number, cut = _HEAD.unpack_from(data)
    sound = data[_HEAD.size :]
    rate = _RATES[at_rate % 9] if at_rate % 9 < 8 else MIN_RATE_HZ + number % (MAX_RATE_HZ - MIN_RATE_HZ + 1)
    if way % 2:
        return _output(sound, AudioFormat(tuple(SAMPLE_BYTES)[name % 5], rate), cut)
    return _input(sound, AudioFormat(_INPUTS[name % 4], rate), (16_000, 24_000)[way // 2 % 2], cut)


def _input(sound: bytes, source: AudioFormat, rate: int, cut: int) -> bool:
    try:
        whole = InputConverter(source, rate).convert(sound)
    except RealtimeProtocolError as error:
        assert error.code == "bad_audio", error
        return False
    samples = len(sound) // source.width
    assert len(whole) == (samples if source.rate == rate else ceil(samples * rate / source.rate)), "time was lost"
    assert np.isfinite(whole).all(), "sound became no number"
    at = cut % (len(sound) + 1)
    one = InputConverter(source, rate)
    parts = [one.convert(sound[:at])]
    two = InputConverter(source, rate)
    two.restore_state(one.export_state())
    parts.append(two.convert(sound[at:]))
    assert np.concatenate(parts).tobytes() == whole.tobytes(), "a cut, or a checkpoint between, changed a sample"
    return True


def _output(sound: bytes, target: AudioFormat, cut: int) -> bool:
    sound = sound[: len(sound) // 2 * 2]
    converter = OutputConverter(24_000, target)
    if target.name == "wav":
        converter.convert(sound)
        return True
    at = cut % (len(sound) + 1) // 2 * 2
    made = converter.convert(sound[:at])
    heir = OutputConverter(24_000, target)
    heir.restore_state(converter.export_state())
    made += heir.convert(sound[at:]) + heir.finish()
    due = round(len(sound) // 2 * target.rate / 24_000) * target.width
    assert len(made) == due, f"{len(made)} bytes of a response where {due} are due"
    return True


def _sounds() -> Iterator[bytes]:
    wave = (np.sin(np.arange(400) / 7) * 9000).astype("<i2").tobytes()
    floats = (np.sin(np.arange(200) / 7) / 3).astype("<f4").tobytes()
    odd = struct.pack("<4f", float("nan"), float("inf"), 3.4e38, -0.0)
    for name in range(5):
        for rate in range(9):
            for way in range(4):
                yield _HEAD.pack(name, rate, way, 12_345, 77) + (floats if name == 1 else wave)
    yield from (_HEAD.pack(1, 1, 0, 0, 5) + sound for sound in (odd, b"", b"\0", floats + odd))


CONVERSION = Target(
    "audio-conversion",
    check_conversion,
    _sounds,
    lambda data, rng: None,
    (
        "duologue.protocol.realtime.audio.convert",
        "duologue.protocol.realtime.audio.g711",
        "duologue.protocol.realtime.audio.resample",
        "duologue.protocol.realtime.audio.samples",
    ),
    base_bytes=96 << 20,  # the weights of a new ratio of rates
    bytes_per_byte=4096,  # each of a few samples is made into 24, by a row of weights
)


# -- text and files ---------------------------------------------------------------------------------------


def check_encoded(data: bytes) -> bool:
    """The first byte says what the rest is."""
    kind, rest = data[:1], data[1:]
    try:
        if kind == b"w":
            return _wav(rest)
        text = rest.decode("latin-1")
        sound = decode_base64(text)
    except RealtimeProtocolError as error:
        assert error.code in ("bad_audio", "unsupported_audio_format") and error.param, error
        return False
    assert base64.b64encode(sound).decode() == text or _loose(text, sound), "base64 that is not strict was taken"
    return True


def _loose(text: str, sound: bytes) -> bool:
    """The last character may have bits that mean nothing: Python's strict mode takes them."""
    return base64.b64encode(sound).decode()[:-3] == text[:-3] and len(text) % 4 == 0


def _wav(data: bytes) -> bool:
    found = read_wav(data, "data")
    assert MIN_RATE_HZ <= found.rate_hz <= MAX_RATE_HZ, f"sound at {found.rate_hz} Hz"
    assert len(found.pcm) % 2 == 0 and len(found.pcm) <= len(data)
    assert read_wav(write_wav(found.pcm, found.rate_hz), "data") == found
    return True


def _encoded() -> Iterator[bytes]:
    for size in (0, 1, 2, 3, 640):
        yield b"b" + base64.b64encode(bytes(range(256)) * 3)[: size // 3 * 4]
    yield from (
        b"b" + text for text in (b"AA==", b"AA=", b"A", b"AA==AA==", b"AA AA", b"_-AA", b"AAA\xff", b"=", b"AAF=")
    )
    whole = write_wav(b"\1\2" * 50, 24_000)
    yield from (b"w" + whole, b"w" + whole[:40], b"w" + whole[:20], b"w", b"wRIFF", b"w" + whole + whole)
    for offset, value in (
        (4, 0xFFFFFFFF),
        (16, 0),
        (16, 2),
        (16, 40),
        (24, 0),
        (24, 1),
        (24, 0xFFFFFFFF),
        (40, 0x7FFFFFFF),
    ):
        yield b"w" + whole[:offset] + struct.pack("<I", value) + whole[offset + 4 :]
    for offset, short in ((20, 3), (20, 0xFFFE), (22, 0), (22, 2), (22, 9), (34, 8), (34, 0), (34, 0xFFFF)):
        yield b"w" + whole[:offset] + struct.pack("<H", short) + whole[offset + 2 :]


def _change(data: bytes, rng: Random) -> bytes | None:
    """Base64 stays base64 most of the time."""
    if data[:1] != b"b" or rng.random() < 0.3:
        return None
    try:
        sound = bytearray(binascii.a2b_base64(data[1:]))
    except ValueError:
        return None
    sound[rng.randint(0, len(sound)) :] = rng.randbytes(rng.randrange(40))
    return b"b" + base64.b64encode(sound)


ENCODED = Target(
    "base64-and-wav",
    check_encoded,
    _encoded,
    _change,
    ("duologue.gateway.chat.wav",),
)
