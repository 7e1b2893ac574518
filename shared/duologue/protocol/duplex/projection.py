"""From duplex events to what a client of a dialect gets. Pure: same event, same view, same bytes.

Rule 1. Only events without an equivalent in the dialect vanish; so does one whose required field is null.
Rule 2. GA and beta names never meet: an event passes one table or the other.
Rule 3. In the OpenAI dialects no frame comes near 1 MiB: long audio becomes several deltas.

| duplex | openai | openai-beta |
|---|---|---|
| conversation.item.added, .done | the same | - |
| conversation.item.created | - | the same |
| response.output_audio*, .output_text* | the same | response.audio*, response.text* |
| session.expired, session.resync_required | error session_expired, session_resync_required | as openai |
| other Tier 3 | - | - |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

import msgspec

from duologue.protocol.duplex import events as duplex
from duologue.protocol.duplex.events import DuplexEvent, error_event
from duologue.protocol.duplex.openai_shapes import (
    beta_item,
    beta_response,
    ga_item,
    ga_response,
    openai_error,
)
from duologue.protocol.duplex.session_view import SessionView
from duologue.protocol.realtime import events as tier1
from duologue.protocol.realtime.dialect import Dialect
from duologue.protocol.realtime.errors import RealtimeProtocolError
from duologue.protocol.realtime.events import RealtimeEvent
from duologue.protocol.realtime.json_types import JsonObject

MAX_DELTA_BYTES = 480 * 1024
"""Audio in one delta of the OpenAI dialects: 640 KiB of base64; whole samples of every format."""

Shown = RealtimeEvent | JsonObject
Shape = Callable[[Any, SessionView], Sequence[Shown]]

_encode = msgspec.json.Encoder().encode


def project(event: DuplexEvent, dialect: Dialect, view: SessionView) -> list[bytes]:
    """The JSON bodies that the client gets for one event, without `server_event_seq`."""
    if dialect is Dialect.duplex:
        return [_encode(event)]
    shape = _SHAPES[dialect].get(type(event))
    return [] if shape is None else [_encode(shown) for shown in shape(event, view)]


# -- shapes that both tables use --------------------------------------------------------------------------


def _same(event: RealtimeEvent, view: SessionView) -> Sequence[Shown]:
    return (event,)


def _twin(kind: type[RealtimeEvent], twin: type[RealtimeEvent]) -> Shape:
    """The Tier 1 twin, or the same event under its beta name."""
    fields = twin.__struct_fields__

    def shape(event: RealtimeEvent, view: SessionView) -> Sequence[Shown]:
        return (twin(**{name: getattr(event, name) for name in fields}),)

    return shape


def _cut(twin: type[tier1.AudioDelta]) -> Shape:
    """Audio in pieces of at most MAX_DELTA_BYTES; the pieces after the first have ids of their own."""

    def shape(event: tier1.AudioDelta, view: SessionView) -> Sequence[Shown]:
        pieces = range(0, max(len(event.delta), 1), MAX_DELTA_BYTES)
        return [
            twin(
                event_id=event.event_id if number == 0 else f"{event.event_id}_{number}",
                response_id=event.response_id,
                item_id=event.item_id,
                output_index=event.output_index,
                content_index=event.content_index,
                delta=event.delta[start : start + MAX_DELTA_BYTES] if len(pieces) > 1 else event.delta,
            )
            for number, start in enumerate(pieces)
        ]

    return shape


def _error(event: tier1.ErrorEvent, view: SessionView) -> Sequence[Shown]:
    return (msgspec.structs.replace(event, error=openai_error(event.error)),)


def _expired(event: duplex.SessionExpired, view: SessionView) -> Sequence[Shown]:
    refusal = RealtimeProtocolError("session_expired", f"the session has expired: {event.reason}")
    return (error_event(refusal, event.event_id),)


def _resync(event: duplex.SessionResyncRequired, view: SessionView) -> Sequence[Shown]:
    refusal = RealtimeProtocolError("session_resync_required", f"resume from head_seq: {event.reason}")
    return (error_event(refusal, event.event_id, head_seq=event.head_seq),)


def _cleared(event: tier1.OutputCleared, view: SessionView) -> Sequence[Shown]:
    return () if event.response_id is None else (event,)


def _transcribed(event: tier1.TranscriptionCompleted, view: SessionView) -> Sequence[Shown]:
    """`usage` is required there; a recogniser that measures nothing heard 0 s that anyone would bill."""
    if event.usage is msgspec.UNSET:
        return (msgspec.structs.replace(event, usage={"type": "duration", "seconds": 0.0}),)
    return (event,)


# -- shapes of one dialect --------------------------------------------------------------------------------


def _with_item(item_of: Callable[[Any], Any]) -> Shape:
    def shape(event: Any, view: SessionView) -> Sequence[Shown]:
        return (msgspec.structs.replace(event, item=item_of(event.item)),)

    return shape


def _with_response(response_of: Callable[[Any, SessionView], JsonObject]) -> Shape:
    def shape(event: Any, view: SessionView) -> Sequence[Shown]:
        return ({"type": event.type, "event_id": event.event_id, "response": response_of(event.response, view)},)

    return shape


class BetaAudioDelta(tier1.AudioDelta, frozen=True, kw_only=True, tag="response.audio.delta"):
    pass


class BetaAudioDone(tier1.AudioDone, frozen=True, kw_only=True, tag="response.audio.done"):
    pass


class BetaTranscriptDelta(tier1.TranscriptDelta, frozen=True, kw_only=True, tag="response.audio_transcript.delta"):
    pass


class BetaTranscriptDone(tier1.TranscriptDone, frozen=True, kw_only=True, tag="response.audio_transcript.done"):
    pass


class BetaTextDelta(tier1.TextDelta, frozen=True, kw_only=True, tag="response.text.delta"):
    pass


class BetaTextDone(tier1.TextDone, frozen=True, kw_only=True, tag="response.text.done"):
    pass


_SHARED: dict[type, Shape] = {
    duplex.SessionCreated: _same,
    tier1.SessionUpdated: _same,
    duplex.SessionExpired: _expired,
    duplex.SessionResyncRequired: _resync,
    tier1.ErrorEvent: _error,
    tier1.SpeechStarted: _same,
    tier1.SpeechStopped: _same,
    duplex.InputCommitted: _twin(duplex.InputCommitted, tier1.InputCommitted),
    tier1.InputCleared: _same,
    tier1.TranscriptionCompleted: _transcribed,
    duplex.ItemDeleted: _twin(duplex.ItemDeleted, tier1.ItemDeleted),
    duplex.ItemTruncated: _twin(duplex.ItemTruncated, tier1.ItemTruncated),
    tier1.ContentPartAdded: _same,
    tier1.ContentPartDone: _same,
    tier1.RateLimitsUpdated: _same,
    tier1.ArgumentsDelta: _same,
    tier1.ArgumentsDone: _same,
    tier1.OutputCleared: _cleared,
}

_GA: dict[type, Shape] = _SHARED | {
    tier1.ItemAdded: _with_item(ga_item),
    tier1.ItemDone: _with_item(ga_item),
    tier1.ItemRetrieved: _with_item(ga_item),
    tier1.OutputItemAdded: _with_item(ga_item),
    tier1.OutputItemDone: _with_item(ga_item),
    duplex.ResponseCreated: _with_response(ga_response),
    duplex.ResponseDone: _with_response(ga_response),
    duplex.AudioDelta: _cut(tier1.AudioDelta),
    duplex.TranscriptDelta: _twin(duplex.TranscriptDelta, tier1.TranscriptDelta),
    tier1.AudioDone: _same,
    tier1.TranscriptDone: _same,
    tier1.TextDelta: _same,
    tier1.TextDone: _same,
}

_BETA: dict[type, Shape] = _SHARED | {
    tier1.ItemCreated: _with_item(beta_item),
    tier1.ItemRetrieved: _with_item(beta_item),
    tier1.OutputItemAdded: _with_item(beta_item),
    tier1.OutputItemDone: _with_item(beta_item),
    duplex.ResponseCreated: _with_response(beta_response),
    duplex.ResponseDone: _with_response(beta_response),
    duplex.AudioDelta: _cut(BetaAudioDelta),
    duplex.TranscriptDelta: _twin(duplex.TranscriptDelta, BetaTranscriptDelta),
    tier1.AudioDone: _twin(tier1.AudioDone, BetaAudioDone),
    tier1.TranscriptDone: _twin(tier1.TranscriptDone, BetaTranscriptDone),
    tier1.TextDelta: _twin(tier1.TextDelta, BetaTextDelta),
    tier1.TextDone: _twin(tier1.TextDone, BetaTextDone),
}

_SHAPES: dict[Dialect, dict[type, Shape]] = {Dialect.openai: _GA, Dialect.openai_beta: _BETA}

NOT_PROJECTED = frozenset(kind for kind in get_args(DuplexEvent) if kind not in _GA and kind not in _BETA)
"""Duplex events without an equivalent in either OpenAI dialect."""

_BETA_NAMES: dict[type, type[RealtimeEvent]] = {
    duplex.AudioDelta: BetaAudioDelta,
    duplex.TranscriptDelta: BetaTranscriptDelta,
    tier1.AudioDone: BetaAudioDone,
    tier1.TranscriptDone: BetaTranscriptDone,
    tier1.TextDelta: BetaTextDelta,
    tier1.TextDone: BetaTextDone,
}


def shown_as(kind: type[RealtimeEvent], dialect: Dialect) -> str | None:
    """The wire type under which a dialect shows an event class, None if it does not."""
    if dialect is not Dialect.duplex and kind not in _SHAPES[dialect]:
        return None
    if kind in (duplex.SessionExpired, duplex.SessionResyncRequired) and dialect.is_openai:
        return str(tier1.ErrorEvent.__struct_config__.tag)
    shown = _BETA_NAMES.get(kind, kind) if dialect is Dialect.openai_beta else kind
    return str(shown.__struct_config__.tag)
