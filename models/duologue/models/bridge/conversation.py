"""One session on an upstream server: what is sent, in which order, and where it stands. SANS-I/O, one thread.

    greeting -> opening -> live -> (resuming -> live)* -> over

Rule 1. Nothing but the opening (or the resume) is sent before the session is live: what the session gives meanwhile
        waits, bounded by whoever asks (`pending_bytes`).
Rule 2. A turn that is to be answered goes up whole, and only when nothing is due from that server any more: it would
        take the turn for speech over its own answer.
Rule 3. Commands carry ids and are kept, within a bound, so that a resume can send again what was lost.
"""

from __future__ import annotations

import base64
from collections import deque
from typing import Any, Final

import msgspec

from duologue.client.cursor import ResumeCursor
from duologue.model.outputs import ModelOutput
from duologue.models.bridge import heads, refusals
from duologue.models.bridge.answers import Event, Told
from duologue.models.bridge.heads import SlotConfig, UnitHead
from duologue.models.bridge.options import Options
from duologue.models.bridge.replies import Counts, Replies
from duologue.models.bridge.session_objects import changes, session_object

KEEP_BYTES: Final = 256 * 1024
"""Commands kept for a resume, of one session."""
ACK_EVERY: Final = 32
"""Events after which that server is told that they arrived."""

GREETING, OPENING, LIVE, RESUMING, OVER = "greeting", "opening", "live", "resuming", "over"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_TURN: Final = frozenset({"input_audio_buffer.append", "input_audio_buffer.commit", "response.create"})


class Conversation:
    """`out` (frames to be sent) and `told` are taken by whoever called."""

    def __init__(self, options: Options, config: SlotConfig, counts: Counts) -> None:
        self.phase = GREETING
        self.out: list[bytes] = []
        self.pending_bytes = 0
        """Of commands that wait for the session to be live, or for their turn."""
        self.failure: tuple[str, str] | None = None
        """Why it is over, of a session that was never open or that the server ended."""
        self._options = options
        self._config = config
        self._object: dict[str, Any] = {}
        self._counts = counts
        self._replies = Replies(options, self._say, counts, auto=config.auto)
        self._cursor = ResumeCursor(KEEP_BYTES)
        self._ids = 0
        self._acked = 0
        self._waiting: deque[tuple[str, str, bytes]] = deque()
        """Made, and not sent: the session is not live."""
        self._held: deque[tuple[str, dict[str, Any]]] = deque()
        """Rule 2."""
        self._buffered = False
        """That server holds sound that is not committed (turn-based)."""

    # -- where it stands -------------------------------------------------------------------------------

    def take_told(self) -> list[Told]:
        told, self._replies.told = self._replies.told, []
        return told

    def take_out(self) -> list[bytes]:
        out, self.out = self.out, []
        return out

    @property
    def is_live(self) -> bool:
        return self.phase == LIVE

    @property
    def owes(self) -> bool:
        return self._replies.owes or bool(self._held)

    @property
    def resumable(self) -> bool:
        return self.phase in (LIVE, RESUMING) and self._options.dialect == "duplex" and self._cursor.resumable

    @property
    def listens(self) -> bool:
        """A unit that goes up now is listened to, as far as anybody tells: the OpenAI dialect has no word for it."""
        return self._config.auto and self._options.dialect == "openai" and not self.owes

    # -- the connection --------------------------------------------------------------------------------

    def connected(self) -> None:
        """A socket is there: say who we are."""
        if self.phase == RESUMING:
            self.out.append(_encode(self._cursor.claim()))
        elif self._options.dialect == "duplex":
            self._open()

    def disconnected(self) -> None:
        """The socket is gone, and another one will be tried."""
        self.phase = RESUMING

    def frame(self, text: str | bytes) -> None:
        """One event."""
        try:
            event = _decode(text)
        except (msgspec.DecodeError, UnicodeError):
            event = None
        if not isinstance(event, dict):
            self._counts.error("invalid_json")
            return
        seq = event.get("server_event_seq")
        numbered = isinstance(seq, int) and event.get("type") != "session.created"
        if numbered and not self._cursor.is_new(seq):
            return
        self._event(event)
        if self._options.dialect == "duplex" and self._cursor.last_seq - self._acked >= ACK_EVERY and self.is_live:
            self._acked = self._cursor.last_seq
            self._say("session.event_ack", server_event_seq=self._acked)

    def quiet(self) -> None:
        """That server has said nothing for as long as it may."""
        if self.phase != LIVE:
            self._over(refusals.TIMEOUT, "the upstream server does not open the session")
        elif self.owes:
            self._held.clear()
            self._count_pending()
            self._replies.give_up(refusals.TIMEOUT, "the upstream server says nothing")

    def alive(self) -> None:
        """Nothing was sent for a while."""
        if self.is_live and self._options.dialect == "duplex":
            self._say("session.heartbeat")

    def farewell(self) -> list[bytes]:
        """What is said before the socket is closed. In the OpenAI dialect closing it is enough."""
        live, self.phase = self.is_live, OVER
        return [_encode({"type": "session.close"})] if live and self._options.dialect == "duplex" else []

    # -- what the session does -------------------------------------------------------------------------

    def unit(self, head: UnitHead, frames: tuple[bytes, ...]) -> None:
        """One unit of input. `frames`: pcm16 at the rate that goes up, and camera frames."""
        flags = head.flags
        if flags & heads.COMMIT and not flags & heads.FINAL:
            self._pass("input_audio_buffer.commit")
        if frames and not flags & heads.CONTINUATION:
            self._pass("input_audio_buffer.append", **self._sound(flags, frames))
        if flags & heads.FINAL:
            self._pass("input_audio_buffer.commit")
        if flags & heads.ASK:
            self._pass("response.create")

    def item(self, head: UnitHead) -> None:
        """An item of the conversation. Of a result: who else would ask for the answer to it?"""
        self._pass("conversation.item.create", item=head.item)
        foreign = self._options.dialect == "openai" and not self._replies.ours
        if head.answers and foreign and self._config.auto and self._config.speaks_duplex:
            self._pass("response.create")

    def cancel(self) -> None:
        self._held = deque(held for held in self._held if held[0] not in _TURN)
        self._count_pending()
        if self._buffered:
            self._buffered = False
            self._say("input_audio_buffer.clear")
        self._replies.cancel()
        self._release()

    def heard(self, ms: int) -> None:
        self._replies.heard(ms)

    def update(self, config: SlotConfig) -> None:
        """The session is configured anew."""
        self._config = config
        if not self._object:
            return  # the opening will say it
        new = session_object(config, self._options, ours=self._replies.ours)
        told = changes(self._object, new, self._options)
        self._object = new
        if told:
            self._say("session.update", session=told)

    # -- inside: up ------------------------------------------------------------------------------------

    def _sound(self, flags: int, frames: tuple[bytes, ...]) -> dict[str, Any]:
        told: dict[str, Any] = {"audio": base64.b64encode(frames[0]).decode("ascii")}
        if self._options.dialect != "duplex":
            return told
        told |= {"format": "pcm16", "sample_rate_hz": self._options.heard_rate_hz}
        if not flags & heads.AUTO:
            told["is_speech"] = True  # of a turn: what is none of it was left out already
        elif flags & heads.KNOWN:
            told["is_speech"] = bool(flags & heads.SPEECH)
        if flags & heads.FORCE_LISTEN:
            told["force_listen"] = True
        if len(frames) > 1:
            told["video_frames"] = [base64.b64encode(frame).decode("ascii") for frame in frames[1:]]
        return told

    def _pass(self, kind: str, **fields: Any) -> None:
        """Send it, or hold it back until nothing is due (rule 2). Sound of an auto session is live: it never waits."""
        live_sound = self._config.auto and kind.startswith("input_audio_buffer.")
        waits = self._replies.owes and (kind == "response.create" or not self._config.auto)
        if not live_sound and (self._held or waits):
            self._held.append((kind, fields))
            self._count_pending()
        else:
            self._send_turn(kind, fields)

    def _release(self) -> None:
        """Send what was held back, if nothing is due any more: up to the next request for an answer."""
        while self._held and not self._replies.owes:
            self._send_turn(*self._held.popleft())
        self._count_pending()

    def _send_turn(self, kind: str, fields: dict[str, Any]) -> None:
        event_id = self._say(kind, **fields)
        if kind == "response.create":
            self._replies.asked(event_id)
        elif not self._config.auto and kind.startswith("input_audio_buffer."):
            self._buffered = kind == "input_audio_buffer.append"

    def _say(self, kind: str, **fields: Any) -> str:
        """Make a command and send it as soon as the session is live; its id."""
        self._ids += 1
        event_id = f"up_{self._ids}"
        frame = _encode({"type": kind, "event_id": event_id, **fields})
        if self.is_live:
            self._send(event_id, kind, frame)
        elif self.phase != OVER:
            self._waiting.append((event_id, kind, frame))
            self._count_pending()
        return event_id

    def _send(self, event_id: str, kind: str, frame: bytes) -> None:
        if self._options.dialect == "duplex" and self._options.resume_s:
            self._cursor.sent(event_id, kind, frame.decode())
        self.out.append(frame)

    def _count_pending(self) -> None:
        held = sum(len(fields.get("audio", "")) + 64 for _, fields in self._held)
        self.pending_bytes = held + sum(len(frame) for _, _, frame in self._waiting)

    # -- inside: down ----------------------------------------------------------------------------------

    def _event(self, event: Event) -> None:
        kind = event.get("type")
        if kind == "error":
            self._refused(event)
        elif kind == "session.created":
            self._created(event)
        elif kind == "session.updated":
            if self.phase == OPENING:
                self._opened()
        elif kind == "session.resumed":
            self._resumed(event)
        elif kind in ("session.closed", "session.expired", "session.replaced", "session.resync_required"):
            self._ended(str(event.get("reason") or kind))
        elif self.phase in (LIVE, RESUMING):
            try:
                self._replies.take(event)
            except ValueError as error:
                self._counts.error(refusals.FAILED)
                self._replies.told.append(Told(ModelOutput(error_code=refusals.FAILED, error=str(error))))
            self._release()

    def _created(self, event: Event) -> None:
        session = event.get("session") or {}
        token = event.get("resume_token")
        self._cursor.learn(
            str(session.get("id") or session.get("session_id") or ""), token if isinstance(token, str) else ""
        )
        if self._options.dialect == "openai" and self.phase == GREETING:
            self._replies.ours = bool(token)
            self._open()

    def _open(self) -> None:
        self._object = session_object(self._config, self._options, ours=self._replies.ours)
        self.phase = OPENING
        self.out.append(_encode({"type": "session.update", "event_id": "up_0", "session": self._object}))

    def _opened(self) -> None:
        """The OpenAI dialect has no opening text in its session: it is the first item."""
        text = self._config.initial_user_text
        if text and self._options.dialect == "openai":
            later, self._waiting = self._waiting, deque()
            content = [{"type": "input_text", "text": text}]
            self._say("conversation.item.create", item={"type": "message", "role": "user", "content": content})
            self._waiting += later
        self._go_live()

    def _go_live(self) -> None:
        self.phase = LIVE
        while self._waiting:
            self._send(*self._waiting.popleft())
        self._count_pending()
        self._release()

    def _resumed(self, event: Event) -> None:
        token = event.get("resume_token")
        self._cursor.learn("", token if isinstance(token, str) else "")
        if "last_client_event_id" in event:
            self.out += [frame.encode() for frame in self._cursor.to_resend(event["last_client_event_id"])]
        self._go_live()

    def _refused(self, event: Event) -> None:
        told = event.get("error")
        error = told if isinstance(told, dict) else {"message": told, "code": event.get("code")}
        code, message = refusals.code_and_message(error)
        if error.get("code") == "session_expired":
            self._ended("session_expired")
        elif self.phase == LIVE:
            self._replies.refused(error)
            self._release()
        else:
            self._counts.error(code)
            self._over(code, message)

    def _ended(self, reason: str) -> None:
        if self.phase != OVER:
            self._over(refusals.LOST, f"the upstream server ended the session: {reason[: refusals.MAX_CHARS]}")

    def _over(self, code: str, message: str) -> None:
        self.failure = (code, message)
        self.phase = OVER
