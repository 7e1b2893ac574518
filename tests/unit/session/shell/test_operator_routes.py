"""What an operator may see of the sessions of a shard, and how they are ended."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import Any

import pytest
from unit.session.shell.shell_rig import Shell, through

from duologue.bus import messages as bus
from duologue.bus.messages import OpenSession
from duologue.runtime.exposition import Asked
from duologue.session.operator_routes import CLOSE_CODE, KILLED, OperatorRoutes

pytestmark = pytest.mark.unit


class Asking:
    def __init__(self) -> None:
        self.shell = Shell(max_sessions=3)
        self.shell.register_workers()
        self.routes = OperatorRoutes(self.shell.manager)

    def ask(self, method: str, path: str, query: Mapping[str, str] | None = None, bearer: str | None = None) -> Any:
        token = self.routes.token if bearer is None else bearer
        answer = self.routes.answer(Asked(method, path, query or {}, token))
        return None if answer is None else (answer[0], json.loads(answer[1]))


@pytest.fixture
async def asking() -> AsyncIterator[Asking]:
    made = Asking()
    yield made
    await made.shell.close()


async def test_the_sessions_that_are_here_are_listed_as_they_are_now(asking: Asking) -> None:
    machine = await asking.shell.open()
    machine.responding, machine.time = True, 12.5
    machine.observed.unit_complete(80.0, 10.0)
    status, answer = asking.ask("GET", "/sessions")
    assert status is HTTPStatus.OK
    assert answer["sessions"] == [
        {
            "session_id": "s",
            "key_id": "key",
            "model": "toy",
            "dialect": "duplex",
            "owner": 1,
            "generation": 1,
            "attached": True,
            "state": "responding",
            "age_s": 12.5,
            "lag_s": 2.5,
            "pending_input_bytes": 0,
            "pending_output_events": 1,
        }
    ]
    asking.shell.board.on_message(asking.shell.gateway, bus.Detach("s", 1), [])
    assert asking.ask("GET", "/sessions")[1]["sessions"][0]["attached"] is False


async def test_a_session_is_shown_with_its_story(asking: Asking) -> None:
    machine = await asking.shell.open()
    machine.story = [{"at": 1.0, "fact": "Tick"}]
    status, answer = asking.ask("GET", "/sessions/s")
    assert (status, answer["story"]) == (HTTPStatus.OK, machine.story)
    assert asking.ask("GET", "/sessions/other")[0] is HTTPStatus.NOT_FOUND


@pytest.mark.parametrize(("query", "reason"), [({}, KILLED), ({"reason": "abuse"}, "abuse")])
async def test_a_killed_session_is_told_why_and_everything_of_it_is_freed(
    asking: Asking, query: dict[str, str], reason: str
) -> None:
    shell = asking.shell
    machine = await shell.open()
    assert asking.ask("POST", "/sessions/s/kill", query) == (
        HTTPStatus.ACCEPTED,
        {"session_id": "s", "reason": reason},
    )
    end = shell.gateway.of(bus.Deliveries)[-1]
    assert end.events[-1].close_code == CLOSE_CODE
    shell.board.on_message(
        shell.gateway,
        bus.Delivered("s", shell.manager.residents[0].runner.owner, 1, through(1, machine.n), machine.n),
        [],
    )
    await shell.background.settle()
    assert not shell.manager.residents
    assert len(shell.admission) == 0
    assert await shell.store.sessions.look_up("s") is None
    assert shell.manager.ended == {reason: 1}


async def test_a_session_that_is_being_opened_ends_as_it_opens(asking: Asking) -> None:
    shell = asking.shell
    shell.board.on_message(shell.gateway, OpenSession("s", "duplex", "key", b"digest", "g1"), [b"{}"])
    assert asking.ask("POST", "/sessions/s/kill")[0] is HTTPStatus.ACCEPTED
    await shell.background.settle()
    assert shell.manager.residents[0].runner.closing


async def test_nobody_asks_without_the_token_of_the_registration(asking: Asking) -> None:
    await asking.shell.open()
    for method, path in (("GET", "/sessions"), ("GET", "/sessions/s"), ("POST", "/sessions/s/kill")):
        for bearer in ("", "guessed", asking.routes.token[:-1]):
            assert asking.ask(method, path, bearer=bearer)[0] is HTTPStatus.UNAUTHORIZED
    assert asking.shell.manager.residents[0].runner.closing == ""


async def test_what_makes_no_sense_is_refused(asking: Asking) -> None:
    await asking.shell.open()
    for reason in ("", "Two words", "x" * 65, 'quo"te'):
        assert asking.ask("POST", "/sessions/s/kill", {"reason": reason})[0] is HTTPStatus.BAD_REQUEST
    assert asking.ask("GET", "/sessions/s/kill")[0] is HTTPStatus.METHOD_NOT_ALLOWED
    assert asking.ask("POST", "/sessions")[0] is HTTPStatus.METHOD_NOT_ALLOWED
    assert asking.ask("POST", "/sessions/other/kill")[0] is HTTPStatus.NOT_FOUND
    assert asking.ask("GET", "/metrics") is None
