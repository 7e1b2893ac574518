"""One accepted WebSocket: reads frames, carries their steps out, and cleans up after itself.

Rule 1. One reader. While a step waits (an open, a resume, no credit) no further frame is read: that is the
        backpressure towards the client. A frame that need not wait costs no task switch.
Rule 2. All writes go to the wire at once, from wherever they arise, in the order in which they arise.
Rule 3. However it ends, cancelled at any await included, the session is left detached, replaced or closed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from duologue.gateway import audit
from duologue.gateway.announce import created, going_away, resync_required
from duologue.gateway.attachment import Attachment
from duologue.gateway.connection import Acknowledge, Connection, End, Forward, Open, Resume, State, Step, Tell
from duologue.gateway.context import Gateway
from duologue.gateway.handshake import Offer
from duologue.gateway.opening import POLICY, RETRY_AFTER_MS, TRY_AGAIN, Opening, Refused
from duologue.gateway.provisional import Credentials, new_credentials, provisional_session
from duologue.gateway.rehoming import Rehoming
from duologue.gateway.resuming import Replayable, ReplayGap, Resuming, entries_of
from duologue.gateway.secrets import SecretPass
from duologue.gateway.wire import LINGER_S, REST, Wire
from duologue.protocol.duplex import DuplexCommand, splice_seq
from duologue.store.ports import StoreUnavailable

_log = logging.getLogger("duologue.gateway")

Message = Any
"""An ASGI message: uvicorn's own type is private."""
Receive = Callable[[], Awaitable[Message]]

REPLAY_PAGE: Final = 16
REPLAY_RETRY_S: Final = 0.2
REPLAY_PATIENCE_S: Final = 10.0


class ClientSocket:
    """See the module."""

    def __init__(
        self,
        gateway: Gateway,
        offer: Offer,
        principal: str,
        wire: Wire,
        receive: Receive,
        secret: SecretPass | None = None,
        remote: str = "",
    ) -> None:
        """`remote`: where the client connects from."""
        self.gateway = gateway
        self._secret = secret
        self.wire = wire
        self.connection = Connection(offer, remote)
        self.attachment: Attachment | None = None
        self._principal = principal
        self._receive = receive
        self._credentials: Credentials | None = None
        self._confirmed = True
        self._replay: asyncio.Task[None] | None = None
        self._rehoming: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._resuming_since = 0.0

    @property
    def waiting(self) -> bool:
        """It has said nothing yet that makes it a session."""
        return self.connection.state in (State.waiting, State.provisional)

    async def run(self) -> None:
        """Until the socket is closed, by whoever."""
        self.gateway.enter(self)
        self.wire.on_room = self._on_room
        try:
            step: Step | None = self._begin()
            while True:
                if step is not None:
                    step = await self._carry_out(step)
                    if step is not None:
                        continue
                if self.connection.state is State.closing:
                    return
                if self.connection.state is State.attached:
                    return await self._serve()
                frame = await self._first_frame()
                if frame is None:
                    return
                step = frame if isinstance(frame, End) else self.connection.receive(frame, self.gateway.now())
        except Exception:
            self._fault()
        finally:
            self._end()

    def _fault(self) -> None:
        """An exception that nothing of a client should cause."""
        _log.exception("the socket of session %s is closed: a fault of this gateway", self._session_id)
        self._close(self.connection.error("internal_error", "a fault of the server"), 1011, "internal_error")

    @property
    def _session_id(self) -> str:
        return self.attachment.session_id if self.attachment is not None else "(none)"

    def drain(self, deadline_s: float) -> None:
        """This gateway will be gone in `deadline_s`."""
        if not self.connection.openai:
            self.wire.write(going_away(int(deadline_s * 1000)))

    def restart(self) -> None:
        """The deadline has come: the client may resume elsewhere."""
        self.connection.closing()
        # A client that has not read until now would keep the process for the whole of the linger.
        linger_s = LINGER_S if self.wire.has_room() else 0.0
        self.wire.finish(1012, "service restart", linger_s)

    # -- before a session ---------------------------------------------------------------------------------

    def _begin(self) -> Step | None:
        step = self.connection.begin()
        if step is not None:
            return step
        offer, models = self.connection.offer, self.gateway.router.models
        if offer.model and models and offer.model not in models and not offer.may_resume:
            self.connection.closing()
            message = f"there is no model {offer.model[:80]!r}"
            return End(self.connection.error("model_not_found", message, param="model"), POLICY, "model_not_found")
        if self.connection.openai:
            return self._announce_provisional()
        return None

    def _announce_provisional(self) -> Step | None:
        self._credentials = credentials = new_credentials()
        models = self.gateway.router.models
        preset = {} if self._secret is None else self._secret.preset
        named = preset.get("model") or self.connection.offer.model
        pipeline = models.get(named) or self.gateway.router.first_model
        if pipeline is None:
            self.connection.closing()
            error = self.connection.error(
                "resource_exhausted", "no session service is reachable", retry_after_ms=RETRY_AFTER_MS
            )
            return End(error, TRY_AGAIN, "resource_exhausted")
        session = provisional_session(
            credentials.session_id,
            pipeline,
            self.connection.offer.dialect,
            now_unix_s=time.time(),
            limits=self.gateway.limits,
            secret=self._secret,
        )
        self.wire.write(created(session, 1, credentials.token, head_seq=0))
        return None

    async def _first_frame(self) -> str | bytes | End | None:
        """The next frame of a socket without a session; None: it is gone."""
        gateway = self.gateway
        patience = gateway.limits.idle_timeout_s if self.connection.openai else gateway.settings.first_message_timeout_s
        try:
            async with asyncio.timeout(patience):
                return _frame(await self._receive())
        except TimeoutError:
            return self.connection.timed_out(patience)

    # -- steps that are rare ------------------------------------------------------------------------------

    async def _carry_out(self, step: Step) -> Step | None:
        """Do it; the answer is what is to be done next, if anything."""
        if isinstance(step, Open):
            return await self._open(step)
        if isinstance(step, Resume):
            return await self._resume(step)
        if isinstance(step, End):
            if step.undecodable:
                self.gateway.tally.bad_frame(step.undecodable)
            self.wire.write(step.payload)
            self.wire.finish(step.close_code, step.reason)
            self.connection.closing()
        elif isinstance(step, Tell):
            if step.undecodable:
                self.gateway.tally.bad_frame(step.undecodable)
            self.wire.write(step.payload)
            await self._wait_for_room()
        elif isinstance(step, Acknowledge):
            if self.attachment is None or not self.attachment.client_has(step.seq):
                self.wire.write(self.connection.bad_ack(step.event_id))
                await self._wait_for_room()
        elif self.attachment is not None:
            await self._forward(self.attachment, step)
        return None

    async def _open(self, step: Open) -> Step | None:
        credentials = self._credentials or new_credentials()
        opening = Opening(self.gateway, self.wire, self.connection, self._principal, credentials, self._secret)
        outcome = await opening.run(step)
        if isinstance(outcome, Refused):
            self.gateway.tally.refused(outcome.reason or outcome.code)
            return self._refused(outcome)
        self.attachment = outcome
        outcome.on_homeless = self._find_home
        audit.opened(outcome)
        self.connection.attached()
        return None if step.then is None else self.connection.carry_on(step.then)

    async def _resume(self, step: Resume) -> Step | None:
        self._resuming_since = self.gateway.now()
        outcome = await Resuming(self.gateway, self.wire, self.connection, self._principal, step).run()
        if isinstance(outcome, Refused):
            self.gateway.tally.resumed(outcome.code)
            return self._refused(outcome)
        self.attachment = outcome.attachment
        self.attachment.on_homeless = self._find_home
        self.attachment.outbound.sent = outcome.cursor
        audit.resumed(outcome.attachment, took_over=outcome.took_over)
        self._confirmed = False
        self.connection.attached()
        if outcome.cursor < outcome.head_seq:
            self._replay = asyncio.create_task(self._replay_from(outcome))
            self._replay.add_done_callback(self._replayed)
        else:
            self._go_live(outcome.attachment)
        return None

    def _go_live(self, attachment: Attachment) -> None:
        attachment.go_live()
        self.gateway.tally.resumed("ok", self.gateway.now() - self._resuming_since)

    def _refused(self, refused: Refused) -> Step:
        if refused.final:
            self.connection.closing()
            return End(refused.error, refused.close_code, refused.code)
        self.connection.open_refused(final=False)
        return Tell(refused.error)

    # -- a session is attached ------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """What `_on_frame` could not finish, and the end of the socket."""
        attachment, wire = self.attachment, self.wire
        assert attachment is not None
        wire.gathering = self.gateway.gathering
        while attachment.ended is None and self.connection.state is not State.closing:
            wire.sink = self._on_frame
            message = await self._receive()
            wire.sink = None
            if message["type"] == REST:
                await self._carry_out(message["rest"])
                continue
            frame = _frame(message)
            if frame is None:
                return
            step = self._step(attachment, frame)
            if step is not None:
                await self._carry_out(step)

    def _on_frame(self, frame: str) -> Step | None:
        """The hot path: one text frame, finished without waiting if that is possible."""
        attachment = self.attachment
        assert attachment is not None
        try:
            return self._at_once(attachment, self._step(attachment, frame))
        except Exception:
            self._fault()
            return None

    def _at_once(self, attachment: Attachment, step: Step | None) -> Step | None:
        """Do what need not wait; the answer is what is left to do."""
        if type(step) is Forward:
            return None if attachment.forward(step.command) else step
        if type(step) is Acknowledge and attachment.client_has(step.seq):
            return None
        return step

    def take(self, command: DuplexCommand) -> Step | None:
        """A command that needs no decoding, of a caller in this process: as `_on_frame` takes a frame. What is
        answered goes into the queue of received messages, as `REST`."""
        attachment = self.attachment
        if attachment is None or attachment.ended is not None or self.connection.state is not State.attached:
            return None
        if not self._confirmed:
            self._confirm(attachment)
        step = self.connection.carry_on(command)
        return step if self.wire.sink is None else self._at_once(attachment, step)

    def _step(self, attachment: Attachment, frame: str | bytes) -> Step | None:
        """The step of a frame, unless that is void: a replaced socket, or one that is closing."""
        if attachment.ended is not None or self.connection.state is State.closing:
            return None
        tally = self.gateway.tally
        tally.frames_in += 1
        tally.bytes_in += len(frame)
        if not self._confirmed:
            self._confirm(attachment)
        return self.connection.receive(frame, self.gateway.now())

    async def _forward(self, attachment: Attachment, step: Forward) -> None:
        while attachment.ended is None and self.wire.is_open and not attachment.forward(step.command):
            await attachment.wait()

    def _confirm(self, attachment: Attachment) -> None:
        """The client speaks on this attachment: the token before is void."""
        self._confirmed = True
        sessions, session_id, generation = self.gateway.sessions, attachment.session_id, attachment.generation
        self.gateway.chores.add("confirm", session_id, lambda: sessions.confirm(session_id, generation))

    async def _replay_from(self, found: Replayable) -> None:
        """Write what was missed, a page at a time, as fast as the client reads; then go live."""
        attachment, at = found.attachment, found.cursor
        patient_until = self.gateway.now() + REPLAY_PATIENCE_S
        try:
            while at < found.head_seq and attachment.ended is None:
                await self._wait_for_room()
                try:
                    page = await self.gateway.journal.read(attachment.session_id, at, limit=REPLAY_PAGE)
                except StoreUnavailable:
                    if self.gateway.now() > patient_until:
                        self.gateway.tally.resumed("store_unavailable")
                        return self._abandon("store_unavailable", "the journal does not answer", TRY_AGAIN)
                    await asyncio.sleep(REPLAY_RETRY_S)
                    continue
                patient_until = self.gateway.now() + REPLAY_PATIENCE_S
                for entry in entries_of(page).entries:
                    if entry.seq > found.head_seq or attachment.ended is not None:
                        break
                    self.wire.write(splice_seq(entry.body, entry.seq))
                    self.gateway.tally.replayed += 1
                    attachment.outbound.sent = at = entry.seq
            if found.moved:
                attachment.go_live()
            else:
                self._go_live(attachment)
        except ReplayGap as gap:
            self.gateway.tally.resumed("session_resync_required")
            self.gateway.remember_gap(attachment.session_id)
            head_seq = max(gap.head_seq, found.head_seq)  # a journal that is gone altogether says 0
            told = "session %s has a gap: replayed to %d of %d, what comes then has left the journal"
            _log.warning(told, attachment.session_id, at, head_seq)
            notice = resync_required(attachment.session_id, head_seq, openai=self.connection.openai)
            self._close(notice, POLICY, "session_resync_required")

    # -- the shard is lost ------------------------------------------------------------------------------------

    def _find_home(self) -> None:
        if self._rehoming is None or self._rehoming.done():
            self._rehoming = asyncio.create_task(self._rehome())
            self._rehoming.add_done_callback(self._replayed)

    async def _rehome(self) -> None:
        """The socket stays; the session goes on at whatever shard has it now."""
        attachment = self.attachment
        assert attachment is not None
        if self._replay is not None and not self._replay.done():
            await asyncio.wait((self._replay,))
        while attachment.homeless and attachment.ended is None:
            found = await Rehoming(attachment).run()
            if found is None:
                return
            await self._replay_from(found)

    def _replayed(self, replay: asyncio.Task[None]) -> None:
        if not replay.cancelled() and (fault := replay.exception()) is not None:
            _log.error("replay to session %s failed", self._session_id, exc_info=fault)
            self._close(self.connection.error("internal_error", "a fault of the server"), 1011, "internal_error")

    def _abandon(self, code: str, message: str, close_code: int) -> None:
        self._close(self.connection.error(code, message, retry_after_ms=RETRY_AFTER_MS), close_code, code)

    def _close(self, notice: bytes, code: int, reason: str) -> None:
        self.connection.closing()
        self.wire.write(notice)
        self.wire.finish(code, reason)
        if self.attachment is not None:
            self.attachment.socket_gone()

    # -- room and the end -----------------------------------------------------------------------------------

    def _on_room(self) -> None:
        self._room.set()
        self.gateway.tally.socket_waits += self.wire.is_open
        if self.attachment is not None:
            self.attachment.moved.set()
            self.attachment.outbound.drained()

    async def _wait_for_room(self) -> None:
        """Until the client reads again, or is gone."""
        while self.wire.is_open and not self.wire.has_room():
            self._room.clear()
            await self._room.wait()

    def _end(self) -> None:
        self.gateway.leave(self)
        self.wire.on_room = self.wire.sink = None
        for work in (self._replay, self._rehoming):
            if work is not None:
                work.cancel()
        self.gateway.tally.closed(self.wire.close_code)
        if self.attachment is not None:
            self.attachment.leave()
            audit.left(self.attachment, self.wire.close_code)


def _frame(message: Message) -> str | bytes | None:
    """The text or the bytes of a received message; None: the socket is gone."""
    if message["type"] != "websocket.receive":
        return None
    text = message.get("text")
    if text is not None:
        return str(text)
    return bytes(message["bytes"])
