"""Opening a session: a shard is found that takes it, the journal is claimed, the client is told.

Rule 1. Shards are asked in the order of the router; only one that is full makes us ask the next.
Rule 2. Whatever was opened and cannot be given to its client is closed again: nobody else could ever use it.
        That holds for a cancellation at every await.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from duologue.bus.link import Link
from duologue.bus.messages import ClientInput, Detach, OpenSession, SessionOpened, SessionRefused
from duologue.fence import CommandNo
from duologue.gateway.admission import STORE_FULL
from duologue.gateway.announce import created, shard_error
from duologue.gateway.attachment import Answer, Attachment
from duologue.gateway.connection import Connection, Open
from duologue.gateway.context import Gateway
from duologue.gateway.provisional import Credentials
from duologue.gateway.remembering import learn
from duologue.gateway.secrets import SecretPass, merged
from duologue.gateway.wire import Wire
from duologue.protocol.duplex import JsonObject, SessionClose, encode_command
from duologue.store.ports import Done, Head, StoreUnavailable

_log = logging.getLogger("duologue.gateway")

OPEN_S: Final = 10.0
STORE_S: Final = 1.0
"""How long an open waits for a store that does not answer, at each of its steps."""
RETRY_AFTER_MS: Final = 1000
POLICY: Final = 1008
RESTART: Final = 1012
TRY_AGAIN: Final = 1013
_FULL: Final = "resource_exhausted"

_encode = msgspec.json.Encoder().encode


class Refused(msgspec.Struct, frozen=True):
    """The session could not be opened. `final`: the socket is closed, provisional or not."""

    code: str
    error: bytes
    close_code: int
    final: bool
    reason: str = ""
    """As it is counted, where the code says too little."""


class Opening:
    """One open for one socket."""

    def __init__(
        self,
        gateway: Gateway,
        wire: Wire,
        connection: Connection,
        principal: str,
        credentials: Credentials,
        secret: SecretPass | None = None,
    ) -> None:
        self._gateway = gateway
        self._wire = wire
        self._connection = connection
        self._principal = principal
        self._credentials = credentials
        self._secret = secret
        self._event_id: str | None = None
        """The client's own id of the message that opens."""

    async def run(self, step: Open) -> Attachment | Refused:
        """The attachment, its client told; or the refusal, not told yet."""
        self._event_id = step.event_id if step.then is None else step.then.event_id
        if not self._gateway.store_ready():
            return self._refuse("store_unavailable", "the store does not answer", TRY_AGAIN)
        if self._gateway.store_full():
            return self._refuse(_FULL, STORE_FULL, TRY_AGAIN, reason="store_full")
        secret = self._secret
        if secret is not None and not secret.fresh:
            return self._refuse("invalid_api_key", "the client secret has expired: it opens no session", POLICY)
        session = dict(step.session) if secret is None else merged(secret.preset, step.session)
        model = self._model(session)
        if isinstance(model, Refused):
            return model
        refused: Refused | None = None
        session_id = self._credentials.session_id
        for shard in self._gateway.router.candidates(session_id, model):
            link = self._gateway.links.of(shard.incarnation)
            if link is None:
                continue
            outcome = await self._at(link, step, session)
            if isinstance(outcome, Attachment) or outcome.code != _FULL:
                return outcome
            refused = outcome
        return refused or self._refuse(_FULL, "no free place for another session", TRY_AGAIN)

    def _model(self, session: JsonObject) -> str | Refused:
        """The model asked for, filled in if only the query names it; "" if the shard must judge it."""
        models = self._gateway.router.models
        if not models:
            return self._refuse(_FULL, "no session service is reachable", TRY_AGAIN)
        asked = session.get("model")
        if asked is None or asked == "":
            session["model"] = asked = self._connection.offer.model or next(iter(models))
        if not isinstance(asked, str):
            return ""
        if asked not in models:
            return self._refuse("model_not_found", f"there is no model {asked[:80]!r}", POLICY, param="model")
        return asked

    async def _at(self, link: Link, step: Open, session: JsonObject) -> Attachment | Refused:
        """Open at one shard."""
        gateway, offer = self._gateway, self._connection.offer
        session_id = self._credentials.session_id
        attachment = Attachment(gateway, self._wire, session_id, offer.dialect, self._principal, 1, link)
        attachment.model = str(session["model"])
        attachment.remote = self._connection.remote
        message = OpenSession(
            session_id=session_id,
            dialect=offer.dialect.value,
            principal=self._principal,
            token_digest=self._credentials.digest,
            gateway=gateway.incarnation,
            announced=offer.dialect.is_openai,
            update_event_id=step.event_id,
            update_is_first=step.by_update,
            max_session_s=0.0 if self._secret is None else self._secret.max_session_s,
        )
        gateway.attachments.put(attachment)
        done = refused = False
        try:
            answer = await attachment.open(message, _encode(session), OPEN_S)
            if answer is None:
                return self._refuse("timeout", "the session service did not answer", TRY_AGAIN)
            if isinstance(answer.message, SessionRefused):
                refused = True
                return self._refused_by_shard(answer)
            head = await self._claim(answer) if await self._use_secret() else None
            if head is None:
                return self._refuse("store_unavailable", "the journal does not answer", TRY_AGAIN)
            if not self._wire.is_open and not self._connection.openai:  # the others have their token already
                return self._refuse("session_closed", "the client has left", POLICY)
            self._announce(attachment, answer, head)
            done = True
            return attachment
        finally:
            if not done:
                if not refused:
                    _give_up(attachment)
                gateway.attachments.drop(attachment)

    async def _use_secret(self) -> bool:
        """The secret that opens this session is to authenticate its resumes. False: the store does not answer."""
        secret, limits = self._secret, self._gateway.limits
        if secret is None:
            return True
        longest = min(limits.max_session_s, secret.max_session_s or limits.max_session_s)
        try:
            async with asyncio.timeout(STORE_S):
                used = await self._gateway.secrets.use(secret.digest, resumable_s=longest + limits.disconnect_grace_s)
        except (StoreUnavailable, TimeoutError):
            return False
        return isinstance(used, Done)

    async def _claim(self, answer: Answer) -> Head | None:
        assert isinstance(answer.message, SessionOpened)
        gateway = self._gateway
        try:
            async with asyncio.timeout(STORE_S):
                head = await gateway.journal.claim(
                    self._credentials.session_id,
                    owner=answer.message.owner,
                    generation=1,
                    claimant=f"{gateway.incarnation}/1",
                )
        except (StoreUnavailable, TimeoutError) as error:
            _log.warning("session %s: its journal could not be claimed: %s", self._credentials.session_id, error)
            return None
        return head if isinstance(head, Head) else None

    def _announce(self, attachment: Attachment, answer: Answer, head: Head) -> None:
        assert isinstance(answer.message, SessionOpened)
        attachment.begin(answer.message.owner, head)
        if not self._connection.openai:  # the others were told when they connected
            self._wire.write(created(answer.frames[0], 1, self._credentials.token, head_seq=None))
        attachment.go_live()
        learn(attachment)

    def _refused_by_shard(self, answer: Answer) -> Refused:
        assert isinstance(answer.message, SessionRefused)
        code = answer.message.code
        _, error = shard_error(answer.frames[0], openai=self._connection.openai)
        final = not self._connection.openai or code in ("model_not_found", _FULL, "store_unavailable")
        return Refused(code, error, answer.message.close_code or POLICY, final)

    def _refuse(
        self, code: str, message: str, close_code: int, *, param: str | None = None, reason: str = ""
    ) -> Refused:
        retry = RETRY_AFTER_MS if close_code == TRY_AGAIN else None
        error = self._connection.error(code, message, param=param, event_id=self._event_id, retry_after_ms=retry)
        return Refused(code, error, close_code, True, reason)


def _give_up(attachment: Attachment) -> None:
    """Close what the shard may have opened: its client does not have it and never will."""
    session_id, link = attachment.session_id, attachment.link
    close = encode_command(SessionClose(reason="open_abandoned"))
    link.send(ClientInput(session_id, CommandNo(1, 1), close))
    link.send(Detach(session_id, 1))
    sessions = attachment.gateway.sessions
    attachment.gateway.chores.add("let_go", session_id, lambda: sessions.let_go(session_id, 1))  # an heir asks there
