"""Conversion of streams: cutting never changes a sample, counts are exact, the state can be moved."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from duologue.protocol import duplex as p
from duologue.protocol.realtime.audio.resample import make_resampler

pytestmark = pytest.mark.unit

RATES = [
    (16_000, 16_000),
    (24_000, 16_000),
    (16_000, 24_000),
    (48_000, 16_000),
    (8000, 16_000),
    (8000, 24_000),
    (44_100, 16_000),
    (44_100, 24_000),
    (22_050, 24_000),
    (192_000, 8000),
    (16_001, 16_000),
]
CHUNKS = [1, 2, 3, 160, 479, 480, 481, 4096]
NOISE = np.random.default_rng(7).integers(-20_000, 20_000, 5000).astype("<i2").tobytes()


def pcm(rate: int) -> p.AudioFormat:
    return p.AudioFormat("pcm16", rate)


def converted(data: bytes, source: p.AudioFormat, rate: int, size: int, *, moved: bool = False) -> NDArray[np.float32]:
    """The stream in pieces of `size` bytes; `moved`: through an export after every piece."""
    converter = p.InputConverter(source, rate)
    pieces = []
    for at in range(0, len(data), size):
        pieces.append(converter.convert(data[at : at + size]))
        if moved:
            state = converter.export_state()
            converter = p.InputConverter(source, rate)
            converter.restore_state(state)
    return np.concatenate(pieces)


@pytest.mark.parametrize(("source", "target"), RATES)
def test_cutting_never_changes_a_sample(source: int, target: int) -> None:
    whole = converted(NOISE, pcm(source), target, len(NOISE))
    for samples in CHUNKS:
        assert np.array_equal(converted(NOISE, pcm(source), target, samples * 2), whole), samples
    for size in (2561, 7):
        assert np.array_equal(converted(NOISE, pcm(source), target, size), whole), "an odd byte is carried"


@pytest.mark.parametrize(("source", "target"), RATES)
def test_a_moved_stream_goes_on_where_it_was(source: int, target: int) -> None:
    whole = converted(NOISE, pcm(source), target, len(NOISE))
    assert np.array_equal(converted(NOISE, pcm(source), target, 961, moved=True), whole)
    converter = p.InputConverter(pcm(source), target)
    converter.convert(NOISE)
    assert len(converter.export_state()) < 4096


@pytest.mark.parametrize("source", [8000, 16_000, 24_000, 32_000, 44_100, 48_000])
def test_appends_of_20_ms_leave_no_block_begun(source: int) -> None:
    resampler = make_resampler(source, 24_000 if source == 16_000 else 16_000)
    at_rest = len(resampler.export_state())
    for _ in range(3):
        resampler.push(np.ones(source // 50, np.float32))
        assert len(resampler.export_state()) == at_rest


def test_a_state_of_blocks_of_another_size_is_taken_up() -> None:
    """A release may choose other blocks: the one that was begun may hold more than one of these."""
    begun, sound = 601, sine(24_000, 100)
    whole = make_resampler(24_000, 16_000).push(sound)
    resampler = make_resampler(24_000, 16_000)
    line = np.concatenate((np.zeros(2 * resampler.delay, "<f4"), sound[:begun].astype("<f4")))
    given = -(-begun * 2 // 3)
    resampler.restore_state(msgspec.msgpack.encode((given, line.tobytes())))
    pieces = [resampler.push(sound[at : at + 333]) for at in range(begun, len(sound), 333)]
    assert np.concatenate(pieces) == pytest.approx(whole[given:], abs=1e-6)


def test_a_long_append_is_cut_inside() -> None:
    long = NOISE * 20
    for source, target in ((24_000, 16_000), (16_001, 16_000)):
        whole = converted(long, pcm(source), target, len(long))
        assert np.array_equal(converted(long, pcm(source), target, 9600), whole)


@pytest.mark.parametrize("name", ["pcm_f32le", "g711_ulaw", "g711_alaw"])
@pytest.mark.parametrize("rate", [16_000, 24_000])
def test_cutting_never_changes_a_sample_of_any_format(name: str, rate: int) -> None:
    samples = np.random.default_rng(3).uniform(-0.9, 0.9, 2000).astype(np.float32)
    source = p.AudioFormat(name, 16_000)
    data = p.encode_samples(samples, source)
    whole = converted(data, source, rate, len(data))
    for size in (1, 3, 641):
        assert np.array_equal(converted(data, source, rate, size), whole)


@pytest.mark.parametrize(("source", "target"), RATES)
def test_80_ms_in_are_80_ms_out_at_once(source: int, target: int) -> None:
    converter = p.InputConverter(pcm(source), target)
    total = 0
    for n in range(1, 12):
        total += len(converter.convert(bytes(pcm(source).size_of(80))))
        assert total == -(-n * round(source * 0.08) * target // source)


def test_equal_rates_only_change_the_format() -> None:
    samples = p.InputConverter(pcm(16_000), 16_000).convert(NOISE)
    assert (samples * 32768 == np.frombuffer(NOISE, "<i2")).all()


def test_a_refused_append_leaves_the_stream_as_it_was() -> None:
    converter = p.InputConverter(p.AudioFormat("pcm_f32le", 24_000), 16_000)
    converter.convert(bytes(403))
    state = converter.export_state()
    with pytest.raises(p.RealtimeProtocolError):
        converter.convert(b"\xff" * 40)
    assert converter.export_state() == state


def sine(rate: int, ms: float, hz: float = 440) -> NDArray[np.float32]:
    return (0.3 * np.sin(2 * np.pi * hz * np.arange(round(rate * ms / 1000)) / rate)).astype(np.float32)


@pytest.mark.parametrize(("source", "target"), [pair for pair in RATES if pair[0] != pair[1]])
def test_a_tone_stays_a_tone(source: int, target: int) -> None:
    data = p.encode_samples(sine(source, 500), pcm(source))
    heard = converted(data, pcm(source), target, 641)[target // 20 :]
    angle = 2 * np.pi * 440 * np.arange(len(heard)) / target
    basis = np.stack([np.sin(angle), np.cos(angle)], axis=1)
    fit, *_ = np.linalg.lstsq(basis, heard, rcond=None)
    assert p.rms((heard - basis @ fit).astype(np.float32)) < 1e-3 * p.rms(heard)
    assert np.hypot(*fit) == pytest.approx(0.3, rel=1e-3)


def test_what_the_lower_rate_cannot_hold_is_taken_away() -> None:
    high = p.encode_samples(sine(48_000, 300, hz=7000), pcm(48_000))
    assert p.rms(converted(high, pcm(48_000), 8000, len(high))[200:]) < 1e-3


# -- output -------------------------------------------------------------------------------------------------

TARGETS = [pcm(rate) for rate in (8000, 16_000, 22_050, 44_100, 48_000)]
TARGETS += [
    p.AudioFormat("pcm_f32le", 24_000),
    p.AudioFormat("g711_ulaw", 8000),
    p.AudioFormat("g711_alaw", 16_000),
]


def spoken(target: p.AudioFormat, chunks: list[NDArray[np.float32]], rate: int = 24_000) -> bytes:
    converter = p.OutputConverter(rate, target)
    return b"".join([converter.convert(chunk) for chunk in chunks]) + converter.finish()


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_response_has_its_exact_length_and_is_in_step(target: p.AudioFormat) -> None:
    sound = sine(24_000, 400)
    data = spoken(target, np.split(sound, 5))
    assert len(data) // target.width == round(target.rate * 0.4)
    heard, due = p.decode_samples(data, target.name), sine(target.rate, 400)
    edge = target.rate // 200
    assert p.rms((heard - due)[edge:-edge]) < 0.065 * p.rms(due)  # in step to half a sample


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_cutting_a_response_never_changes_a_byte(target: p.AudioFormat) -> None:
    sound = sine(24_000, 200)
    whole = spoken(target, [sound])
    for size in (1, 479, 1920):
        assert spoken(target, [sound[at : at + size] for at in range(0, len(sound), size)]) == whole


def test_the_models_own_format_passes_untouched() -> None:
    converter = p.OutputConverter(24_000, pcm(24_000))
    assert converter.convert(NOISE) == NOISE
    assert converter.convert(memoryview(NOISE)) == NOISE
    assert converter.convert(np.frombuffer(NOISE, "<i2")) == NOISE
    assert converter.finish() == b""


def test_bytes_and_arrays_are_the_same_sound() -> None:
    target = p.AudioFormat("g711_ulaw", 8000)
    ints = np.frombuffer(NOISE, "<i2").astype(np.int16)
    floats = (ints / 32768).astype(np.float32)
    results = {p.OutputConverter(24_000, target).convert(sound) for sound in (NOISE,)}
    assert results == {p.OutputConverter(24_000, target).convert(sound) for sound in (ints, floats)}


def test_each_delta_of_wav_is_a_file() -> None:
    converter = p.OutputConverter(24_000, p.AudioFormat("wav", 24_000))
    for _ in range(2):
        assert converter.convert(NOISE)[44:] == NOISE


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_moved_response_goes_on_where_it_was(target: p.AudioFormat) -> None:
    sound = sine(24_000, 200)
    first = p.OutputConverter(24_000, target)
    head = first.convert(sound[:1111])
    second = p.OutputConverter(24_000, target)
    second.restore_state(first.export_state())
    assert head + second.convert(sound[1111:]) + second.finish() == spoken(target, [sound])


def test_a_converter_is_as_new_after_a_response() -> None:
    converter = p.OutputConverter(24_000, pcm(16_000))
    sound = sine(24_000, 80)
    first = converter.convert(sound) + converter.finish()
    assert converter.convert(sound) + converter.finish() == first
    assert converter.finish() == b""


def test_a_response_shorter_than_the_filter_keeps_its_length() -> None:
    for samples in (1, 3, 10):
        data = spoken(pcm(8000), [sine(24_000, samples / 24)])
        assert len(data) // 2 == round(samples / 3)
