"""Pictures of the conversation: bounded, kept beside its items, given back to the model. SANS-I/O.

Rule 1. A picture is too large to be echoed and to be saved at every checkpoint: an item of the wire and of the state
        has it only if it is short. What is kept lives with the sound: a snapshot has it, a checkpoint has not, so
        a conversation that went on in another process has words and no pictures.
Rule 2. What there is no room for is refused before the item exists. Room comes back with `conversation.item.delete`.
"""

from __future__ import annotations

import msgspec

from duologue.protocol.duplex import Item, RealtimeProtocolError
from duologue.session.core.context import UNSET, SessionContext

MAX_PICTURES = 8
MAX_PICTURE_CHARS = 4 * 1024 * 1024
"""Of all pictures of a session, as data URLs."""
MAX_ECHOED_CHARS = 4096


def check(ctx: SessionContext, item: Item) -> None:
    """Raises RealtimeProtocolError: the model sees nothing, or there is no room."""
    urls = _urls(item)
    if not urls:
        return
    parts = () if item.content is UNSET else item.content
    param = next(f"item.content[{index}]" for index, part in enumerate(parts) if part.type == "input_image")
    if not ctx.capabilities.supports_image_input:
        raise RealtimeProtocolError("unsupported", "this model does not take images", param=param)
    kept = [url for one in ctx.state.sound.pictures.values() for url in one]
    if len(kept) + len(urls) > MAX_PICTURES:
        raise _no_room(f"a conversation has at most {MAX_PICTURES} images: delete an item first", param)
    if sum(map(len, (*kept, *urls))) > MAX_PICTURE_CHARS:
        raise _no_room(f"the images of a conversation have at most {MAX_PICTURE_CHARS} characters", param)


def _no_room(message: str, param: str) -> RealtimeProtocolError:
    return RealtimeProtocolError("input_backpressure", message, param=param, retryable=False)


def keep(ctx: SessionContext, item: Item) -> Item:
    """Put the pictures of an item aside; what is left is what everybody but the model is told."""
    urls = _urls(item)
    if not urls:
        return item
    if ctx.state.item_of(item.id) is not None:  # the oldest item goes when there are too many, even if it is new
        ctx.state.sound.pictures[item.id] = urls
    parts = () if item.content is UNSET else item.content
    bare = tuple(
        part
        if part.image_url is UNSET or len(part.image_url) <= MAX_ECHOED_CHARS
        else msgspec.structs.replace(part, image_url=UNSET)
        for part in parts
    )
    return msgspec.structs.replace(item, content=bare)


def restored(ctx: SessionContext, item: Item) -> Item:
    """An item as the model is given it."""
    urls = list(ctx.state.sound.pictures.get(item.id, ()))
    if not urls or item.content is UNSET:
        return item
    parts = tuple(
        msgspec.structs.replace(part, image_url=urls.pop(0)) if part.type == "input_image" and urls else part
        for part in item.content
    )
    return msgspec.structs.replace(item, content=parts)


def size(item: Item) -> int:
    """What the pictures of an item count against the input limit until they are looked at."""
    return sum(map(len, _urls(item)))


def forget(ctx: SessionContext, item_id: str) -> None:
    ctx.state.sound.pictures.pop(item_id, None)


def _urls(item: Item) -> tuple[str, ...]:
    parts = () if item.content is UNSET else item.content
    return tuple(part.image_url for part in parts if part.type == "input_image" and part.image_url is not UNSET)
