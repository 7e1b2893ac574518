"""What is read from an upgrade request."""

from __future__ import annotations

import pytest

from duologue.gateway.handshake import Offer, read_offer
from duologue.protocol.duplex import Dialect

pytestmark = pytest.mark.unit


def read(path: str = "/v1/realtime", query: str = "", *subprotocols: str, **headers: str) -> Offer:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return read_offer(path, query.encode(), raw, subprotocols)


@pytest.mark.parametrize(
    ("path", "query", "beta", "dialect"),
    [
        ("/v1/realtime", "", "", Dialect.openai),
        ("/v1/realtime", "duplex=0", "", Dialect.openai),
        ("/v1/realtime", "duplex=TRUE", "realtime=v1", Dialect.duplex),
        ("/v1/duplex", "", "", Dialect.duplex),
        ("/v1/realtime", "", "realtime=v1", Dialect.openai_beta),
    ],
)
def test_path_query_and_header_choose_the_dialect(path: str, query: str, beta: str, dialect: Dialect) -> None:
    assert read(path, query, OpenAI_Beta=beta).dialect is dialect


@pytest.mark.parametrize(
    ("query", "resume_only", "no_autostart"),
    [
        ("resume=1", True, False),
        ("resume=YES", True, False),
        ("resume=maybe", False, False),
        ("autostart=0", False, True),
        ("autostart=%20off", False, True),
        ("autostart=1", False, False),
        ("", False, False),
    ],
)
def test_flags_are_lenient_about_spelling(query: str, resume_only: bool, no_autostart: bool) -> None:
    offer = read("/v1/duplex", query)
    assert (offer.resume_only, offer.no_autostart) == (resume_only, no_autostart)
    assert offer.may_resume is (resume_only or no_autostart)


def test_a_key_comes_in_the_header_or_as_a_subprotocol() -> None:
    assert read(Authorization="Bearer  abc ").key == "abc"
    assert read(Authorization="Basic abc").key == ""
    offer = read("/v1/realtime", "", "realtime", "openai-insecure-api-key.xyz")
    assert (offer.key, offer.subprotocol) == ("xyz", "realtime")
    assert read("/v1/realtime", "", "other").subprotocol is None


def test_an_offer_shows_no_secret() -> None:
    offer = read("/v1/realtime", "resume_token=t0ken&model=m", Authorization="Bearer s3cret")
    assert "t0ken" not in repr(offer)
    assert "s3cret" not in repr(offer)


def test_a_resume_by_query_is_for_the_openai_dialects() -> None:
    query = "resume_session=s&resume_token=t&last_seq=3&last_seq=9"
    assert read(query=query).resume == {"resume_session": "s", "resume_token": "t", "last_seq": "3"}
    assert read("/v1/duplex", query).resume is None
    assert read(query="model=m").resume is None
