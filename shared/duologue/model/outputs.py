"""What the last stage of a pipeline tells the session: the result vocabulary of every model.

A result is one `ModelOutput`, msgpack in the head of `bus.messages.Output`; its audio, if any, is the
first payload frame: mono int16 little-endian PCM at `audio_rate_hz`.
"""

from __future__ import annotations

import msgspec


class TextMark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`text_chars` of this output's text have been spoken when `audio_ms` of its audio have been played."""

    text_chars: int
    audio_ms: float


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """A function call of the model. `arguments` is JSON text. A call that could not be parsed has no name
    and carries what the model wrote in `raw`."""

    name: str = ""
    arguments: str = "{}"
    call_id: str = ""
    raw: str = ""


class UserTurn(msgspec.Struct, frozen=True, gc=False):
    """The model says that the user's turn is over. Times are session input time, ms.

    In a session that was committed by the client the turn names no new item: the transcript belongs to the
    item of that commit.
    """

    transcript: str
    start_ms: int = 0
    end_ms: int = 0
    answer: bool = True
    """False: nothing is to be said to it (a back-channel, noise)."""


class Usage(msgspec.Struct, frozen=True, gc=False):
    """What the model counts, in its own tokens, since it last told."""

    input_audio_tokens: int = 0
    input_text_tokens: int = 0
    output_audio_tokens: int = 0
    output_text_tokens: int = 0
    cached_tokens: int = 0
    """Of the text tokens in: those that were not computed anew."""


class ModelOutput(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One result. Fields at their defaults say nothing; an empty output only confirms its unit."""

    listen: bool = False
    """The model decided to keep listening for this unit."""
    reason: str = "model_listen"
    text: str = ""
    audio_rate_hz: int = 0
    marks: tuple[TextMark, ...] = ()
    """Within this output. Empty with text and audio: all of the text at the end of the audio."""
    end_of_turn: bool = False
    tool_calls: tuple[ToolCall, ...] = ()
    undecided: bool = False
    """The unit was left over after the end of its turn and moved nothing."""
    speech_started_ms: int | None = None
    speech_stopped_ms: int | None = None
    interrupt: str = ""
    """Not empty: the model heard an interruption; the open or still playing response is cancelled for
    this reason (`turn_detected`)."""
    user_turn: UserTurn | None = None
    error_code: str = ""
    error: str = ""
    state: bytes = b""
    """For the plugin's own state, opaque to the session."""
    usage: Usage | None = None
    partial_transcript: str = ""
    """What was heard so far of speech that goes on; the next one may revise it. Nothing depends on it."""
    rebind: str = ""
    """Not empty: the stages cannot go on for long with the context that they hold (`context_rollover`). As soon as no
    response is open the session opens them anew and rebuilds, as its pipeline says (`rebuild`)."""
    fatal: bool = False
    """With `error_code`: nothing will come of this session any more. It is told and closed."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ModelOutput)


def encode_output(output: ModelOutput) -> bytes:
    return _encoder.encode(output)


def decode_output(head: bytes) -> ModelOutput:
    """Raises msgspec.ValidationError: the worker speaks another version, which its hello should have said."""
    try:
        return _decoder.decode(head)
    except RecursionError:
        raise msgspec.ValidationError("nested too deeply") from None
