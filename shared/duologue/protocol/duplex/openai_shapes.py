"""Parts of events in the terms of the OpenAI dialects: items, parts, responses, endings, errors."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from duologue.protocol.duplex.session_view import SessionView, beta_modalities, ga_format, ga_modalities
from duologue.protocol.realtime.errors import error_type_of, openai_code
from duologue.protocol.realtime.events import ErrorDetail
from duologue.protocol.realtime.items import ContentPart, Item, Response
from duologue.protocol.realtime.json_types import JsonObject

_CANCEL_REASONS = {
    "barge_in": "turn_detected",
    "turn_detected": "turn_detected",
    "client_cancelled": "client_cancelled",
    "output_audio_buffer_clear": "client_cancelled",
    "session_closed": "client_cancelled",
}
_ITEM_STATUSES = frozenset({"completed", "incomplete", "in_progress"})
_INCOMPLETE_REASONS = frozenset({"max_output_tokens", "content_filter"})
_BETA_PARTS = {"output_audio": "audio", "output_text": "text"}

# Stock clients read the counts without looking whether they are there; a model that counts nothing has none.
_NO_USAGE: JsonObject = {
    "total_tokens": 0,
    "input_tokens": 0,
    "output_tokens": 0,
    "input_token_details": {"text_tokens": 0, "audio_tokens": 0, "cached_tokens": 0},
    "output_token_details": {"text_tokens": 0, "audio_tokens": 0},
}


def conversation_id(session_id: str) -> str:
    """There is one conversation in a session; its id follows from the session's."""
    return f"conv_{session_id.removeprefix('duplex-')}"


def ga_item(item: Item) -> Item:
    """Without duplex keys; an item that was cancelled or has failed is incomplete."""
    status = item.status if item.status in _ITEM_STATUSES else "incomplete"
    content = item.content if item.content is UNSET else tuple(_bare(part) for part in item.content)
    return msgspec.structs.replace(item, status=status, content=content)


def _bare(part: ContentPart) -> ContentPart:
    return ContentPart(type=part.type, text=part.text, transcript=part.transcript, image_url=part.image_url)


def beta_item(item: Item) -> Item:
    """As in GA, with the part names of the beta."""
    bare = ga_item(item)
    if bare.content is UNSET:
        return bare
    content = tuple(msgspec.structs.replace(part, type=_BETA_PARTS.get(part.type, part.type)) for part in bare.content)
    return msgspec.structs.replace(bare, content=content)


def status_details(response: Response) -> JsonObject | None:
    """How a response ended, in the words that GA knows."""
    details = response.status_details
    if details is None or response.status in ("completed", "in_progress"):
        return None
    told: JsonObject = {"type": response.status}
    if response.status == "cancelled":
        told["reason"] = _CANCEL_REASONS.get(details.reason, "client_cancelled")
    elif response.status == "failed":
        told["error"] = {"type": error_type_of(details.reason), "code": details.reason}
    elif details.reason in _INCOMPLETE_REASONS:
        told["reason"] = details.reason
    return told


def _metadata(response: Response) -> JsonObject | None:
    """What the client gave: GA metadata is text by name."""
    if response.metadata is None:
        return None
    return {key: value for key, value in response.metadata.items() if isinstance(value, str)} or None


def _common(response: Response, view: SessionView) -> JsonObject:
    told: JsonObject = {
        "object": "realtime.response",
        "id": response.id,
        "status": response.status,
        "status_details": status_details(response),
        "conversation_id": conversation_id(view.session_id),
        "metadata": _metadata(response),
    }
    if response.status != "in_progress":
        told["usage"] = _NO_USAGE if response.usage is UNSET else response.usage
    else:
        told["usage"] = None
    return told


def ga_response(response: Response, view: SessionView) -> JsonObject:
    config = view.config
    modalities = config.modalities if response.modalities is UNSET else response.modalities
    return _common(response, view) | {
        "output": [ga_item(item) for item in response.output],
        "output_modalities": ga_modalities(modalities),
        "max_output_tokens": config.max_output_tokens or "inf",
        "audio": {"output": {"format": ga_format(config.output_format), "voice": config.voice}},
    }


def beta_response(response: Response, view: SessionView) -> JsonObject:
    config = view.config
    modalities = config.modalities if response.modalities is UNSET else response.modalities
    return _common(response, view) | {
        "output": [beta_item(item) for item in response.output],
        "modalities": beta_modalities(modalities),
        "voice": config.voice,
        "output_audio_format": config.output_format.name,
        "temperature": 0.8 if config.temperature is None else config.temperature,
        "max_output_tokens": config.max_output_tokens or "inf",
    }


def openai_error(error: ErrorDetail) -> ErrorDetail:
    return msgspec.structs.replace(error, code=openai_code(error.code))
