"""An item of the conversation in the words of the Realtime API. SANS-I/O.

Ids are left out: they are this session's, and some servers take no long ones.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from duologue.protocol.duplex import ContentPart, Item


def upstream_item(item: Item) -> dict[str, Any]:
    """The `item` of a `conversation.item.create`."""
    told: dict[str, Any] = {"type": item.type}
    for name in ("role", "call_id", "name", "arguments", "output"):
        value = getattr(item, name)
        if value is not UNSET:
            told[name] = value
    if item.type == "message":
        parts = () if item.content is UNSET else item.content
        told["content"] = [part for part in (_part(part, told.get("role")) for part in parts) if part]
    return told


def _part(part: ContentPart, role: object) -> dict[str, Any]:
    if part.type == "input_image":
        return {"type": "input_image", "image_url": part.image_url}
    text = (part.text or "") + (part.transcript or "")
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": kind, "text": text} if text else {}
