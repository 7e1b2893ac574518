"""Items as clients write them: checked, folded into one spelling, audio taken out."""

from __future__ import annotations

import binascii
import re
from typing import Any

import msgspec
from msgspec import UNSET

from duologue.protocol.realtime.commands import ItemAudio
from duologue.protocol.realtime.errors import RealtimeProtocolError
from duologue.protocol.realtime.formats import check_rate, read_format
from duologue.protocol.realtime.items import ContentPart, Item
from duologue.protocol.realtime.json_types import JsonObject
from duologue.protocol.realtime.limits import ItemId, check_size
from duologue.protocol.realtime.strict import read

# (role, type as written) -> type as kept
_PART_TYPES = {
    ("user", "input_text"): "input_text",
    ("user", "text"): "input_text",
    ("user", "input_audio"): "input_audio",
    ("user", "audio"): "input_audio",
    ("user", "input_image"): "input_image",
    ("system", "input_text"): "input_text",
    ("system", "text"): "input_text",
    ("assistant", "output_text"): "output_text",
    ("assistant", "text"): "output_text",
    ("assistant", "output_audio"): "output_audio",
    ("assistant", "audio"): "output_audio",
}
_ROLES = ("user", "assistant", "system")
_STATUSES = ("completed", "incomplete", "in_progress")
_IMAGE_URL = re.compile(r"data:image/(jpeg|jpg|png);base64,(?P<data>[A-Za-z0-9+/]+={0,2})", re.IGNORECASE)
_IMAGE_HEADS = (b"\xff\xd8", b"\x89PNG")


class _WrittenItem(msgspec.Struct, kw_only=True):
    id: ItemId | None = None
    type: str | None = None
    role: str | None = None
    status: str | None = None
    content: list[JsonObject] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Any = None


class _WrittenPart(msgspec.Struct, kw_only=True):
    type: str
    text: str | None = None
    transcript: str | None = None
    audio: str | None = None
    format: str | JsonObject | None = None
    sample_rate_hz: int | float | None = None
    sample_rate: int | float | None = None
    image_url: str | None = None


def read_item(item: JsonObject) -> tuple[Item, tuple[ItemAudio, ...]]:
    """A created item and the audio of its parts.

    Raises RealtimeProtocolError with `param` relative to the command ("item.content[0].text").
    """
    try:
        read_as, audio = _read(read(item, _WrittenItem))
    except RealtimeProtocolError as error:
        raise error.under("item") from None
    check_size(_without_images(read_as), "item")
    return read_as, audio


def _without_images(item: Item) -> Item:
    """What of an item is echoed: images have a bound of their own, in the session."""
    if item.content is UNSET or not any(part.type == "input_image" for part in item.content):
        return item
    parts = tuple(msgspec.structs.replace(part, image_url=UNSET) for part in item.content)
    return msgspec.structs.replace(item, content=parts)


def _read(written: _WrittenItem) -> tuple[Item, tuple[ItemAudio, ...]]:
    kind = written.type or "message"
    if kind == "message":
        return _message(written)
    if kind == "function_call":
        return _function_call(written), ()
    if kind == "function_call_output":
        return _function_call_output(written), ()
    raise RealtimeProtocolError("bad_event", f"{kind[:40]!r} items cannot be created", param="type")


def _message(written: _WrittenItem) -> tuple[Item, tuple[ItemAudio, ...]]:
    role = written.role or "user"
    if role not in _ROLES:
        raise RealtimeProtocolError("bad_event", f"role must be one of {', '.join(_ROLES)}", param="role")
    parts: list[ContentPart] = []
    audio: list[ItemAudio] = []
    for index, data in enumerate(written.content or ()):
        try:
            part, sound = _part(data, role, index)
        except RealtimeProtocolError as error:
            raise error.under(f"content[{index}]") from None
        parts.append(part)
        if sound is not None:
            audio.append(sound)
    item = Item(id=written.id or "", role=role, status=_status(written), content=tuple(parts))
    return item, tuple(audio)


def _function_call(written: _WrittenItem) -> Item:
    for field in ("call_id", "name"):
        if not getattr(written, field):
            raise RealtimeProtocolError("bad_event", f"{field} is required", param=field)
    return Item(
        id=written.id or "",
        type="function_call",
        status=_status(written),
        call_id=written.call_id or "",
        name=written.name or "",
        arguments=written.arguments or "{}",
    )


def _function_call_output(written: _WrittenItem) -> Item:
    code = "invalid_function_call_output"
    if not written.call_id:
        raise RealtimeProtocolError(code, "call_id is required", param="call_id")
    if not isinstance(written.output, str):
        raise RealtimeProtocolError(code, "output must be a string", param="output")
    return Item(
        id=written.id or "",
        type="function_call_output",
        status=_status(written),
        call_id=written.call_id,
        output=written.output,
    )


def _status(written: _WrittenItem) -> str:
    """What a client writes is finished; a status that items do not have is refused."""
    if written.status is None:
        return "completed"
    if written.status not in _STATUSES:
        raise RealtimeProtocolError("bad_event", f"status must be one of {', '.join(_STATUSES)}", param="status")
    return written.status


def _part(data: JsonObject, role: str, index: int) -> tuple[ContentPart, ItemAudio | None]:
    if data.get("type") == "input_image" and role != "user":
        raise RealtimeProtocolError("invalid_image", "only a user can send images", param="type")
    written = read(data, _WrittenPart)
    kind = _PART_TYPES.get((role, written.type))
    if kind is None:
        raise RealtimeProtocolError(
            "bad_event", f"{written.type[:40]!r} is no content of a {role} message", param="type"
        )
    if kind == "input_image":
        return ContentPart(type=kind, image_url=_image(written.image_url)), None
    if kind in ("input_text", "output_text"):
        if written.text is None:
            raise RealtimeProtocolError("bad_event", "text is required", param="text")
        return ContentPart(type=kind, text=written.text), None
    part = ContentPart(type=kind, transcript=written.transcript)
    if kind == "output_audio":  # only what was said can be restored, not its sound
        return part, None
    return part, _sound(written, index)


def _sound(written: _WrittenPart, index: int) -> ItemAudio:
    if not written.audio:
        raise RealtimeProtocolError("bad_event", "audio is required", param="audio")
    name, rate = (None, None) if written.format is None else read_format(written.format)
    for param in ("sample_rate_hz", "sample_rate"):
        value = getattr(written, param)
        if value is not None:
            rate = check_rate(value, param)
            break
    audio = decode_base64(written.audio)
    refuse_file(audio)
    return ItemAudio(content_index=index, audio=audio, format=name, sample_rate_hz=rate)


def refuse_file(audio: bytes) -> None:
    """A WAV file is no input format: its header, played as samples, is a click, and its rate may be another."""
    if audio[:4] == b"RIFF" and audio[8:12] == b"WAVE":
        raise RealtimeProtocolError("bad_audio", "audio is a WAV file; send its samples alone", param="audio")


def decode_base64(text: str, *, param: str = "audio", code: str = "bad_audio") -> bytes:
    """Strict base64 (alphabet, padding, no white space), or the coded error."""
    try:
        if len(text) % 4 == 0 and not text.endswith("==="):  # Python's strict mode takes any excess of padding
            return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        pass
    raise RealtimeProtocolError(code, f"{param} is no strict base64", param=param)


def _image(url: str | None) -> str:
    """A data URL of a JPEG or PNG, judged by its first bytes."""
    found = _IMAGE_URL.fullmatch(url or "")
    if found is None or len(found["data"]) % 4 or not is_picture(found["data"]):
        raise RealtimeProtocolError("invalid_image", "image_url must be a JPEG or PNG data URL", param="image_url")
    return found[0]


def is_picture(base64: str) -> bool:
    """Whether base64 text starts as a JPEG or a PNG."""
    try:
        head = binascii.a2b_base64(base64[:64][: len(base64[:64]) // 4 * 4], strict_mode=True)
    except ValueError:
        return False
    return head.startswith(_IMAGE_HEADS)
