"""What is written down of a session at its end, once, by the owner that it ends under."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
from unit.session.shell.shell_rig import Shell, owned, through

from duologue.bus import messages as bus
from duologue.model.outputs import Usage
from duologue.runtime.logs import RECORDS, configure_logs
from duologue.session.accounts import Account, Accounts, Parties, account
from duologue.session.background import Background
from duologue.session.core.engine_session import Totals
from duologue.session.usage_hook import UsageHook
from duologue.store.ports import Refused

pytestmark = pytest.mark.unit

WHO = Parties(session_id="s", principal="key:1234", dialect="duplex", model="toy", started_at=1000.0)


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    root, stream = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    configure_logs("shard-1", "error", "text", stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in RECORDS:
        record = logging.getLogger(name)
        record.handlers[:], record.propagate = [], True


@pytest.fixture
async def shell() -> AsyncIterator[Shell]:
    made = Shell()
    made.register_workers()
    yield made
    await made.close()


def _lines(stream: io.StringIO, logger: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [line for line in lines if line["logger"] == logger]


async def _end(shell: Shell, machine: Any, reason: str = "client") -> None:
    assert shell.manager.kill("s", reason, 1000)
    shell.board.on_message(shell.gateway, bus.Delivered("s", owned(1), 1, through(1, machine.n), machine.n), [])
    await shell.background.settle()


def test_an_account_has_the_sums_of_all_owners() -> None:
    totals = Totals(input_ms=2500.0, output_ms=1234.4, responses=5, cancelled=2, failed=1, interruptions=2)
    used = Usage(input_text_tokens=10, input_audio_tokens=20, cached_tokens=3, output_text_tokens=4)
    told = account(WHO, totals, used, "idle", 61.2345)
    assert told == Account(
        session_id="s",
        key_id="key:1234",
        model="toy",
        dialect="duplex",
        reason="idle",
        started_at=1000.0,
        duration_s=61.234,
        input_audio_s=2.5,
        output_audio_s=1.234,
        input_tokens=30,
        output_tokens=4,
        input_text_tokens=10,
        input_audio_tokens=20,
        cached_tokens=3,
        output_text_tokens=4,
        output_audio_tokens=0,
        responses=5,
        cancelled=2,
        failed=1,
        interruptions=2,
    )


async def test_each_session_that_ends_has_one_line_of_audit(shell: Shell, written: io.StringIO) -> None:
    machine = await shell.open()
    machine.time = 61.5
    await _end(shell, machine, "goodbye")
    (line,) = _lines(written, "duologue.audit")
    names = ("event", "session_id", "key_id", "dialect", "model", "remote", "reason", "seconds")
    told = {name: line[name] for name in names}
    assert told == {
        "event": "close",
        "session_id": "s",
        "key_id": "key",
        "dialect": "duplex",
        "model": "toy",
        "remote": "",
        "reason": "goodbye",
        "seconds": 61.5,
    }
    assert _lines(written, "duologue.usage") == [], "nobody has asked for accounts"


async def test_its_line_says_where_the_client_came_from_that_was_attached_last(
    shell: Shell, written: io.StringIO
) -> None:
    """Only gateways know: they tell when they open and when they attach, also after the session has moved."""
    opened = bus.OpenSession("s", "duplex", "key", b"digest", "g1", remote="198.51.100.9")
    shell.board.on_message(shell.gateway, opened, [msgspec.json.encode({"model": "toy"})])
    await shell.background.settle()
    [resident] = shell.manager.residents
    assert resident.attachment.remote == "198.51.100.9"
    shell.board.on_message(shell.gateway, bus.Attach("s", 2, 2, "g1", remote="203.0.113.5"), [])
    shell.board.on_message(shell.gateway, bus.Attach("s", 1, 1, "g1", remote="192.0.2.1"), [])  # an older one is void
    resident.runner.finish()
    await shell.background.settle()
    (line,) = _lines(written, "duologue.audit")
    assert (line["event"], line["remote"]) == ("close", "203.0.113.5")


async def test_a_session_that_moves_to_another_shard_has_none_here(shell: Shell, written: io.StringIO) -> None:
    await shell.open()
    shell.manager.residents[0].refused(Refused("owner", owned(7)))
    await shell.background.settle()
    assert len(shell.manager) == 0
    assert written.getvalue() == ""


def test_an_account_is_logged_if_it_is_asked_for(written: io.StringIO) -> None:
    Accounts(log=True).close(WHO, Totals(input_ms=80.0), None, "idle", 1.0)
    (line,) = _lines(written, "duologue.usage")
    assert (line["session_id"], line["input_audio_s"], line["reason"], line["key_id"]) == (
        "s",
        0.08,
        "idle",
        "key:1234",
    )


async def test_an_account_is_sent_if_there_is_where(written: io.StringIO) -> None:
    sent: list[tuple[str, Account]] = []

    async def post(session_id: str, body: bytes) -> int:
        sent.append((session_id, msgspec.json.decode(body, type=Account)))
        return 200

    background = Background()
    Accounts(hook=UsageHook(post, background)).close(WHO, Totals(), None, "idle", 1.0)
    await background.settle()
    assert [(session_id, told.key_id) for session_id, told in sent] == [("s", "key:1234")]
    assert _lines(written, "duologue.usage") == []
