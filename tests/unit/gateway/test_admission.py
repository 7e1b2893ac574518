"""Who is let in, and what the others are answered."""

from __future__ import annotations

from typing import Any

import pytest

from duologue.gateway.admission import ANONYMOUS, Admission, KeyRing, Place, Refusal
from duologue.gateway.handshake import Offer
from duologue.protocol.duplex import Dialect

pytestmark = pytest.mark.unit


def offer(**fields: Any) -> Offer:
    return Offer(path="/v1/realtime", dialect=Dialect.openai, **{"host": "api.example", **fields})


def judged(admission: Admission, asked: Offer, **place: Any) -> tuple[int, str] | str:
    answer = admission.judge(asked, lambda principal: Place(**place))
    return (answer.status, answer.code) if isinstance(answer, Refusal) else answer


OPEN = Admission(KeyRing())
KEYED = Admission(KeyRing(["one", "two"]), ["https://app.example/"], max_per_key=2)


def test_without_keys_everybody_is_anonymous() -> None:
    assert judged(OPEN, offer()) == ANONYMOUS
    assert judged(OPEN, offer(key="whatever")) == ANONYMOUS


def test_with_keys_each_is_somebody_and_none_is_told() -> None:
    one, two = judged(KEYED, offer(key="one")), judged(KEYED, offer(key="two"))
    assert one != two
    assert "one" not in one
    assert judged(KEYED, offer(key="three")) == (401, "invalid_api_key")
    assert judged(KEYED, offer()) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    ("origin", "host", "good"),
    [
        ("", "api.example", True),
        ("https://api.example", "api.example", True),
        ("https://api.example:443", "API.example", True),
        ("http://127.0.0.1:8080", "127.0.0.1:8080", True),
        ("http://127.0.0.1:8081", "127.0.0.1:8080", False),
        ("https://app.example", "api.example", True),
        ("https://evil.example", "api.example", False),
        ("https://api.example.evil.example", "api.example", False),
        ("null", "null", False),
        ("https://[bad", "api.example", False),
        ("file://api.example", "api.example", False),
    ],
)
def test_an_origin_is_absent_ours_or_allowed(origin: str, host: str, good: bool) -> None:
    answer = judged(KEYED, offer(key="one", origin=origin, host=host))
    assert (answer == (403, "origin_not_allowed")) is not good


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ({"draining": True}, "server_draining"),
        ({"waiting": 256}, "resource_exhausted"),
        ({"free": False}, "resource_exhausted"),
        ({"model_free": False}, "resource_exhausted"),
        ({"of_key": 2}, "resource_exhausted"),
        ({"store_full": True}, "resource_exhausted"),
    ],
    ids=str,
)
def test_where_there_is_no_room_the_client_is_told_when_to_come_again(place: dict[str, Any], code: str) -> None:
    answer = KEYED.judge(offer(key="one"), lambda principal: Place(**place))
    assert isinstance(answer, Refusal)
    assert (answer.status, answer.code) == (503, code)
    assert answer.retry_after_s > 0


def test_who_may_be_here_to_resume_needs_no_place() -> None:
    full = {"free": False, "model_free": False, "of_key": 9, "store_full": True}
    assert judged(KEYED, offer(key="one", no_autostart=True), **full) != (503, "resource_exhausted")
    assert judged(KEYED, offer(key="one", no_autostart=True), waiting=256) == (503, "resource_exhausted")
    assert judged(KEYED, offer(key="bad", no_autostart=True)) == (401, "invalid_api_key")


def test_the_key_is_judged_before_the_drain() -> None:
    assert judged(KEYED, offer(), draining=True) == (401, "invalid_api_key")
