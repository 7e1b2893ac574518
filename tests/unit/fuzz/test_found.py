"""What the search found, each by itself: bodies that only a hostile or a broken peer sends, and the answer they get."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from unit.session.core.fake_models import FakeModel

from duologue.client import DuplexTrace
from duologue.gateway.chat.wav import read_wav, write_wav
from duologue.gateway.coded import read_object
from duologue.gateway.errors import refusal_of
from duologue.model.outputs import decode_output
from duologue.protocol.duplex import (
    AudioFormat,
    Dialect,
    InputConverter,
    OutputConverter,
    RealtimeProtocolError,
    SessionConfig,
    command_from_realtime,
    decode_command,
    event_from_realtime,
)
from duologue.protocol.realtime.formats import SAMPLE_BYTES
from duologue.protocol.realtime.item_input import decode_base64
from duologue.protocol.realtime.json_places import MAX_PLACE
from duologue.session.core import DuplexSessionMachine
from duologue.store.journals import ScriptedJournal, append_outcome
from duologue.store.ports import StoreUnavailable

pytestmark = pytest.mark.unit

BEYOND = 2**64


def refused(frame: str) -> RealtimeProtocolError:
    with pytest.raises(RealtimeProtocolError) as told:
        command_from_realtime(frame)
    refusal_of(told.value, openai=True)  # and it can be sent
    return told.value


@pytest.mark.parametrize(
    ("command", "param"),
    [
        ({"type": "session.update", "session": {"metadata": {"x": BEYOND}}}, "session.metadata.x"),
        ({"type": "session.update", "session": {"extra_body": {"a": [1, BEYOND]}}}, "session.extra_body.a.1"),
        ({"type": "session.update", "session": {"idle_timeout_s": -BEYOND}}, "session.idle_timeout_s"),
        ({"type": "session.update", "metadata": {"x": BEYOND}}, "session.metadata.x"),
        ({"type": "response.create", "response": {"metadata": {"x": BEYOND}}}, "response.metadata.x"),
        ({"type": "turn.signal", "event": "mine", "payload": {"x": BEYOND}}, "payload.x"),
    ],
)
def test_an_integer_beyond_64_bits_is_refused_by_name(command: dict[str, Any], param: str) -> None:
    """JSON has it, but no message between processes and no checkpoint can hold it."""
    error = refused(json.dumps(command))
    assert (error.code, error.param) == ("bad_event", param)


def test_so_it_is_in_http_and_in_a_session_that_is_opened_without_a_frame() -> None:
    with pytest.raises(RealtimeProtocolError) as told:
        read_object(b'{"model":"m","extra_body":{"a":%d}}' % BEYOND)
    assert (told.value.code, told.value.param) == ("invalid_request", "extra_body.a")
    with pytest.raises(RealtimeProtocolError) as told:
        SessionConfig.open({"tools": [{"n": BEYOND}]}, dialect=Dialect.openai, model="m")
    assert told.value.param == "session.tools.0.n"


@pytest.mark.parametrize(
    ("frame", "param", "event_id"),
    [
        (r'{"type":"session.update","event_id":"\ud800","a":NaN}', "a", None),
        (r'{"type":"session.update","event_id":"e","\udc00":NaN}', "\\udc00", "e"),
    ],
)
def test_half_a_surrogate_pair_is_echoed_to_nobody(frame: str, param: str, event_id: str | None) -> None:
    error = refused(frame)
    assert (error.code, error.param, error.event_id) == ("bad_event", param, event_id)


def test_a_path_of_the_clients_own_keys_is_told_in_part() -> None:
    error = refused('{"type":"x","%s":NaN}' % ("k" * 100_000))
    assert error.param == "k" * MAX_PLACE
    assert len(error.message) < 2 * MAX_PLACE


@pytest.mark.parametrize(("offset", "rate"), [(24, 0), (24, 1), (24, 2**32 - 1), (24, 7999), (24, 192_001)])
def test_a_wav_file_of_an_impossible_rate_is_refused(offset: int, rate: int) -> None:
    whole = write_wav(b"\1\2" * 50, 24_000)
    with pytest.raises(RealtimeProtocolError) as told:
        read_wav(whole[:offset] + struct.pack("<I", rate) + whole[offset + 4 :], "p")
    assert (told.value.code, told.value.param) == ("unsupported_audio_format", "p")


def test_a_wav_file_whose_chunk_is_longer_than_it_is_bad_audio() -> None:
    whole = write_wav(b"\1\2" * 50, 24_000)
    with pytest.raises(RealtimeProtocolError) as told:
        read_wav(whole[:16] + struct.pack("<I", 40) + whole[20:], "p")
    assert (told.value.code, told.value.param) == ("bad_audio", "p")


@pytest.mark.parametrize("text", ["AAAA==", "AAAA=", "AAAA====", "cqCg35fw=="])
def test_padding_that_no_group_needs_is_no_strict_base64(text: str) -> None:
    with pytest.raises(RealtimeProtocolError) as told:
        decode_base64(text)
    assert told.value.code == "bad_audio"


def test_samples_beyond_one_are_clipped_before_a_filter_adds_them_up() -> None:
    loud = np.array([3.4e38, -3.4e38] * 400, "<f4").tobytes()
    heard = InputConverter(AudioFormat("pcm_f32le", 48_000), 16_000).convert(loud)
    assert np.isfinite(heard).all()
    straight = InputConverter(AudioFormat("pcm_f32le", 16_000), 16_000).convert(loud)
    assert straight[:2].tolist() == [1.0, -1.0]


@pytest.mark.parametrize("rate", [-1, 192_001, 2**62])
def test_a_rate_that_no_format_has_is_refused_where_it_is_decoded(rate: int) -> None:
    """It came out of a checkpoint, and the filter between it and the model's rate asked for petabytes."""
    for body in (("pcm16", rate), ("mp3", 16_000)):
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(body), type=AudioFormat)
    with pytest.raises(ValueError, match="rates are from"):
        InputConverter(AudioFormat("pcm16", rate), 16_000)
    with pytest.raises(ValueError, match="rates are from"):
        OutputConverter(24_000, AudioFormat("pcm16", 0)).convert(b"\1\2")


def test_every_format_is_decoded() -> None:
    for name in SAMPLE_BYTES:
        for rate in (0, 8_000, 192_000):
            body = msgspec.msgpack.encode(AudioFormat(name, rate))
            assert msgspec.msgpack.decode(body, type=AudioFormat) == AudioFormat(name, rate)


def test_deep_bodies_are_refused_with_the_error_of_the_decoder() -> None:
    deep = b"\x81\xa1a" * 5000 + b"\xc0"
    for decode in (decode_command, decode_output):
        with pytest.raises(msgspec.ValidationError):
            decode(deep)
    with pytest.raises(ValueError):
        DuplexSessionMachine.restore(deep, plugin=FakeModel(), owner=1)


@pytest.mark.parametrize("reply", [None, [], [b"ok"], 7, [b"owner", 1]])
async def test_a_reply_of_another_form_is_no_answer_of_the_store(reply: Any) -> None:
    with pytest.raises(StoreUnavailable):
        append_outcome(reply)

    class Runner:
        async def run(self, *_: object) -> Any:
            return reply

    with pytest.raises(StoreUnavailable):
        await ScriptedJournal(Runner()).read("s", 0)  # type: ignore[arg-type]


def test_an_event_that_is_none_is_told_by_one_error() -> None:
    for frame in ("[" * 5000, '{"a":' * 5000, b"\xff\xfe", "[]", "7", '{"type":1}'):
        with pytest.raises(msgspec.DecodeError):
            event_from_realtime(frame)
    event = event_from_realtime('{"type":"a.new.kind","server_event_seq":true}')
    assert event.server_event_seq is msgspec.UNSET


def test_a_trace_keeps_what_it_cannot_read_as_its_digest() -> None:
    trace = DuplexTrace()
    trace("<", '{"a":' * 5000)
    trace("<", '{"type":"x","server_event_seq":true}')
    deep, odd = trace
    assert (deep.type, deep.size, list(deep.frame)) == ("", 25_000, ["undecodable"])
    assert odd.seq is None
