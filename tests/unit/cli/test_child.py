"""A supervised process: its lines are passed on, one that is too long in pieces."""

from __future__ import annotations

import sys

import pytest

from duologue.cli.supervisor.child import MAX_LINE_BYTES, Child, ChildSpec

pytestmark = pytest.mark.unit


async def lines_of(script: str) -> list[str]:
    said: list[str] = []
    spec = ChildSpec("worker-1", "worker", (sys.executable, "-I", "-c", script))

    def ended(child: Child, code: int, pause_s: float) -> None:
        child.ask_to_stop()

    await Child(spec, lambda name, line: said.append(line), ended).keep_running()
    return said


async def test_a_line_longer_than_the_bound_comes_in_pieces_and_none_is_lost() -> None:
    long = 3 * MAX_LINE_BYTES
    said = await lines_of(f"print('short'); print('x' * {long}); print('after')")
    assert said[0] == "short" and said[-1] == "after"
    assert "".join(said[1:-1]) == "x" * long
    assert all(len(line) <= MAX_LINE_BYTES for line in said)


async def test_what_has_no_end_of_line_is_passed_on_too() -> None:
    assert await lines_of("print('one'); print('two', end='')") == ["one", "two"]


async def test_it_tells_when_it_has_a_pid_and_when_it_has_none_any_more() -> None:
    pids: list[int | None] = []
    spec = ChildSpec("worker-1", "worker", (sys.executable, "-I", "-c", "pass"))

    def ended(child: Child, code: int, pause_s: float) -> None:
        child.ask_to_stop()

    child = Child(spec, lambda name, line: None, ended, lambda: pids.append(child.pid))
    await child.keep_running()
    assert child.process is not None
    assert pids == [child.process.pid, None]
