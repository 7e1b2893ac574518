"""Where a client connects from: the peer, or what proxies say that are trusted."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.gateway.remote import MAX_HOPS, TrustedProxies

pytestmark = pytest.mark.unit

PROXIES = TrustedProxies(["10.0.0.0/8", "192.0.2.7", "2001:db8::/32"])


def _said(*values: str) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"x"), *((b"x-forwarded-for", value.encode()) for value in values)]


@pytest.mark.parametrize(
    ("peer", "said", "client"),
    [
        ("203.0.113.5", ("198.51.100.1",), "203.0.113.5"),
        ("10.1.2.3", (), "10.1.2.3"),
        ("10.1.2.3", ("198.51.100.1",), "198.51.100.1"),
        ("10.1.2.3", ("1.1.1.1, 198.51.100.1, 192.0.2.7",), "198.51.100.1"),
        ("10.1.2.3", ("1.1.1.1", "198.51.100.1"), "198.51.100.1"),
        ("10.1.2.3", ("10.9.9.9, 192.0.2.7",), "10.9.9.9"),
        ("10.1.2.3", ("198.51.100.1:4711",), "198.51.100.1"),
        ("10.1.2.3", ("[2001:db9::1]:4711",), "2001:db9::1"),
        ("2001:db8::1", ("198.51.100.1",), "198.51.100.1"),
        ("::ffff:10.1.2.3", ("198.51.100.1",), "198.51.100.1"),
        ("10.1.2.3", ("198.51.100.1, <script>",), "10.1.2.3"),
        ("10.1.2.3", ("198.51.100.1, ",), "10.1.2.3"),
        ("", ("198.51.100.1",), ""),
    ],
)
def test_the_last_address_that_is_no_trusted_proxy_counts(peer: str, said: tuple[str, ...], client: str) -> None:
    assert PROXIES.client_of(peer, _said(*said)) == client


def test_without_trusted_proxies_nobody_is_believed() -> None:
    assert TrustedProxies().client_of("127.0.0.1", _said("198.51.100.1")) == "127.0.0.1"


def test_no_more_hops_are_looked_at_than_there_may_be_proxies() -> None:
    said = ["198.51.100.1", *["10.0.0.9"] * (MAX_HOPS + 5)]
    assert PROXIES.client_of("10.1.2.3", _said(", ".join(said))) == "10.0.0.9"


def test_what_is_no_address_is_no_setting() -> None:
    with pytest.raises(ValueError, match="balancer"):
        TrustedProxies(["balancer"])


@given(st.binary(max_size=400), st.sampled_from(["10.1.2.3", "203.0.113.5", "", "fe80::1%eth0", "not an address"]))
def test_whatever_is_said_the_answer_is_the_peer_or_an_address(said: bytes, peer: str) -> None:
    client = PROXIES.client_of(peer, [(b"x-forwarded-for", said)])
    assert client == peer or str(ip_address(client)) == client


@given(st.text(alphabet="0123456789abcdef.:[]%, ", max_size=200))
def test_what_looks_like_addresses_is_read_or_left(said: str) -> None:
    client = PROXIES.client_of("10.1.2.3", _said(said))
    assert ip_address(client)
