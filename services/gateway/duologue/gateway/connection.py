"""One socket's conversation with the gateway: which step a frame leads to, and what is refused. SANS-I/O.

    waiting ──first message──► opening | resuming ──► attached ──► closing      (duplex)
    provisional ──first command──► opening ──► attached ──► closing              (OpenAI dialects)
    provisional ◄──refused update── opening
    resuming ──► attached                                                       (OpenAI dialects, by query)

Rule 1. Frames are decoded here, once, and never inspected again: what is not the gateway's own business goes
        on to the shard as it is.
Rule 2. While an open or a resume is on its way no frame is read: the shell carries a step out before it asks
        for the next one.
Rule 3. Every refusal is an `error` in the client's dialect; one that ends the socket names its close code.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from duologue.gateway.envelope import Undecodable, first_message
from duologue.gateway.errors import local_error, refusal_of
from duologue.gateway.handshake import Offer
from duologue.protocol.duplex import (
    DuplexCommand,
    JsonObject,
    RealtimeProtocolError,
    SessionEventAck,
    SessionResume,
    SessionUpdate,
    command_from_realtime,
    is_undecodable,
)

POLICY: Final = 1008


class State(Enum):
    waiting = "waiting"
    provisional = "provisional"
    opening = "opening"
    resuming = "resuming"
    attached = "attached"
    closing = "closing"


class Tell(msgspec.Struct, frozen=True, gc=False):
    """Write one local event and go on reading."""

    payload: bytes
    undecodable: str = ""
    """The code of a frame that yielded no command."""


class End(msgspec.Struct, frozen=True, gc=False):
    """Write one local event, then a close frame."""

    payload: bytes
    close_code: int
    reason: str = ""
    undecodable: str = ""


class Open(msgspec.Struct, frozen=True):
    """Open a session, then carry `then` out in it."""

    session: JsonObject
    """As the client sent it; empty for a default session."""
    event_id: str | None = None
    by_update: bool = True
    then: DuplexCommand | None = None


class Resume(msgspec.Struct, frozen=True):
    """Attach this socket to a session that there is."""

    session_id: str
    token: str
    cursor: int
    event_id: str | None = None


class Forward(msgspec.Struct, frozen=True, gc=False):
    """Give a command to the shard."""

    command: DuplexCommand


class Acknowledge(msgspec.Struct, frozen=True, gc=False):
    """The client has everything up to `seq`, if that was sent at all."""

    seq: int
    event_id: str | None


Step = Tell | End | Open | Resume | Forward | Acknowledge


class Connection:
    """The state of one accepted socket."""

    def __init__(self, offer: Offer, remote: str = "") -> None:
        self.offer = offer
        self.remote = remote
        """Where the client connects from; for the audit."""
        self.openai = offer.dialect.is_openai
        self.state = State.provisional if self.openai else State.waiting
        self._undecodable = Undecodable()

    # -- from the client --------------------------------------------------------------------------------

    def begin(self) -> Step | None:
        """Called once, when the socket has been accepted: a resume that the query asks for."""
        asked = self.offer.resume
        if asked is None:
            return None
        missing = next((key for key in ("resume_session", "resume_token", "last_seq") if not asked.get(key)), "")
        if missing:
            return self._end("invalid_session_resume", f"a resume by query needs {missing}", param=missing)
        cursor = asked["last_seq"]
        if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
            message = "last_seq is the number of the last event received"
            return self._end("invalid_session_resume", message, param="last_seq")
        self.state = State.resuming
        return Resume(asked["resume_session"], asked["resume_token"], int(cursor))

    def receive(self, frame: str | bytes, now: float) -> Step:
        """The step that one message leads to. `now`: monotonic seconds."""
        try:
            command = command_from_realtime(frame)
        except RealtimeProtocolError as error:
            return self._refuse(error, now)
        if self.state is State.attached:
            return self._command(command)
        return self._first(command)

    def _command(self, command: DuplexCommand) -> Step:
        if isinstance(command, SessionEventAck):
            return Acknowledge(command.server_event_seq, command.event_id)
        if isinstance(command, SessionResume):
            return Tell(self._late_resume(command.event_id))
        return Forward(command)

    def _first(self, command: DuplexCommand) -> Step:
        offer = self.offer
        kind = first_message(command.type, resume_only=offer.resume_only, no_autostart=offer.no_autostart)
        if isinstance(command, SessionResume) and kind == "resume":
            if self.openai:  # its `session.created` is out already
                return Tell(self._late_resume(command.event_id))
            self.state = State.resuming
            cursor = command.last_received_server_event_seq
            return Resume(command.session_id, command.resume_token, cursor, command.event_id)
        if kind == "refused":
            wanted = "session.resume" if offer.resume_only else "session.update or session.resume"
            return self._end(
                "bad_event", f"the first message must be {wanted}", param="type", event_id=command.event_id
            )
        if isinstance(command, SessionUpdate):
            self.state = State.opening
            return Open(command.session, command.event_id)
        self.state = State.opening
        return Open({}, None, False, command)

    def carry_on(self, command: DuplexCommand) -> Step:
        """The step for the command that opened a default session, once that is open."""
        return self._command(command)

    # -- what became of a step ----------------------------------------------------------------------------

    def attached(self) -> None:
        self.state = State.attached

    def open_refused(self, *, final: bool) -> None:
        """The shard refused. In the OpenAI dialects the session stays provisional unless that was `final`."""
        self.state = State.closing if final else State.provisional

    def closing(self) -> None:
        self.state = State.closing

    def timed_out(self, patience_s: float) -> End:
        """No first message in time; a provisional session has idled."""
        if self.openai:
            self.state = State.closing
            return End(self.error("session_expired", "the session idled too long"), 1000, "idle_ttl_expired")
        return self._end("config_timeout", f"no first message in {patience_s:g} s")

    # -- refusals -----------------------------------------------------------------------------------------

    def error(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        event_id: str | None = None,
        retry_after_ms: int | None = None,
    ) -> bytes:
        """One local error in this client's dialect."""
        return local_error(
            code, message, param=param, event_id=event_id, retry_after_ms=retry_after_ms, openai=self.openai
        )

    def bad_ack(self, event_id: str | None) -> bytes:
        return self.error(
            "invalid_event_ack",
            "server_event_seq is beyond what was sent",
            param="server_event_seq",
            event_id=event_id,
        )

    def _late_resume(self, event_id: str | None) -> bytes:
        return self.error(
            "unsupported_session_resume",
            "session.resume must be the first message",
            param="type",
            event_id=event_id,
        )

    def _end(self, code: str, message: str, *, param: str | None = None, event_id: str | None = None) -> End:
        self.state = State.closing
        return End(self.error(code, message, param=param, event_id=event_id), POLICY, code)

    def _refuse(self, error: RealtimeProtocolError, now: float) -> Step:
        payload = refusal_of(error, openai=self.openai)
        undecodable = error.code if is_undecodable(error) else ""
        if undecodable and self._undecodable.add(now):
            self.state = State.closing
            return End(payload, POLICY, "too_many_undecodable_frames", undecodable)
        if self.state is State.waiting:
            self.state = State.closing
            return End(payload, POLICY, error.code, undecodable)
        return Tell(payload, undecodable)
