"""What is peculiar to the in-memory adapter; the rest is in the contract suite."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from duologue.fence import DeliveryId, Owner
from duologue.store.memory import MemoryServer, MemoryStore, run_now
from duologue.store.memory_commands import CommandError, MemoryCommands
from duologue.store.ports import Appended, Head, StoreUnavailable
from duologue.store.scripts import Script

pytestmark = pytest.mark.unit


def test_calls_run_at_once_without_an_event_loop() -> None:
    store = MemoryStore(lambda: 5.0)
    assert isinstance(run_now(store.journal.claim("s", owner=Owner(1, "a"))), Head)


def test_run_now_refuses_what_would_wait() -> None:
    with pytest.raises(RuntimeError, match="waits for something"):
        run_now(asyncio.sleep(0))


def test_outcomes_are_deferred_as_told() -> None:
    later: list[Callable[[], None]] = []
    outcomes: list[object] = []
    store = MemoryStore(lambda: 5.0, defer=later.append)
    batch = [(DeliveryId(1, 1), b"{}")]
    assert store.appender.submit("s", Owner(1, "a"), 1, 1, batch, outcomes.append)
    assert outcomes == []
    later.pop()()
    assert outcomes == [Appended(1, DeliveryId(1, 1))]


@pytest.mark.parametrize("source", [b"return redis.call('GET', 'x')", b"return nil + 1"])
def test_a_failing_script_is_unavailable(source: bytes) -> None:
    with pytest.raises(StoreUnavailable, match="broken"):
        MemoryServer().evaluate(Script("broken", source, b"sha"), (), ())


def test_replies_are_converted_as_a_server_does() -> None:
    source = b"return {1.9, 'x', true, {ARGV[1]}, false, 'never seen'}"
    reply = MemoryServer().evaluate(Script("kinds", source, b"sha"), (), ("arg",))
    assert reply[:4] == [1, b"x", 1, [b"arg"]]


def test_stream_ids_only_grow() -> None:
    commands = MemoryCommands()
    commands.call(0, b"XADD", b"j", b"5-0", b"b", b"x")
    with pytest.raises(CommandError, match="equal or smaller"):
        commands.call(0, b"XADD", b"j", b"5-0", b"b", b"x")


def test_a_key_of_another_kind_is_refused() -> None:
    commands = MemoryCommands()
    commands.call(0, b"HSET", b"k", b"f", b"v")
    with pytest.raises(CommandError, match="WRONGTYPE"):
        commands.call(0, b"XADD", b"k", b"1-0", b"b", b"x")


def test_flush_forgets_everything() -> None:
    commands = MemoryCommands()
    commands.call(0, b"HSET", b"k", b"f", b"v")
    commands.flush()
    assert commands.keys(0) == []
