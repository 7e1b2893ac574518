"""What a client reads: server events, as text or bytes, of this server or of another; and its trace of them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from fuzz import hostile, mutators
from fuzz.client_frames import KNOWN
from fuzz.examples import examples
from fuzz.target import Target
from fuzz.trees import Pairs, write_json

from duologue.client.cursor import ResumeCursor
from duologue.client.trace import DuplexTrace
from duologue.protocol.duplex import UnknownEvent, event_from_realtime, render
from duologue.protocol.duplex.events import DuplexEvent


def check(data: bytes) -> bool:
    trace = DuplexTrace(clock=lambda: 0.0)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
    trace("<", text)
    list(trace)
    read = [_read(data), _read(text)]
    return all(read)


def _read(frame: bytes | str) -> bool:
    try:
        event = event_from_realtime(frame)
    except msgspec.DecodeError:
        return False
    seq = event.server_event_seq
    assert seq is msgspec.UNSET or type(seq) is int, "a number that is none"
    ResumeCursor().is_new(None if seq is msgspec.UNSET else seq)
    if not isinstance(event, UnknownEvent):
        body = render(event)
        assert render(event_from_realtime(body)) == body, "an event does not come back the same"
    return True


def seeds() -> Iterator[bytes]:
    for tree in examples(DuplexEvent, KNOWN, encoded=True):
        yield write_json(tree)
        yield write_json(Pairs([*tree, ("server_event_seq", 7)]))
    for value in hostile.JSON:
        yield write_json(value)
        for kind in ("session.created", "response.done", "new.kind"):
            for name in ("server_event_seq", "response", "session"):
                yield write_json(Pairs([("type", kind), (name, value)]))


TARGET = Target(
    "server-events",
    check,
    seeds,
    mutators.of_json(seeds),
    ("duologue.protocol.duplex.render", "duologue.protocol.duplex.events", "duologue.client.trace"),
)
