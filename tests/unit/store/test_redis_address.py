"""Where a server listens, from its URL."""

from __future__ import annotations

import pytest

from duologue.store.redis_address import RedisAddress, parse_address

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://host", RedisAddress(host="host")),
        ("redis://host:7000/3", RedisAddress(host="host", port=7000, database=3)),
        ("redis://:p%40ss@host", RedisAddress(host="host", password="p@ss")),
        ("rediss://me:secret@host", RedisAddress(host="host", username="me", password="secret", tls=True)),
        ("redis://[::1]:1", RedisAddress(host="::1", port=1)),
        ("unix:///run/a.sock", RedisAddress(path="/run/a.sock")),
        ("unix://:pw@/run/a%20b.sock?db=2", RedisAddress(path="/run/a b.sock", password="pw", database=2)),
    ],
)
def test_urls(url: str, address: RedisAddress) -> None:
    assert parse_address(url) == address


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("http://host", "http is not redis"),
        ("host:6379", "is not redis"),
        ("redis://", "needs a host"),
        ("unix://", "needs the path"),
        ("redis://host/x", "'x' is not a database number"),
    ],
)
def test_what_is_wrong_is_named(url: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        parse_address(url)


def test_the_password_is_never_in_the_message() -> None:
    with pytest.raises(ValueError) as caught:
        parse_address("http://:hush@host")
    assert "hush" not in str(caught.value)


def test_greetings() -> None:
    assert RedisAddress(host="h").greeting() == ()
    assert RedisAddress(host="h", password="p", database=4).greeting() == (("AUTH", "p"), ("SELECT", 4))
    assert RedisAddress(host="h", username="u", password="p").greeting() == (("AUTH", "u", "p"),)
