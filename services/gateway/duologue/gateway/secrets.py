"""Ephemeral client secrets: minted by who holds a key, presented by a browser or an app that must hold none.

Rule 1. Only a key of the configuration mints. The store keeps the secret's digest, who minted it, the session
        preset and the longest session; the secret itself is told once and written down nowhere.
Rule 2. A secret opens sessions until it expires; of a session that it opened it authenticates the resumes until
        that session's maximum. The session is the secret's own: its principal names the key and the secret.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from typing import Annotated, Any, Final
from uuid import uuid4

import msgspec

from duologue.gateway.admission import KeyRing
from duologue.gateway.coded import (
    ClientGone,
    Receive,
    Scope,
    Send,
    answer,
    bearer_of,
    error_answer,
    read_body,
    read_object,
)
from duologue.gateway.handshake import SECRET_PREFIX
from duologue.gateway.router import Router
from duologue.protocol.duplex import (
    Dialect,
    JsonObject,
    RealtimeProtocolError,
    SessionConfig,
    SessionLimits,
    SessionRuntimeView,
    session_object,
)
from duologue.protocol.realtime.strict import read
from duologue.runtime import metrics
from duologue.store.ports import ClientSecret, SecretStore, StoreUnavailable

INVALID: Final = "invalid_request"
DEFAULT_TTL_S: Final = 600
MIN_TTL_S: Final = 10
MAX_TTL_S: Final = 7200
MAX_BODY_BYTES: Final = 64 * 1024
"""The preset is kept in the store."""

_encode = msgspec.json.Encoder().encode


class SecretPass(msgspec.Struct, frozen=True):
    """A client secret that was presented and is good."""

    digest: bytes
    principal: str
    """Of the sessions that it opens."""
    preset: JsonObject
    max_session_s: float
    """0: no limit of its own."""
    fresh: bool
    """It opens sessions; else it is good for resumes alone."""


async def present(store: SecretStore, secret: str) -> SecretPass | None:
    """What this secret is good for; None: nothing. Raises StoreUnavailable."""
    digest = _digest(secret)
    found = await store.look_up(digest)
    if found is None:
        return None
    principal = f"{found.principal}/secret:{digest.hex()[:16]}"
    preset: JsonObject = msgspec.json.decode(found.session) if found.session else {}
    return SecretPass(digest, principal, preset, found.max_session_s, found.fresh)


def merged(preset: JsonObject, update: JsonObject) -> JsonObject:
    """A session object over a preset: objects are merged deeply, what the client says wins. An object of another
    `type` replaces the whole one, whose keys mean something else there."""
    result = dict(preset)
    for key, value in update.items():
        below = result.get(key)
        if isinstance(value, dict) and isinstance(below, dict) and value.get("type") in (None, below.get("type")):
            result[key] = merged(below, value)
        else:
            result[key] = value
    return result


class _ExpiresAfter(msgspec.Struct, kw_only=True):
    anchor: str = "created_at"
    seconds: Annotated[int, msgspec.Meta(ge=MIN_TTL_S, le=MAX_TTL_S)] = DEFAULT_TTL_S


class _Written(msgspec.Struct, kw_only=True):
    expires_after: _ExpiresAfter | None = None
    session: JsonObject | None = None
    max_session_s: Annotated[int, msgspec.Meta(ge=1)] | Annotated[float, msgspec.Meta(ge=1)] | None = None


class Asked(msgspec.Struct, frozen=True):
    """A secret that is to be minted."""

    ttl_s: int
    session: JsonObject
    max_session_s: float


def read_asked(body: JsonObject) -> Asked:
    """Raises RealtimeProtocolError, which names the field."""
    written = read(body, _Written, default=INVALID)
    after = written.expires_after or _ExpiresAfter()
    if after.anchor != "created_at":
        raise RealtimeProtocolError(INVALID, 'anchor is "created_at"', param="expires_after.anchor")
    return Asked(after.seconds, written.session or {}, float(written.max_session_s or 0))


class ClientSecrets:
    """The ASGI application of `POST /v1/realtime/client_secrets`."""

    def __init__(self, keys: KeyRing, store: SecretStore, router: Router, limits: SessionLimits) -> None:
        self._keys = keys
        self._store = store
        self._router = router
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        result, status = "minted", 200
        headers: dict[str, str] = {}
        try:
            body = await self._mint(scope, receive)
        except ClientGone:
            return
        except RealtimeProtocolError as error:
            result = error.code
            if error.code == "model_not_found":
                error.code, error.param = INVALID, "session.model"
            status, body, headers = error_answer(error)
        metrics.GATEWAY_SECRETS.labels(result).inc()
        await answer(send, status, body, headers)

    async def _mint(self, scope: Scope, receive: Receive) -> bytes:
        principal = self._minter(bearer_of(scope))
        asked = read_asked(read_object(await read_body(scope, receive, MAX_BODY_BYTES)))
        effective = self._effective(asked)
        secret = SECRET_PREFIX + secrets.token_urlsafe(32)
        try:
            minted = await self._store.mint(
                _digest(secret),
                principal=principal,
                session=_encode(asked.session),
                ttl_s=asked.ttl_s,
                max_session_s=asked.max_session_s,
            )
        except StoreUnavailable:
            raise RealtimeProtocolError("store_unavailable", "the store does not answer; try again") from None
        return _encode({"value": secret, "expires_at": _expiry(minted), "session": effective})

    def _minter(self, key: str) -> str:
        if key.startswith(SECRET_PREFIX) and self._keys.principal(key) is None:
            raise RealtimeProtocolError("key_required", "a client secret mints no further one: present a key")
        principal = self._keys.principal(key)
        if principal is None:
            raise RealtimeProtocolError("invalid_api_key", "the API key is missing or unknown")
        return principal

    def _effective(self, asked: Asked) -> JsonObject:
        """The session as it would open. Raises RealtimeProtocolError."""
        models = self._router.models
        if not models:
            raise RealtimeProtocolError("resource_exhausted", "no session service is reachable")
        model: Any = asked.session.get("model") or next(iter(models))
        pipeline = models.get(model) if isinstance(model, str) else self._router.first_model
        if pipeline is None:
            raise RealtimeProtocolError("model_not_found", f"there is no model {model[:80]!r}")
        limits = self._limits
        if asked.max_session_s:
            limits = msgspec.structs.replace(limits, max_session_s=min(limits.max_session_s, asked.max_session_s))
        dialect = Dialect.openai
        config = SessionConfig.open(
            asked.session, dialect=dialect, model=pipeline.name, auto_default=pipeline.native_turns, limits=limits
        )
        view = SessionRuntimeView(
            id=f"sess_{uuid4().hex}",
            capabilities=pipeline.capabilities,
            expires_at=int(time.time() + config.max_session_s),
        )
        return session_object(config, view, dialect)


def _expiry(secret: ClientSecret) -> int:
    """Whole Unix seconds, never later than it is true."""
    return math.floor(secret.expires_at)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
