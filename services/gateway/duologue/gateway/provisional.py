"""A session of the OpenAI dialects before its first command: known to its client only. SANS-I/O.

Stock clients wait for `session.created` before they say anything. Until they do, the session has an id, a
token and an object here, and no owner, no journal and no place anywhere: a resume with its token is answered
`session_resume_expired`, since the store has never heard of it.
"""

from __future__ import annotations

import hashlib
import secrets
from uuid import uuid4

import msgspec

from duologue.gateway.secrets import SecretPass
from duologue.model.records import PipelineRecord
from duologue.protocol.duplex import Dialect, SessionConfig, SessionLimits, SessionRuntimeView, session_object

_LIMITS = SessionLimits()


class Credentials(msgspec.Struct, frozen=True):
    """What a client resumes with. Only the digest leaves this process."""

    session_id: str
    token: str

    @property
    def digest(self) -> bytes:
        return token_digest(self.token)

    def __repr__(self) -> str:
        return f"Credentials({self.session_id})"


def new_token() -> str:
    """32 random bytes as URL-safe base64 without padding: 43 characters."""
    return secrets.token_urlsafe(32)


def token_digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def new_credentials() -> Credentials:
    return Credentials(f"duplex-{uuid4().hex}", new_token())


def provisional_session(
    session_id: str,
    pipeline: PipelineRecord,
    dialect: Dialect,
    *,
    now_unix_s: float,
    limits: SessionLimits = _LIMITS,
    secret: SecretPass | None = None,
) -> bytes:
    """The session object as JSON: that of a default session of this pipeline, opened now, with the preset of the
    client secret, if there is one."""
    preset = {} if secret is None else secret.preset
    if secret is not None and secret.max_session_s:
        limits = msgspec.structs.replace(limits, max_session_s=min(limits.max_session_s, secret.max_session_s))
    config = SessionConfig.open(
        preset, dialect=dialect, model=pipeline.name, auto_default=pipeline.native_turns, limits=limits
    )
    view = SessionRuntimeView(
        id=session_id,
        capabilities=pipeline.capabilities,
        expires_at=int(now_unix_s + config.max_session_s),
    )
    return msgspec.json.encode(session_object(config, view, dialect))
