"""`SecretStore` on any server that runs the scripts of `lua/secret`."""

from __future__ import annotations

from typing import Any

from duologue.store.ports import ClientSecret, Done, Refused, SecretStore
from duologue.store.replies import reads_reply
from duologue.store.scripts import SCRIPTS, Arg, ScriptRunner, secret_keys


class ScriptedSecrets(SecretStore):
    def __init__(self, runner: ScriptRunner) -> None:
        self._runner = runner

    async def _run(self, name: str, digest: bytes, *args: Arg) -> list[Any]:
        return await self._runner.run(SCRIPTS["secret/" + name], secret_keys(digest), args)

    async def mint(
        self, digest: bytes, *, principal: str, session: bytes, ttl_s: float, max_session_s: float = 0.0
    ) -> ClientSecret:
        args = (int(ttl_s * 1000), principal, session, int(max_session_s * 1000))
        return ClientSecret(principal, session, _expiry(await self._run("mint", digest, *args)), max_session_s)

    async def look_up(self, digest: bytes) -> ClientSecret | None:
        return _secret(await self._run("look_up", digest))

    async def use(self, digest: bytes, *, resumable_s: float) -> Done | Refused:
        return _done(await self._run("use", digest, int(resumable_s * 1000)))


@reads_reply
def _expiry(reply: list[Any]) -> float:
    _, expires_ms = reply
    return float(expires_ms / 1000)


@reads_reply
def _secret(reply: list[Any]) -> ClientSecret | None:
    if reply[0] != b"ok":
        return None
    _, fresh, principal, session, max_ms, expires_ms = reply
    return ClientSecret(principal.decode(), session, expires_ms / 1000, max_ms / 1000, bool(fresh))


@reads_reply
def _done(reply: list[Any]) -> Done | Refused:
    return Done() if reply[0] == b"ok" else Refused(reply[0].decode())
