"""Store calls that nobody waits for: newest of a kind, bounded, tried again until they are too old."""

from __future__ import annotations

import asyncio

import pytest

from duologue.gateway.chores import Chores

pytestmark = pytest.mark.unit


async def worked_off(chores: Chores) -> None:
    run = asyncio.create_task(chores.run())
    await chores.settled(5.0)
    run.cancel()
    await asyncio.wait([run])


async def test_a_newer_call_of_the_same_kind_replaces_the_one_that_waits() -> None:
    made: list[str] = []
    chores = Chores()

    async def call(what: str) -> None:
        made.append(what)

    chores.add("trim", "a", lambda: call("old"))
    chores.add("trim", "a", lambda: call("new"))
    chores.add("trim", "b", lambda: call("other"))
    await worked_off(chores)
    assert made == ["new", "other"]


async def test_beyond_the_bound_the_oldest_is_given_up_and_counted() -> None:
    made: list[int] = []
    chores = Chores(limit=3)

    async def call(number: int) -> None:
        made.append(number)

    for number in range(5):
        chores.add("let_go", f"s{number}", lambda number=number: call(number))  # type: ignore[misc]
    assert len(chores) == 3
    assert chores.dropped == 2
    await worked_off(chores)
    assert made == [2, 3, 4]
