"""What must hold in the event log of any session, whatever was done to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

ORDER = [
    "response.created",
    "response.output_item.added",
    "response.content_part.added",
    "response.speak",
    "response.output_audio.delta",
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.done",
]
TERMINAL = ("session.closed", "session.expired")


def violations(events: Iterable[dict[str, Any]]) -> Iterator[str]:
    step: dict[str, int] = {}
    done: dict[str, str] = {}
    text: dict[str, str] = defaultdict(str)
    items: dict[str, list[str]] = defaultdict(list)
    ids: dict[str, int] = {}
    epoch, over = 0, ""
    for at, event in enumerate(events):
        name = event["type"]
        if over:
            yield f"{at}: {name} after {over}"
        over = name if name in TERMINAL else ""
        if event["event_id"] in ids:
            yield f"{at}: event_id used at {ids[event['event_id']]}"
        ids[event["event_id"]] = at
        if isinstance(event.get("epoch"), int):
            if event["epoch"] < epoch:
                yield f"{at}: epoch went back from {epoch} to {event['epoch']}"
            epoch = max(epoch, event["epoch"])
        if name.startswith("conversation.item.") and "item" in event:
            items[event["item"]["id"]].append(name.rsplit(".", 1)[1])
        if name == "conversation.item.deleted":
            items.pop(event["item_id"], None)
        response_id = event.get("response_id") or event.get("response", {}).get("id")
        if response_id is None or name in ("output_audio_buffer.cleared",):
            continue
        if name == "response.created":
            if response_id in step:
                yield f"{at}: response id used again"
            step[response_id] = 0
        if response_id not in step:
            yield f"{at}: {name} of a response that was never created"
            continue
        if response_id in done:
            yield f"{at}: {name} after its response.done"
        if name in ORDER and event.get("part", {}).get("type") != "text":
            if ORDER.index(name) < step[response_id]:
                yield f"{at}: {name} after {ORDER[step[response_id]]}"
            step[response_id] = max(step[response_id], ORDER.index(name))
        if name == "response.output_audio_transcript.delta":
            text[response_id] += event["delta"]
        if name == "response.output_audio_transcript.done" and event["transcript"] != text[response_id]:
            yield f"{at}: transcript is not the sum of its deltas"
        if name == "response.done":
            done[response_id] = event["response"]["status"]
    for item_id, seen in items.items():
        wanted = [name for name in ("added", "created", "done", "retrieved") if name in seen]
        told = [name for name in seen if name != "retrieved"]
        if told != [name for name in wanted if name != "retrieved"]:
            yield f"item {item_id}: {seen}"
    if over:
        yield from (f"{response_id} was open at the end" for response_id in step if response_id not in done)
