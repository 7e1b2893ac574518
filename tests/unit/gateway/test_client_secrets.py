"""Client secrets at a gateway: who mints them, what they open, whose resumes they authenticate."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from unit.gateway.running import Client, Event, System
from websockets.exceptions import InvalidStatus

from duologue.gateway.secrets import merged
from duologue.store.ports import ClientSecret, StoreUnavailable

pytestmark = pytest.mark.unit

PATH = "/v1/realtime/client_secrets"
KEY = {"authorization": "Bearer secret"}
PRESET = {"type": "realtime", "model": "loopback", "instructions": "Count.", "audio": {"output": {"voice": "alto"}}}


class Rig:
    def __init__(self, system: System, client: httpx.AsyncClient) -> None:
        self.system, self.client = system, client

    async def mint(self, **body: Any) -> dict[str, Any]:
        answered = await self.client.post(PATH, json=body, headers=KEY)
        assert answered.status_code == 200, answered.text
        told: dict[str, Any] = answered.json()
        return told

    async def expire(self) -> None:
        """As if every secret's own time were over."""
        commands = self.system.store.server.commands
        now = self.system.store.server.now_us()
        for key in commands.keys(now):
            if key.startswith(b"cs:"):
                commands.call(now, b"HSET", key, b"ex", b"1")

    async def open(self, secret: str, **options: Any) -> tuple[Client, Event]:
        return await self.system.open(additional_headers={"authorization": f"Bearer {secret}"}, **options)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async for made in _rig(api_keys=("secret", "other")):
        yield made


async def _rig(**config: Any) -> AsyncIterator[Rig]:
    async with System() as system:
        await system.gateway(**config)
        async with httpx.AsyncClient(base_url=f"http://{system.urls[0]}", trust_env=False) as client:
            yield Rig(system, client)


async def test_a_secret_is_told_once_with_its_expiry_and_the_effective_session(rig: Rig) -> None:
    told = await rig.mint(expires_after={"anchor": "created_at", "seconds": 30}, session=PRESET, max_session_s=90)
    assert told["value"].startswith("ek_") and len(told["value"]) > 40
    assert abs(told["expires_at"] - rig.system.store.server.now_us() / 1e6 - 30) <= 2
    session = told["session"]
    assert (session["type"], session["object"], session["instructions"]) == ("realtime", "realtime.session", "Count.")
    assert session["audio"]["output"]["voice"] == "alto" and session["max_session_s"] == 90
    now = rig.system.store.server.now_us()
    kept = b"".join(rig.system.store.server.commands.keys(now))
    assert told["value"].encode() not in kept


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"expires_after": {"seconds": 9}}, "expires_after.seconds"),
        ({"expires_after": {"seconds": 7201}}, "expires_after.seconds"),
        ({"expires_after": {"seconds": True}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "now"}}, "expires_after.anchor"),
        ({"session": []}, "session"),
        ({"session": {"model": "nobody"}}, "session.model"),
        ({"session": {"model": 7}}, "session.model"),
        ({"session": {"type": "transcription"}}, "session.type"),
        ({"session": {"audio": {"input": {"format": "ogg"}}}}, "session.audio.input.format"),
        ({"max_session_s": 0}, "max_session_s"),
        ({"max_session_s": "long"}, "max_session_s"),
    ],
)
async def test_every_bad_field_is_a_400_that_names_it(rig: Rig, body: dict[str, Any], param: str) -> None:
    answered = await rig.client.post(PATH, json=body, headers=KEY)
    assert (answered.status_code, answered.json()["error"]["param"]) == (400, param), answered.text


async def test_only_a_key_mints(rig: Rig) -> None:
    told = await rig.mint()
    for presented in ("Basic secret", "Bearer wrong", "Bearer ek_wrong"):
        answered = await rig.client.post(PATH, json={}, headers={"authorization": presented})
        expected = (403, "key_required") if "ek_" in presented else (401, "invalid_api_key")
        assert (answered.status_code, answered.json()["error"]["code"]) == expected
    answered = await rig.client.post(PATH, json={}, headers={"authorization": f"Bearer {told['value']}"})
    assert (answered.status_code, answered.json()["error"]["code"]) == (403, "key_required")
    for path in ("/v1/models", "/v1/chat/completions"):
        answered = await rig.client.get(path, headers={"authorization": f"Bearer {told['value']}"})
        assert answered.status_code in (401, 405), "a secret is for sessions"


async def test_too_large_a_preset_is_refused(rig: Rig) -> None:
    answered = await rig.client.post(PATH, json={"session": {"instructions": "x" * 70_000}}, headers=KEY)
    assert (answered.status_code, answered.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("by", ["bearer", "subprotocol"])
async def test_the_preset_applies_and_the_client_wins_over_it(rig: Rig, by: str) -> None:
    secret = (await rig.mint(session=PRESET, max_session_s=90))["value"]
    options: dict[str, Any] = {"additional_headers": {"authorization": f"Bearer {secret}"}}
    if by == "subprotocol":
        options = {"subprotocols": ["realtime", f"openai-insecure-api-key.{secret}"]}
    client = await rig.system.connect("/v1/realtime", **options)
    created = await client.next()
    assert created["session"]["instructions"] == "Count." and created["session"]["max_session_s"] == 90
    await client.send("session.update", session={"type": "realtime", "audio": {"output": {"speed": 1.2}}})
    await client.until("session.updated")
    message, session = rig.system.shard.opened_with[-1]
    assert session["audio"]["output"] == {"voice": "alto", "speed": 1.2} and session["instructions"] == "Count."
    assert message.max_session_s == 90
    assert message.principal.startswith("key:") and "/secret:" in message.principal and secret not in message.principal


async def test_a_session_is_resumed_by_its_own_secret_after_its_time_and_by_nobody_else(rig: Rig) -> None:
    mine, other = (await rig.mint())["value"], (await rig.mint())["value"]
    client, created = await rig.open(mine)
    await rig.expire()
    for key in (other, "secret"):
        assert (await _resumed(rig, created, key))["error"]["code"] == "invalid_resume_token"
    assert (await _resumed(rig, created, mine))["type"] == "session.resumed"


async def _resumed(rig: Rig, created: Event, key: str) -> Event:
    headers = {"authorization": f"Bearer {key}"}
    client = await rig.system.resume(created, 1, path="/v1/realtime?duplex=1&autostart=0", additional_headers=headers)
    return await client.next()


async def test_an_expired_secret_opens_nothing(rig: Rig) -> None:
    secret = (await rig.mint())["value"]
    await rig.expire()
    with pytest.raises(InvalidStatus) as refused:
        await rig.open(secret)
    assert refused.value.response.status_code == 401
    client = await rig.system.connect(
        "/v1/realtime?duplex=1&autostart=0", additional_headers={"authorization": f"Bearer {secret}"}
    )
    await client.send("session.update", session={"model": "loopback"})
    assert (await client.next())["error"]["code"] == "invalid_api_key"
    assert (await client.closing())[0] == 1008


async def test_an_unknown_secret_is_refused_where_no_key_is_needed_too() -> None:
    async for rig in _rig():
        with pytest.raises(InvalidStatus) as refused:
            await rig.open("ek_unknown")
        assert refused.value.response.status_code == 401
        secret = (await rig.mint(session=PRESET))["value"]
        await rig.open(secret)
        assert rig.system.shard.opened_with[-1][1]["instructions"] == "Count."


async def test_the_sessions_of_a_keys_secrets_count_as_the_keys() -> None:
    async for rig in _rig(api_keys=("secret",), max_sessions_per_key=1):
        first, second = (await rig.mint())["value"], (await rig.mint())["value"]
        await rig.open(first)
        with pytest.raises(InvalidStatus) as refused:
            await rig.open(second)
        assert refused.value.response.status_code == 503


async def test_without_the_store_nothing_is_minted_and_no_secret_is_judged(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = (await rig.mint())["value"]

    async def away(*_: Any, **__: Any) -> ClientSecret:
        raise StoreUnavailable("no answer")

    for name in ("mint", "look_up"):
        monkeypatch.setattr(rig.system.store.secrets, name, away)
    answered = await rig.client.post(PATH, json={}, headers=KEY)
    assert (answered.status_code, answered.headers["retry-after"]) == (503, "1")
    with pytest.raises(InvalidStatus) as refused:
        await rig.open(secret)
    assert refused.value.response.status_code == 503


def test_a_session_over_a_preset() -> None:
    preset = {"a": {"b": 1, "c": 2}, "d": {"type": "x", "k": 1}, "e": 1}
    update = {"a": {"c": 3}, "d": {"type": "y"}, "e": None}
    assert merged(preset, update) == {"a": {"b": 1, "c": 3}, "d": {"type": "y"}, "e": None}
    assert preset["a"] == {"b": 1, "c": 2}
