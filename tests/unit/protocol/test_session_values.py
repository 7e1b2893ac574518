"""Values of a session object that are wrong: one coded error that names the field, and nothing has changed."""

from __future__ import annotations

from typing import Any

import dialect_judge
import pytest
from unit.session.core.session_world import World, pick

from duologue.protocol import duplex as p
from duologue.protocol.duplex import Dialect, RealtimeProtocolError, SessionUpdate

pytestmark = pytest.mark.unit

OPENAI = (Dialect.openai, Dialect.openai_beta)


@pytest.mark.parametrize("dialect", list(Dialect))
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("idle_timeout_s", value) for value in (-1, -0.5, 2e9, "5", True)),
        *(("max_session_s", value) for value in (0, 0.0, -1, 2e9, "5", False)),
        *(("disconnect_grace_s", value) for value in (-1, 2e9, "5", False)),
        *(("overflow_policy", value) for value in ("", "drop", 5)),
        *(("overlap_barge_in_ms", value) for value in (-1, "5", True)),
    ],
)
def test_a_limit_that_is_none_is_refused_by_name(dialect: Dialect, field: str, value: object) -> None:
    with pytest.raises(RealtimeProtocolError) as refused:
        p.SessionConfig.open({field: value}, dialect=dialect, model="m")
    assert refused.value.param == f"session.{field}"
    assert refused.value.code == ("invalid_session_config" if dialect is Dialect.duplex else "bad_event")


def test_what_is_left_to_the_server_and_what_is_nothing() -> None:
    """Null is the server's value everywhere. 0 is no timeout, which means the server's; as a grace it is none."""
    limits = p.SessionLimits(idle_timeout_s=200, max_session_s=600, disconnect_grace_s=20)

    def opened(**session: Any) -> p.SessionConfig:
        return p.SessionConfig.open(session, dialect=Dialect.duplex, model="m", limits=limits)

    left = opened(idle_timeout_s=None, max_session_s=None, disconnect_grace_s=None)
    assert (left.idle_timeout_s, left.max_session_s, left.disconnect_grace_s) == (200, 600, 20)
    assert opened(idle_timeout_s=0).idle_timeout_s == 200
    assert opened(disconnect_grace_s=0).disconnect_grace_s == 0


#: By field of the session object as it is written: what the published types know,
KNOWN: dict[str, list[Any]] = {
    "modalities": [["text"], ["audio", "text"], None],
    "output_modalities": [["audio"]],
    "tool_choice": ["auto", "required", None],
    "tools": [[], [{"type": "function", "name": "f", "parameters": {}}], [{"name": "f"}]],
    "include": [["item.input_audio_transcription.logprobs"], []],
    "truncation": ["auto", "disabled", {"type": "retention_ratio", "retention_ratio": 0.5}],
    "tracing": ["auto", None, {"workflow_name": "w"}],
    "prompt": [{"id": "p"}, {"id": "p", "version": "1"}],
    "input_audio_transcription": [{"model": "m", "language": "en"}, {}, None],
    "input_audio_noise_reduction": [{"type": "near_field"}, None],
    "audio": [{"input": {"noise_reduction": {"type": "far_field"}, "transcription": {"model": "m"}}}],
}
#: and what one of them, or both, do not.
ODD: dict[str, list[Any]] = {
    "modalities": [[], ["smell"], ["text", "smell"]],
    "output_modalities": [[], ["video"]],
    "tool_choice": ["sometimes", {}, {"type": "x"}, {"type": "function"}, {"type": "mcp"}]
    + [{"type": "function", "name": "f"}, {"type": "mcp", "server_label": "s"}],
    "tools": [[{"type": "function", "name": 7}], [{"type": "shovel", "name": "f"}], [{"type": "mcp"}]]
    + [[{"name": "f"}, {"description": 5}], [{"type": "mcp", "server_label": "s", "name": "m"}]],
    "include": [["everything"]],
    "truncation": ["x", {"type": "retention_ratio"}, {"type": "retention_ratio", "retention_ratio": 2}],
    "tracing": ["x", {"workflow_name": 5}],
    "prompt": [{"version": "1"}, {"id": 5}],
    "input_audio_transcription": [{"model": 5}],
    "input_audio_noise_reduction": [{"type": "loud"}],
    "audio": [{"input": {"noise_reduction": {"type": "loud"}}}, {"input": {"transcription": {"prompt": 5}}}],
}


def each(values: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    return [(field, value) for field, some in values.items() for value in some]


@pytest.mark.parametrize("dialect", OPENAI)
@pytest.mark.parametrize(("field", "value"), each(KNOWN) + each(ODD))
def test_what_is_echoed_is_what_a_strict_client_reads(dialect: Dialect, field: str, value: object) -> None:
    """Or it is refused by name, and nothing has changed. (The judge of all tests reads each echo, too.)"""
    world = World(dialect=dialect)
    before = world.machine.session_object()
    (answer,) = world.send(SessionUpdate(session={field: value, "voice": "alto"}, event_id="e"))
    if answer["type"] == "session.updated":
        assert dialect_judge.complaint(answer, dialect) == ""
        return
    assert answer["error"]["param"].startswith(f"session.{field}") and answer["error"]["event_id"] == "e"
    assert world.machine.session_object() == before


@pytest.mark.parametrize("dialect", OPENAI)
def test_what_the_published_types_know_is_taken_and_the_rest_is_not(dialect: Dialect) -> None:
    assert [known for known in each(KNOWN) if _refused(dialect, *known)] == []
    refused = sum(_refused(dialect, *odd) for odd in each(ODD))
    assert refused >= (len(each(ODD)) - 3 if dialect is Dialect.openai else 15)


def _refused(dialect: Dialect, field: str, value: object) -> bool:
    try:
        p.SessionConfig.provisional(dialect).updated({field: value})
    except RealtimeProtocolError:
        return True
    return False


def test_the_duplex_dialect_echoes_what_it_was_told() -> None:
    odd: dict[str, Any] = {"tool_choice": "sometimes", "truncation": "x", "include": ["everything"]}
    (told,) = pick(World(**odd).events, "session.updated")
    assert told["session"]["tool_choice"] == "sometimes"
