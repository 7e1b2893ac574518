"""What an operator sees of the sessions of a running system, how one is ended, and what is left of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from system.running import RunningSystem, duologue, eventually, refusal, status
from system.talkers import SCRIPT
from system.wire import Wire, append, level, session_object
from websockets.exceptions import ConnectionClosed

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

TOMB_MS = 60_000
"""How long the store remembers that a session is over, to refuse what comes late."""
TOMB_FIELDS = {b"x", b"o", b"oi", b"e", b"g"}
SAID = "SECRET-INSTRUCTIONS-OF-THE-CLIENT"


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningSystem]:
    monkeypatch.setenv("DUOLOGUE_USAGE__LOG", "true")
    monkeypatch.setenv("DUOLOGUE_SESSION__DISCONNECT_GRACE_S", "300")  # commands take seconds on a busy machine
    with RunningSystem(tmp_path, "--pipelines", "loopback", "--shards", "2") as running:
        yield running


class Held:
    """A client that talks until it is told to stop."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.id = str(wire.log[0]["session"]["id"])

    @classmethod
    async def open(cls, system: RunningSystem) -> Held:
        return cls(await Wire.open(system.url, session_object(script=SCRIPT) | {"instructions": SAID}))

    async def talk(self, units: int = 12) -> None:
        for _ in range(units):
            await self.wire.send(append(level(6000)))
        await self.wire.until("response.done")

    async def closing(self) -> list[dict[str, Any]]:
        try:
            while True:
                await self.wire.read()
        except ConnectionClosed:
            await self.wire.ws.wait_closed()
            return self.wire.log


async def command(*words: str, system: RunningSystem) -> Any:
    done = await asyncio.to_thread(duologue, *words, "--home", str(system.home))
    assert done.returncode == 0, (done.stdout, done.stderr)
    return json.loads(done.stdout) if "--json" in words else done.stdout


async def listed(system: RunningSystem) -> dict[str, dict[str, Any]]:
    sessions = (await command("sessions", "--json", system=system))["sessions"]
    return {session["session_id"]: session for session in sessions}


def keys_of(store: redis.Redis, session_id: str) -> dict[str, int]:
    """Every key that has the session's id in its name, and how many ms it has to live (-1: for ever)."""
    names = [bytes(key) for key in store.scan_iter(count=1000) if session_id.encode() in bytes(key)]
    return {name.decode(): int(str(store.pttl(name))) for name in names}


def records(system: RunningSystem, logger: str, session_id: str) -> list[dict[str, Any]]:
    """The JSON lines that processes have written by this logger of this session."""
    found = []
    for line in system.log.read_text(errors="replace").splitlines():
        start = line.find('{"at"')
        if start >= 0 and f'"logger": "{logger}"' in line and session_id in line:
            found.append(json.loads(line[start:]))
    return found


async def until_listed(system: RunningSystem, *ids: str) -> dict[str, dict[str, Any]]:
    async with asyncio.timeout(30):
        while not set(ids) <= (found := await listed(system)).keys():  # noqa: ASYNC110 - nobody here is told
            await asyncio.sleep(0.1)
    return found


async def test_sessions_are_listed_shown_and_killed_and_nothing_of_them_is_left(system: RunningSystem) -> None:
    one, other = await Held.open(system), await Held.open(system)
    await asyncio.gather(one.talk(), other.talk())
    await other.wire.cut()
    found = await until_listed(system, one.id, other.id)
    mine = found[one.id]
    told = {name: mine[name] for name in ("key_id", "model", "dialect", "gateway", "attached", "generation", "owner")}
    assert told == {
        "key_id": "anonymous",
        "model": "loopback",
        "dialect": "duplex",
        "gateway": "gateway-1",
        "attached": True,
        "generation": 1,
        "owner": 1,
    }
    assert mine["shard"] in ("shard-1", "shard-2")
    assert mine["state"] in ("open", "responding")
    assert mine["lag_s"] >= 0 and mine["age_s"] > 0
    assert found[other.id]["attached"] is False
    assert one.id in await command("sessions", system=system)
    await _shown(system, one)
    await _killed(system, one)
    await command("session", "kill", other.id, system=system)
    await eventually(lambda: load(system) == 0, "all places are free")
    assert refusal("session", "show", one.id, "--home", str(system.home)).endswith(f"there is no session {one.id}")
    assert all(not member["record"].get("operator_token") for member in status("--home", str(system.home))["members"])


def load(system: RunningSystem) -> int:
    """Places taken in shards, and slots taken in workers."""
    members = status("--home", str(system.home))["members"]
    return sum(int(member["load"]) for member in members if member["kind"] in ("shard", "worker"))


async def _shown(system: RunningSystem, held: Held) -> None:
    """The story of a session: commands, effects and fences, and nothing that was said."""
    told = await command("session", "show", held.id, "--json", system=system)
    facts = [step.get("command", step["fact"]) for step in told["story"]]
    assert {"input_audio_buffer.append", "StageOutput", "Delivered"} <= set(facts)
    events = [effect.get("event") for step in told["story"] for effect in step["effects"]]
    assert {"response.output_audio.delta", "response.done"} <= set(events)
    assert all(step["fence"].keys() == {"owner", "binding", "epoch", "turn"} for step in told["story"])
    assert 0 < len(told["story"]) <= 200
    text = json.dumps(told) + await command("session", "show", held.id, system=system)
    for said in (SAID, "one two three", "two"):
        assert said not in text


async def _killed(system: RunningSystem, held: Held) -> None:
    """The client is told why, and the audit and the usage have their lines."""
    done = await asyncio.to_thread(
        duologue, "session", "kill", held.id, "--reason", "abuse", "--home", str(system.home)
    )
    assert (done.returncode, done.stdout) == (0, f"{held.id} has ended: abuse\n"), done.stderr
    last = (await held.closing())[-1]
    assert (last["type"], last["reason"]) == ("session.closed", "abuse")
    assert held.wire.ws.close_code == 1008
    await eventually(lambda: bool(records(system, "duologue.usage", held.id)), "the account is written")
    (account,) = records(system, "duologue.usage", held.id)
    assert (account["reason"], account["key_id"], account["model"]) == ("abuse", "anonymous", "loopback")
    assert account["input_audio_s"] == pytest.approx(12 * 0.08)
    assert account["output_audio_s"] > 0 and account["responses"] >= 1 and account["duration_s"] > 0
    audit = records(system, "duologue.audit", held.id)
    assert [line["event"] for line in audit if line["event"] != "leave"] == ["open", "close"]
    assert [line["remote"] for line in audit] == ["127.0.0.1"] * len(audit)
    assert {line["model"] for line in audit} == {"loopback"}


async def test_a_session_that_moved_to_another_shard_has_one_account_of_all_of_it(system: RunningSystem) -> None:
    held = await Held.open(system)
    await held.talk()
    first = (await until_listed(system, held.id))[held.id]["shard"]
    await command("drain", first, system=system)
    moved = (await until_listed(system, held.id))[held.id]
    assert (moved["shard"] != first, moved["owner"] > 1, moved["attached"]) == (True, True, True)
    await held.talk()
    await command("session", "kill", held.id, system=system)
    await held.closing()
    await eventually(lambda: bool(records(system, "duologue.usage", held.id)), "the account is written")
    (account,) = records(system, "duologue.usage", held.id)
    assert account["input_audio_s"] == pytest.approx(2 * 12 * 0.08)
    assert account["responses"] >= 2
    closes = [line for line in records(system, "duologue.audit", held.id) if line["event"] == "close"]
    assert [line["process"] for line in closes] == [moved["shard"]], "who gave it away did not close it"
    assert closes[0]["remote"] == "127.0.0.1", "its gateway has told the heir, too"


async def test_a_wrong_reason_and_an_unknown_session_are_refused(system: RunningSystem) -> None:
    held = await Held.open(system)
    home = ("--home", str(system.home))
    assert "no session sess_unknown" in refusal("session", "kill", "sess_unknown", *home)
    assert "reason is a code" in refusal("session", "kill", held.id, "--reason", "Two words", *home)
    assert "is no session" in refusal("session", "show", "../metrics", *home)
    await held.wire.end()


async def test_every_key_of_a_session_has_a_time_to_live_and_is_gone_after_its_end(system: RunningSystem) -> None:
    store = redis.Redis.from_url(system.state.redis_url)
    held, gone = await Held.open(system), await Held.open(system)
    await asyncio.gather(held.talk(), gone.talk())
    await gone.wire.cut()
    await until_listed(system, held.id, gone.id)
    for session_id in (held.id, gone.id):
        during = keys_of(store, session_id)
        assert {name.partition(":")[0] for name in during} >= {"s", "c", "jh", "j"}, during
        assert all(0 < left <= 600_000 for left in during.values()), during
    holders = {bytes(key): int(str(store.pttl(key))) for key in store.scan_iter(match="{due}:*")}
    assert holders and all(0 < left <= 600_000 for left in holders.values()), holders
    await held.wire.end()
    await command("session", "kill", gone.id, system=system)
    for session_id in (held.id, gone.id):
        await eventually(partial(_only_tombs, store, session_id), f"nothing of {session_id} is left")
    await eventually(lambda: not _held_anywhere(store, held.id, gone.id), "nobody notes that it holds them")
    store.close()


def _only_tombs(store: redis.Redis, session_id: str) -> bool:
    """What is left says that it is over, who may say so, and nothing else; and not for long."""
    left = keys_of(store, session_id)
    if not all(0 < ms <= TOMB_MS for ms in left.values()):
        return False
    fields = [set(store.hgetall(name)) for name in left]
    return {name.partition(":")[0] for name in left} <= {"s", "jh"} and all(one <= TOMB_FIELDS for one in fields)


def _held_anywhere(store: redis.Redis, *ids: str) -> bool:
    noted: set[Any] = set()
    for key in store.scan_iter(match="{due}:*"):
        noted.update(store.zrange(key, 0, -1))
    return any(one.encode() in noted for one in ids)
