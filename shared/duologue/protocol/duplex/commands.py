"""Tier 2 and 3 commands, and the union of all 21.

Rule 1. A Tier 2 command subclasses its Tier 1 twin and keeps its wire type.
Rule 2. Aliases (`push_text`, `signal_turn`, ...) and the commands that `turn.signal` carries are folded away
        when a frame is read: the core sees one class for one intent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import msgspec

from duologue.protocol.realtime import commands as tier1
from duologue.protocol.realtime.commands import (
    CancelResponse,
    ClearInput,
    ClearOutput,
    ClientCommand,
    CreateItem,
    CreateResponse,
    DeleteItem,
    Frame,
    RetrieveItem,
    SessionUpdate,
    TruncateItem,
)
from duologue.protocol.realtime.json_types import JsonObject

# -- Tier 2 -----------------------------------------------------------------------------------------------


class VadHint(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What the client's own detector says of an append."""

    is_speech: bool | None = None
    speech_probability: float | None = None
    silence_rms: float | None = None


class AppendAudio(tier1.AppendAudio, frozen=True, kw_only=True, tag="input_audio_buffer.append"):
    """Audio and up to two camera frames (JPEG or PNG bytes), with the client's hints about them."""

    video_frames: tuple[bytes, ...] = ()
    video_bytes: int = 0
    """What the frames count against the input limit: their length as base64."""
    max_slice_nums: int | None = None
    duration_ms: float | None = None
    audio_start_ms: float | None = None
    audio_end_ms: float | None = None
    is_speech: bool | None = None
    speech_probability: float | None = None
    vad: VadHint | None = None
    overlap_action: str | None = None
    force_barge_in: bool = False
    force_listen: bool = False
    text: str | None = None
    transcript: str | None = None
    overlap_silence_rms: float | None = None

    def detach(self) -> tuple[Self, tuple[bytes, ...]]:
        """Audio first (perhaps empty), then the camera frames."""
        bare = msgspec.structs.replace(self, audio=b"", video_frames=())
        return bare, (self.audio, *self.video_frames)

    def attach(self, frames: Sequence[Frame]) -> Self:
        audio, *video = map(bytes, frames or (b"",))
        return msgspec.structs.replace(self, audio=audio, video_frames=tuple(video))

    def hinted_speech(self) -> bool | None:
        """The client's verdict, if it gave one: its flag, its detector's "no", its probability."""
        if self.is_speech is not None:
            return self.is_speech
        if self.vad is not None and self.vad.is_speech is False:
            return False
        hint = None if self.vad is None else self.vad.speech_probability
        probability = self.speech_probability if hint is None else hint
        return None if probability is None else probability >= 0.5

    def silence_rms(self, default: float) -> float:
        """The loudness from which this append counts as speech."""
        if self.overlap_silence_rms is not None:
            return self.overlap_silence_rms
        hint = None if self.vad is None else self.vad.silence_rms
        return default if hint is None else hint


class Commit(tier1.Commit, frozen=True, kw_only=True, tag="input_audio_buffer.commit"):
    """`response_create` None means unspecified; `input.commit` fills it with True. `final` has no effect."""

    final: bool = True
    response_create: bool | None = None
    is_speech: bool | None = None
    is_input_commit: bool = False


# -- Tier 3 -----------------------------------------------------------------------------------------------


class SessionResume(ClientCommand, frozen=True, kw_only=True, tag="session.resume"):
    session_id: str
    resume_token: str
    last_received_server_event_seq: int = 0


class SessionHeartbeat(ClientCommand, frozen=True, kw_only=True, tag="session.heartbeat"):
    pass


class SessionEventAck(ClientCommand, frozen=True, kw_only=True, tag="session.event_ack"):
    server_event_seq: int


class SessionClose(ClientCommand, frozen=True, kw_only=True, tag="session.close"):
    reason: str = "client_close"


class CancelInput(ClientCommand, frozen=True, kw_only=True, tag="input.cancel"):
    pass


class AppendText(ClientCommand, frozen=True, kw_only=True, tag="input.text.append"):
    text: str


class BargeIn(ClientCommand, frozen=True, kw_only=True, tag="barge_in"):
    pass


class TurnSignal(ClientCommand, frozen=True, kw_only=True, tag="turn.signal"):
    """A signal that is no other command in disguise; it moves `turn_state` and is echoed."""

    event: str
    payload: JsonObject = {}


class AckPlayback(ClientCommand, frozen=True, kw_only=True, tag="playback.ack"):
    """`committed_ms` None means as played."""

    played_ms: int | float
    committed_ms: int | float | None = None
    response_id: str | None = None
    item_id: str | None = None
    truncate: bool = False


DuplexCommand = (
    SessionUpdate
    | SessionResume
    | SessionHeartbeat
    | SessionEventAck
    | SessionClose
    | AppendAudio
    | Commit
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

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[DuplexCommand] = msgspec.msgpack.Decoder(DuplexCommand)


def encode_command(command: DuplexCommand) -> bytes:
    """A command for the bus. Call `detach` first, so that no audio is inside."""
    return _encoder.encode(command)


def decode_command(data: Frame) -> DuplexCommand:
    """The inverse of `encode_command`. Raises msgspec.ValidationError: the peer is another version."""
    try:
        return _decoder.decode(data)
    except RecursionError:
        raise msgspec.ValidationError("nested too deeply") from None
