"""The ports on which a temporary system listens."""

from __future__ import annotations

import contextlib
import random
import socket

import pytest

from duologue.cli.temporary import FIRST_OUTGOING_PORT, LOWEST_PORT, free_port


def test_a_free_port_and_those_behind_it_can_be_bound() -> None:
    with contextlib.ExitStack() as stack:
        port = free_port(3)
        for n in range(4):
            stack.enter_context(socket.socket()).bind(("127.0.0.1", port + n))


def test_no_outgoing_connection_can_be_given_the_port() -> None:
    for _ in range(200):
        assert LOWEST_PORT <= free_port(3) < FIRST_OUTGOING_PORT - 3


def test_a_port_with_a_taken_one_behind_it_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_port(8)
    drawn = iter((first, first + 4))
    monkeypatch.setattr(random, "randrange", lambda *_: next(drawn))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first + 2))
        assert free_port(3) == first + 4
