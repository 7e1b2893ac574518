"""Whether a model ends its turns is asked of the server."""

from __future__ import annotations

import json

import httpx
import pytest

from duologue.cli.turns import ends_its_turns, models_url

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("url", "models"),
    [
        ("ws://h:8080", "http://h:8080/v1/models"),
        ("h:8080", "http://h:8080/v1/models"),
        ("wss://h/v1/duplex?x=1", "https://h/v1/models"),
        ("https://h/behind/v1/realtime", "https://h/behind/v1/models"),
    ],
)
def test_the_models_are_beside_the_socket(url: str, models: str) -> None:
    assert models_url(url) == models


def _answer(monkeypatch: pytest.MonkeyPatch, status: int, body: str) -> list[object]:
    asked: list[object] = []

    def get(url: str, *, headers: dict[str, str], timeout: float) -> httpx.Response:
        asked.append((url, headers))
        return httpx.Response(status, text=body, request=httpx.Request("GET", url))

    monkeypatch.setattr(httpx, "get", get)
    return asked


def _listed(name: str, native: bool) -> str:
    return json.dumps({"data": [{"id": name, "capabilities": {"supports_model_native_turn_policy": native}}]})


def test_a_model_that_waits_for_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _answer(monkeypatch, 200, _listed("m", False))
    assert not ends_its_turns("ws://h", "m", "k")
    assert asked == [("http://h/v1/models", {"Authorization": "Bearer k"})]


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, _listed("m", True)),
        (200, _listed("other", False)),
        (200, "<html>"),
        (200, '{"data":[{"id":"m","capabilities":{}}]}'),
        (401, _listed("m", False)),
    ],
    ids=["it does", "another", "no JSON", "not said", "refused"],
)
def test_else_it_is_left_to_the_model(monkeypatch: pytest.MonkeyPatch, status: int, body: str) -> None:
    _answer(monkeypatch, status, body)
    assert ends_its_turns("ws://h", "m", None)


def test_so_it_is_where_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(*_: object, **__: object) -> httpx.Response:
        raise httpx.ConnectError("nobody there")

    monkeypatch.setattr(httpx, "get", get)
    assert ends_its_turns("ws://h", "m", None)
