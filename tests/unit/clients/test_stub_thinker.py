"""The stub thinker speaks chat completions as the services do, and refuses what they refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from clients.stub_thinker import StubThinker

pytestmark = pytest.mark.unit

USER = {"role": "user", "content": "the weather?"}
TOOL = {"type": "function", "function": {"name": "get_weather"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "sunny"}


@pytest.fixture
def thinker() -> Iterator[StubThinker]:
    with StubThinker() as running:
        yield running


def post(thinker: StubThinker, *messages: dict[str, Any], **more: Any) -> httpx.Response:
    body = {"model": "stub", "messages": list(messages), **more}
    return httpx.post(f"{thinker.url}/chat/completions", json=body, timeout=30)


def chunks(answer: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_a_call_is_streamed_in_parts_and_its_result_is_told(thinker: StubThinker) -> None:
    told = chunks(post(thinker, USER, tools=[TOOL], stream=True))
    deltas = [call for chunk in told for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert deltas[0]["function"]["name"] == "get_weather" and deltas[0]["id"]
    parts = [delta["function"]["arguments"] for delta in deltas]
    assert len(parts) > 2 and json.loads("".join(parts)) == {"city": "Paris"}
    assert told[-1]["choices"][0]["finish_reason"] == "tool_calls"
    whole = post(thinker, USER, CALLED, RESULT, tools=[TOOL]).json()
    assert whole["choices"][0]["message"]["content"] == "The answer is sunny."


@pytest.mark.parametrize(
    "messages",
    [
        (USER, RESULT),
        (USER, CALLED, USER),
        (USER, CALLED),
        (USER, CALLED, RESULT, RESULT),
        ({"role": "robot", "content": "x"},),
        ({"role": "user"},),
    ],
    ids=["no call", "unanswered", "unanswered at the end", "answered twice", "role", "no content"],
)
def test_what_the_services_refuse_is_refused(thinker: StubThinker, messages: tuple[dict[str, Any], ...]) -> None:
    refused = post(thinker, *messages)
    assert refused.status_code == 400 and refused.json()["error"]["message"]


def test_a_script_is_played_step_by_step(thinker: StubThinker) -> None:
    calls = [{"name": "a"}, {"name": "b", "arguments": "not json"}]
    thinker.script.extend([{"say": "one"}, {"status": 503}, {"calls": calls}, {"say": "it breaks here", "break": True}])
    assert post(thinker, USER).json()["choices"][0]["message"]["content"] == "one"
    assert post(thinker, USER).status_code == 503
    message = post(thinker, USER).json()["choices"][0]["message"]
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "a", "arguments": "{}"},
        {"name": "b", "arguments": "not json"},
    ]
    assert "[DONE]" not in post(thinker, USER, stream=True).text
    assert len(thinker.requests) == 4
