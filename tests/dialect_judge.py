"""Every event of the OpenAI dialects that any test causes, judged by the `openai` package's own models.

Installed for all tests by `conftest.py`, in the one place where a session's events are projected, and in the test
clients for what a gateway says by itself. The core turns an exception into `internal_error`, so what is wrong is
kept here and fails the test when it ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, get_args
from urllib.parse import parse_qsl, urlsplit

from openai.types.beta.realtime import RealtimeServerEvent as BetaServerEvent
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter, ValidationError

from duologue.protocol.duplex import Dialect, DuplexEvent, SessionView, project


def members(union: Any) -> dict[str, Any]:
    """The models of a union of server events, by wire type."""
    kinds = get_args(get_args(union)[0])
    return {get_args(kind.model_fields["type"].annotation)[0]: kind for kind in kinds}


GA = members(RealtimeServerEvent)
BETA = members(BetaServerEvent)
_GA_ADAPTER: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)

#: What the beta calls differently, by its GA name. `None`: the beta has no such event.
BETA_NAMES: dict[str, str | None] = {
    "conversation.item.added": "conversation.item.created",
    "conversation.item.done": None,
    "response.output_audio.delta": "response.audio.delta",
    "response.output_audio.done": "response.audio.done",
    "response.output_audio_transcript.delta": "response.audio_transcript.delta",
    "response.output_audio_transcript.done": "response.audio_transcript.done",
    "response.output_text.delta": "response.text.delta",
    "response.output_text.done": "response.text.done",
}
_IN_BETA = {name for name in (BETA_NAMES.get(ga, ga) for ga in GA) if name} - {"conversation.created"}

found: list[str] = []
"""What was wrong since somebody looked."""
judged = {Dialect.openai: 0, Dialect.openai_beta: 0}
"""How many events of each dialect were looked at in this process."""


def complaint(event: dict[str, Any], dialect: Dialect) -> str:
    """What the package has against one event of a dialect; "": nothing."""
    name = event["type"]
    if dialect is Dialect.openai:
        if name not in GA:
            return f"{name} is no event of the GA API"
        try:
            GA[name].model_validate(event)  # the union as such would tell about every member
        except ValidationError as error:
            return f"{name}: {error}"
        read = _GA_ADAPTER.validate_python(event)
        return "" if type(read) is GA[name] else f"{name} is read as {type(read).__name__}"
    if name not in _IN_BETA:
        return f"{name} is no event of the beta API"
    kind = BETA.get(name)
    if kind is not None:
        try:
            kind.model_validate(_without_model(event))
        except ValidationError as error:
            return f"{name} (beta): {error}"
    return ""


def _without_model(event: dict[str, Any]) -> dict[str, Any]:
    """The beta's own types know OpenAI's models by name, and no others."""
    if "session" not in event:
        return event
    return {**event, "session": {key: value for key, value in event["session"].items() if key != "model"}}


def judge(bodies: Iterable[bytes | str], dialect: Dialect) -> None:
    """Look at events as they would be sent."""
    if dialect is Dialect.duplex:
        return
    for body in bodies:
        judged[dialect] += 1
        told = complaint(json.loads(body), dialect)
        if told and len(found) < 20:
            found.append(told)


def judging(event: DuplexEvent, dialect: Dialect, view: SessionView) -> list[bytes]:
    """`project`, looked at."""
    bodies = project(event, dialect, view)
    judge(bodies, dialect)
    return bodies


def dialect_of(path: str, headers: Mapping[str, str]) -> Dialect:
    """The dialect that a client asked for."""
    url = urlsplit(path)
    return Dialect.choose(url.path, dict(parse_qsl(url.query)), headers)
