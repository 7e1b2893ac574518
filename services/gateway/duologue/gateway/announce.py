"""The events that tell a client which session it has: `session.created`, `session.resumed`. SANS-I/O.

They are the gateway's own: they carry the token, which nobody else knows, and no sequence number (in the
OpenAI dialects `session.created` states the head of the numbering, which is none either).
"""

from __future__ import annotations

import msgspec

from duologue.gateway.errors import event_id, local_error, local_event
from duologue.protocol.duplex import openai_code

_encode = msgspec.json.Encoder().encode
_raw_object = msgspec.json.Decoder(dict[str, object]).decode


class Resumed(msgspec.Struct, frozen=True):
    """What a resume found."""

    session_id: str
    session: bytes
    """The session object as JSON, in the client's dialect."""
    generation: int
    token: str
    head_seq: int
    last_client_event_id: str | None
    input_audio_end_ms: int
    items: bytes = b""
    """The conversation as JSON, after a gap; else empty."""


def created(session: bytes, generation: int, token: str, *, head_seq: int | None) -> bytes:
    """`session.created`. `head_seq` is stated in the OpenAI dialects only (None elsewhere)."""
    return local_event(
        "session.created",
        session=msgspec.Raw(session),
        attachment_generation=generation,
        resume_token=token,
        server_event_seq=head_seq,
    )


def resumed(found: Resumed, *, openai: bool) -> bytes:
    """`session.resumed`; in the OpenAI dialects `session.created` with the same tidings."""
    event: dict[str, object] = {
        "type": "session.created" if openai else "session.resumed",
        "event_id": event_id(),
    }
    if not openai:
        event["session_id"] = found.session_id
    event |= {
        "session": msgspec.Raw(found.session),
        "attachment_generation": found.generation,
        "resume_token": found.token,
        "last_client_event_id": found.last_client_event_id,
        "input_audio_end_ms": found.input_audio_end_ms,
    }
    if openai:
        event["server_event_seq"] = found.head_seq
    if found.items:
        event["items"] = msgspec.Raw(found.items)
    return _encode(event)


def replaced(session_id: str, generation: int) -> bytes:
    """`session.replaced`; `generation` is that of the socket that is told."""
    return local_event("session.replaced", session_id=session_id, attachment_generation=generation)


def resync_required(session_id: str, head_seq: int, *, openai: bool) -> bytes:
    """The entries after the cursor are gone: the client may resume from `head_seq`."""
    if openai:
        return local_error(
            "session_resync_required",
            f"events after the cursor are gone; resume with last_seq {head_seq}",
            head_seq=head_seq,
            openai=True,
        )
    return local_event("session.resync_required", session_id=session_id, reason="journal_gap", head_seq=head_seq)


def going_away(time_left_ms: int) -> bytes:
    return local_event("session.going_away", time_left_ms=time_left_ms)


def shard_error(event: bytes, *, openai: bool) -> tuple[str, bytes]:
    """The code of an `error` event that a shard rendered, and the event in this client's words."""
    told = _raw_object(event)
    told.setdefault("event_id", event_id())
    error = told.get("error")
    code = ""
    if isinstance(error, dict):
        code = str(error.get("code", ""))
        if code == "model_not_found":
            error["param"] = "model"
        if openai:
            error["code"] = openai_code(code)
    return code, _encode(told)
