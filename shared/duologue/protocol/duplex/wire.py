"""Commands as clients write them: one struct for each wire type, and how it becomes a command.

Rule 1. Types are strict: no number is a string, no boolean a number; unknown keys are ignored.
Rule 2. Only commands whose written shape differs from the canonical one have a class here.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from duologue.protocol.duplex import commands as to
from duologue.protocol.realtime import commands as tier1
from duologue.protocol.realtime.errors import RealtimeProtocolError
from duologue.protocol.realtime.formats import check_rate, fold_format, read_format
from duologue.protocol.realtime.item_input import decode_base64, is_picture, read_item, refuse_file
from duologue.protocol.realtime.json_types import Count, JsonObject, Millis, Name, Number
from duologue.protocol.realtime.limits import EventId, Hint, check_numbers, check_size
from duologue.protocol.realtime.response_input import read_options

MAX_FRAMES, MAX_FRAME_CHARS = 2, 4_000_000


class Written(msgspec.Struct, kw_only=True, gc=False, tag_field="type"):
    """Base of what is written; `canonical` may raise RealtimeProtocolError without an event_id."""

    event_id: EventId | None = None

    def canonical(self) -> to.DuplexCommand:
        raise AssertionError(type(self))


class Update(Written, kw_only=True, tag="session.update"):
    session: JsonObject | None | UnsetType = UNSET

    def canonical(self) -> to.DuplexCommand:
        assert self.session is not UNSET, "the reader fills it in"
        check_size(self.session or {}, "session", ("ref_audio", "extra_body"))
        check_numbers(self.session, "session")
        return tier1.SessionUpdate(event_id=self.event_id, session=self.session or {})


class Resume(Written, kw_only=True, tag="session.resume"):
    session_id: Name
    resume_token: Name
    last_received_server_event_seq: Count = 0

    def canonical(self) -> to.DuplexCommand:
        return to.SessionResume(
            event_id=self.event_id,
            session_id=self.session_id,
            resume_token=self.resume_token,
            last_received_server_event_seq=self.last_received_server_event_seq,
        )


class Heartbeat(Written, kw_only=True, tag="session.heartbeat"):
    def canonical(self) -> to.DuplexCommand:
        return to.SessionHeartbeat(event_id=self.event_id)


class EventAck(Written, kw_only=True, tag="session.event_ack"):
    server_event_seq: Count

    def canonical(self) -> to.DuplexCommand:
        return to.SessionEventAck(event_id=self.event_id, server_event_seq=self.server_event_seq)


class Close(Written, kw_only=True, tag="session.close"):
    reason: Any = None

    def canonical(self) -> to.DuplexCommand:
        reason = self.reason if isinstance(self.reason, str) and self.reason else "client_close"
        return to.SessionClose(event_id=self.event_id, reason=reason)


class WrittenVad(msgspec.Struct, kw_only=True, gc=False):
    is_speech: bool | None = None
    speech_probability: Number | None = None
    probability: Number | None = None
    silence_rms: Number | None = None


class Append(Written, kw_only=True, tag="input_audio_buffer.append"):
    audio: bytes | None = None
    delta: bytes | None = None
    format: str | JsonObject | None = None
    input_audio_format: str | JsonObject | None = None
    sample_rate_hz: int | float | None = None
    sample_rate: int | float | None = None
    video_frames: list[str | None] | None = None
    max_slice_nums: Any = None
    duration_ms: Number | None = None
    audio_duration_ms: Number | None = None
    audio_start_ms: Number | None = None
    audio_end_ms: Number | None = None
    is_speech: bool | None = None
    speech: bool | None = None
    speech_probability: Number | None = None
    vad: WrittenVad | None = None
    overlap_action: str | None = None
    overlap: str | None = None
    force_barge_in: bool | None = None
    force_listen: bool | None = None
    text: Hint | None = None
    transcript: Hint | None = None
    overlap_silence_rms: Number | None = None

    def canonical(self) -> to.DuplexCommand:
        audio = self.audio or self.delta or b""
        if audio[:4] == b"RIFF":
            refuse_file(audio)
        frames = () if self.video_frames is None else read_frames(self.video_frames)
        if not audio and not frames:
            raise RealtimeProtocolError("bad_event", "an append needs audio or video_frames", param="audio")
        if self.max_slice_nums is not None and (self.max_slice_nums is True or self.max_slice_nums != 1):
            raise RealtimeProtocolError("invalid_video_frames", "max_slice_nums must be 1", param="max_slice_nums")
        name, rate = self._format()
        return to.AppendAudio(
            event_id=self.event_id,
            audio=audio,
            format=name,
            sample_rate_hz=rate,
            video_frames=frames,
            video_bytes=sum(map(len, filter(None, self.video_frames))) if self.video_frames else 0,
            max_slice_nums=self.max_slice_nums,
            duration_ms=self.audio_duration_ms if self.duration_ms is None else self.duration_ms,
            audio_start_ms=self.audio_start_ms,
            audio_end_ms=self.audio_end_ms,
            is_speech=self.speech if self.is_speech is None else self.is_speech,
            speech_probability=self.speech_probability,
            vad=None if self.vad is None else _vad(self.vad),
            overlap_action=self.overlap if self.overlap_action is None else self.overlap_action,
            force_barge_in=bool(self.force_barge_in),
            force_listen=bool(self.force_listen),
            text=self.text,
            transcript=self.transcript,
            overlap_silence_rms=self.overlap_silence_rms,
        )

    def _format(self) -> tuple[str | None, int | None]:
        written, param = self.format, "format"
        if written is None:
            written, param = self.input_audio_format, "input_audio_format"
        name = rate = None
        if isinstance(written, str):
            name = fold_format(written)
        elif written is not None:
            name, rate = read_format(written, param=param)
        if self.sample_rate_hz is not None:
            rate = check_rate(self.sample_rate_hz)
        elif self.sample_rate is not None:
            rate = check_rate(self.sample_rate, "sample_rate")
        return name, rate


def _vad(vad: WrittenVad) -> to.VadHint:
    probability = vad.probability if vad.speech_probability is None else vad.speech_probability
    return to.VadHint(is_speech=vad.is_speech, speech_probability=probability, silence_rms=vad.silence_rms)


def read_frames(written: list[str | None]) -> tuple[bytes, ...]:
    """Camera frames: at most two, JPEG or PNG, base64. Raises `invalid_video_frames`."""
    texts = [frame for frame in written if frame is not None]
    code = param = "video_frames"
    code = f"invalid_{param}"
    if len(texts) > MAX_FRAMES:
        raise RealtimeProtocolError(code, f"at most {MAX_FRAMES} frames in one append", param=param)
    for text in texts:
        if not 0 < len(text) <= MAX_FRAME_CHARS or not is_picture(text):
            raise RealtimeProtocolError(code, "a frame must be a JPEG or PNG in base64", param=param)
    return tuple(decode_base64(text, param=param, code=code) for text in texts)


class Commit(Written, kw_only=True, tag="input_audio_buffer.commit"):
    final: bool | None = None
    response_create: bool | None = None
    create_response: bool | None = None
    is_speech: bool | None = None

    def canonical(self) -> to.DuplexCommand:
        return self._commit(None, False)

    def _commit(self, default: bool | None, input_commit: bool) -> to.Commit:
        wanted = self.create_response if self.response_create is None else self.response_create
        return to.Commit(
            event_id=self.event_id,
            final=self.final is not False,
            response_create=default if wanted is None else wanted,
            is_speech=self.is_speech,
            is_input_commit=input_commit,
        )


class InputCommit(Commit, kw_only=True, tag="input.commit"):
    def canonical(self) -> to.DuplexCommand:
        return self._commit(True, True)


class ClearInput(Written, kw_only=True, tag="input_audio_buffer.clear"):
    def canonical(self) -> to.DuplexCommand:
        return tier1.ClearInput(event_id=self.event_id)


class CancelInput(Written, kw_only=True, tag="input.cancel"):
    def canonical(self) -> to.DuplexCommand:
        return to.CancelInput(event_id=self.event_id)


class AppendText(Written, kw_only=True, tag="input.text.append"):
    text: str

    def canonical(self) -> to.DuplexCommand:
        return to.AppendText(event_id=self.event_id, text=self.text)


class BargeIn(Written, kw_only=True, tag="barge_in"):
    def canonical(self) -> to.DuplexCommand:
        return to.BargeIn(event_id=self.event_id)


class TurnSignal(Written, kw_only=True, tag="turn.signal"):
    event: Name
    payload: JsonObject | None = None
    response_id: str | None = None

    def canonical(self) -> to.DuplexCommand:
        check_numbers(self.payload, "payload")
        return to.TurnSignal(event_id=self.event_id, event=self.event, payload=self.payload or {})


class CreateResponse(Written, kw_only=True, tag="response.create"):
    response: JsonObject | None = None

    def canonical(self) -> to.DuplexCommand:
        if not self.response:
            return tier1.CreateResponse(event_id=self.event_id)
        check_size(self.response, "response", ("extra_body",))
        check_numbers(self.response, "response")
        try:
            options = read_options(self.response)
        except RealtimeProtocolError as error:
            raise error.under("response") from None
        return tier1.CreateResponse(event_id=self.event_id, options=options)


class CancelResponse(Written, kw_only=True, tag="response.cancel"):
    response_id: str | None = None

    def canonical(self) -> to.DuplexCommand:
        return tier1.CancelResponse(event_id=self.event_id, response_id=self.response_id)


class ClearOutput(Written, kw_only=True, tag="output_audio_buffer.clear"):
    response_id: str | None = None

    def canonical(self) -> to.DuplexCommand:
        return tier1.ClearOutput(event_id=self.event_id, response_id=self.response_id)


class CreateItem(Written, kw_only=True, tag="conversation.item.create"):
    item: JsonObject
    previous_item_id: str | None = None

    def canonical(self) -> to.DuplexCommand:
        item, audio = read_item(self.item)
        return tier1.CreateItem(event_id=self.event_id, item=item, audio=audio, previous_item_id=self.previous_item_id)


class RetrieveItem(Written, kw_only=True, tag="conversation.item.retrieve"):
    item_id: Name

    def canonical(self) -> to.DuplexCommand:
        return tier1.RetrieveItem(event_id=self.event_id, item_id=self.item_id)


class DeleteItem(Written, kw_only=True, tag="conversation.item.delete"):
    item_id: Name

    def canonical(self) -> to.DuplexCommand:
        return tier1.DeleteItem(event_id=self.event_id, item_id=self.item_id)


class TruncateItem(Written, kw_only=True, tag="conversation.item.truncate"):
    item_id: Name
    audio_end_ms: Millis
    content_index: Count = 0

    def canonical(self) -> to.DuplexCommand:
        return tier1.TruncateItem(
            event_id=self.event_id,
            item_id=self.item_id,
            audio_end_ms=int(self.audio_end_ms),
            content_index=self.content_index,
        )


class AckPlayback(Written, kw_only=True, tag="playback.ack"):
    played_ms: Number
    committed_ms: Number | None = None
    response_id: str | None = None
    item_id: str | None = None
    truncate: bool | None = None

    def canonical(self) -> to.DuplexCommand:
        return to.AckPlayback(
            event_id=self.event_id,
            played_ms=self.played_ms,
            committed_ms=self.committed_ms,
            response_id=self.response_id,
            item_id=self.item_id,
            truncate=bool(self.truncate),
        )


WrittenCommand = (
    Update
    | Resume
    | Heartbeat
    | EventAck
    | Close
    | Append
    | Commit
    | InputCommit
    | ClearInput
    | CancelInput
    | AppendText
    | BargeIn
    | TurnSignal
    | CreateResponse
    | CancelResponse
    | ClearOutput
    | CreateItem
    | RetrieveItem
    | DeleteItem
    | TruncateItem
    | AckPlayback
)
