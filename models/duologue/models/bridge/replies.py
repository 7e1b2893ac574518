"""What an upstream server says, event by event: which of it is for the session, and as what. SANS-I/O.

Rule 1. A cancel fences every response that is open then, and every one that was asked for and is not there yet:
        nothing of them is passed on, whatever still comes. One that comes into being late is cancelled then.
Rule 2. A response that was asked for answers the oldest request: servers make them in order.
Rule 3. An error that names a command of ours belongs to that command; one that names none belongs to the response
        that is open, and is told with its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from duologue.model.outputs import ModelOutput, ToolCall, UserTurn
from duologue.models.bridge import refusals
from duologue.models.bridge.answers import Answer, Event, Told, tool_call, usage_of
from duologue.models.bridge.options import Options

MAX_OPEN: Final = 32
"""Responses that one upstream session may have open; of more the oldest is forgotten."""


class Counts(Protocol):
    """Where it is told what happened (`metering`)."""

    def error(self, code: str) -> None: ...

    def stale(self) -> None: ...


class Replies:
    """`say` sends a command and returns its id. `told` is taken by whoever called."""

    def __init__(self, options: Options, say: Callable[..., str], counts: Counts, *, auto: bool) -> None:
        self.told: list[Told] = []
        self.ours = False
        """The server knows the extensions of the duplex contract."""
        self._options = options
        self._say = say
        self._counts = counts
        self._auto = auto
        self._hears_turns = auto and options.turn_detection is not None
        self._open: dict[str, Answer] = {}
        self._fenced: dict[str, None] = {}
        self._asked: dict[str, bool] = {}
        """Requests for a response, by the id of the command; True: it was cancelled since."""
        self._cancels: dict[str, None] = {}
        self._last: Answer | None = None
        """The latest that spoke and has ended."""
        self._cut_ms: int | None = None
        self._why: tuple[str, str] | None = None
        self._speech_ms = 0
        self._handlers: dict[str, Callable[[Event], None]] = {
            "response.created": self._created,
            "response.output_item.added": self._item_added,
            "response.output_item.done": self._item_done,
            "response.listen": self._listened,
            "response.done": self._done,
            "duplex.function_call.done": self._malformed_call,
            "input_audio_buffer.speech_started": self._speech_started,
            "input_audio_buffer.speech_stopped": self._speech_stopped,
            "conversation.item.input_audio_transcription.completed": self._transcribed,
        }
        for prefix in ("response.output_audio", "response.audio"):
            self._handlers[f"{prefix}.delta"] = self._sound
            self._handlers[f"{prefix}_transcript.delta"] = self._words
        for prefix in ("response.output_text", "response.text"):
            self._handlers[f"{prefix}.delta"] = self._words

    # -- what is known ---------------------------------------------------------------------------------

    @property
    def owes(self) -> bool:
        """An answer is due from that server."""
        return bool(self._open or self._asked or self._fenced)

    @property
    def speaks_duplex(self) -> bool:
        return self._options.dialect == "duplex"

    # -- what the session does -------------------------------------------------------------------------

    def asked(self, event_id: str) -> None:
        """A response was asked for, by this command."""
        self._asked[event_id] = False

    def heard(self, ms: int) -> None:
        """So much of the latest answer was heard, and no more will be."""
        spoken = next((answer for answer in reversed(self._open.values()) if answer.spoke), None)
        if spoken is None:
            self._truncate(self._last, ms)
            return
        self._cut_ms = ms
        if self.speaks_duplex or self.ours:
            self._say("playback.ack", response_id=spoken.id, played_ms=ms)

    def cancel(self) -> None:
        """See rule 1."""
        for event_id in self._asked:
            self._asked[event_id] = True
        cut_ms, self._cut_ms, self._why = self._cut_ms, None, None
        for answer in list(self._open.values()):
            self._fence(answer.id)
            if cut_ms is not None and answer.spoke and not (self.speaks_duplex or self.ours):
                self._truncate(answer, cut_ms)
        self._open.clear()

    def _fence(self, response_id: str) -> None:
        self._fenced[response_id] = None
        _keep(self._fenced)
        self._cancels[self._say("response.cancel", response_id=response_id)] = None
        _keep(self._cancels)

    def _truncate(self, answer: Answer | None, ms: int) -> None:
        if answer is None or not answer.item_id or ms >= answer.ms:
            return
        self._say("conversation.item.truncate", item_id=answer.item_id, content_index=0, audio_end_ms=ms)

    def give_up(self, code: str, message: str) -> None:
        """Nothing more comes of what is due: fail it, and tell that server."""
        failed = bool(self._open or not all(self._asked.values()))
        self.cancel()
        self._asked.clear()
        self._fenced.clear()
        if failed:
            self._fail(code, message)

    # -- what that server says -------------------------------------------------------------------------

    def take(self, event: Event) -> None:
        """One event. Raises ValueError for what cannot be read of a response that nobody knows."""
        handle = self._handlers.get(str(event.get("type")))
        if handle is None:
            return
        response_id = _response_id(event)
        if response_id in self._fenced:
            self._counts.stale()
            if event["type"] == "response.done":
                del self._fenced[response_id]
                self._tell_usage(event)
            return
        try:
            handle(event)
        except ValueError as error:
            answer = self._open.pop(response_id, None)
            if answer is None:
                raise
            self._fence(answer.id)
            self._fail(refusals.FAILED, f"the upstream server sent what cannot be read: {error}")

    def refused(self, error: Any) -> None:
        """An `error` event, after the session is open."""
        code, message = refusals.code_and_message(error)
        self._counts.error(code)
        named = error.get("event_id") if isinstance(error, dict) else None
        if named in self._asked or (named is None and self._asked and not self._open):
            doomed = self._asked.pop(named if named in self._asked else next(iter(self._asked)))
            if not doomed:
                self._fail(code, message)
        elif named in self._cancels or code in refusals.NOTHING_TO_CANCEL:
            self._cancels.pop(str(named), None)
        elif self._open:
            # It may be why the response is about to end. What a command of ours was refused for is only counted:
            # told now, it would end the response.
            self._why = (code, message) if named is None else self._why
        elif not self._asked:
            self._fail(code, message)

    def _created(self, event: Event) -> None:
        response_id = _response_id(event)
        promised = False
        if self._asked:
            doomed = self._asked.pop(next(iter(self._asked)))
            if doomed:
                self._fence(response_id)
                return
            promised = True
        paired = self.speaks_duplex or self.ours
        rate_hz = self._options.output_rate_hz
        self._open[response_id] = Answer(response_id, promised=promised, paired=paired, rate_hz=rate_hz)
        _keep(self._open)

    def _answer(self, event: Event) -> Answer | None:
        answer = self._open.get(_response_id(event))
        if answer is None:
            self._counts.stale()
        return answer

    def _sound(self, event: Event) -> None:
        if (answer := self._answer(event)) is not None:
            self.told += answer.sound(event)

    def _words(self, event: Event) -> None:
        if (answer := self._answer(event)) is not None:
            self.told += answer.words(event)

    def _item_added(self, event: Event) -> None:
        answer, item = self._answer(event), event.get("item")
        if answer is not None and isinstance(item, dict) and item.get("type") == "message":
            answer.item_id = str(item.get("id") or "")

    def _item_done(self, event: Event) -> None:
        answer, item = self._answer(event), event.get("item")
        if answer is None or not isinstance(item, dict) or item.get("type") != "function_call":
            return
        answer.called = True
        self._tell(answer.rest())
        self.told.append(Told(ModelOutput(tool_calls=(tool_call(item),))))

    def _malformed_call(self, event: Event) -> None:
        told = event.get("event")
        raw = told.get("raw") if isinstance(told, dict) else None
        self.told.append(Told(ModelOutput(tool_calls=(ToolCall(raw=raw if isinstance(raw, str) else str(told)),))))

    def _listened(self, event: Event) -> None:
        reason = _reason((event.get("response") or {}).get("metadata"))
        answer = self._open.get(_response_id(event))
        if answer is not None:
            answer.listened = True
            if answer.promised:
                self.told.append(Told(ModelOutput(listen=True, reason=reason)))
        elif self._auto and not self._asked:
            self.told.append(Told(ModelOutput(listen=True, reason=reason)))

    def _done(self, event: Event) -> None:
        answer = self._open.pop(_response_id(event), None)
        if answer is None:
            self._counts.stale()
            return
        self._tell(answer.rest())
        response = event.get("response") or {}
        why, self._why = self._why, None
        self._acknowledge(answer)
        status = response.get("status")
        if status == "failed":
            self._fail(*(why or _failure(response)))
            return
        self._end(answer, response, cancelled=status == "cancelled")
        if why is not None:
            self._fail(*why)

    def _end(self, answer: Answer, response: Event, *, cancelled: bool) -> None:
        usage = usage_of(response)
        if cancelled and (answer.spoke or answer.promised):
            # That server heard an interruption. Where this session is not to be interrupted, the answer just ends.
            self.told.append(Told(ModelOutput(interrupt="turn_detected", usage=usage)))
            self.told.append(Told(ModelOutput(end_of_turn=True)))
        elif answer.promised and not (answer.spoke or answer.listened or answer.called) and not self.speaks_duplex:
            # The OpenAI dialect has no word for a model that goes on listening: an answer without anything is one.
            self.told.append(Told(ModelOutput(listen=True, usage=usage)))
        elif answer.spoke or (answer.promised and not answer.listened):
            self.told.append(Told(ModelOutput(end_of_turn=True, usage=usage)))
        elif usage is not None:
            self.told.append(Told(ModelOutput(usage=usage)))

    def _acknowledge(self, answer: Answer) -> None:
        """Whether it is heard is this session's business: that server is not to wait for its sound to pass."""
        if not answer.ms:
            return
        self._last = answer
        if self.speaks_duplex or self.ours:
            self._say("playback.ack", response_id=answer.id, played_ms=round(answer.ms))

    def _speech_started(self, event: Event) -> None:
        if self._hears_turns:
            self._speech_ms = _ms(event.get("audio_start_ms"))
            self.told.append(Told(ModelOutput(speech_started_ms=self._speech_ms)))

    def _speech_stopped(self, event: Event) -> None:
        if self._hears_turns:
            self.told.append(Told(ModelOutput(speech_stopped_ms=_ms(event.get("audio_end_ms")))))

    def _transcribed(self, event: Event) -> None:
        transcript = event.get("transcript")
        if self._hears_turns and isinstance(transcript, str) and transcript:
            turn = UserTurn(transcript, self._speech_ms, self._speech_ms, answer=False)
            self.told.append(Told(ModelOutput(user_turn=turn)))

    # -- telling ---------------------------------------------------------------------------------------

    def _tell(self, told: Iterable[Told]) -> None:
        self.told += told

    def _tell_usage(self, event: Event) -> None:
        usage = usage_of(event.get("response") or {})
        if usage is not None:
            self.told.append(Told(ModelOutput(usage=usage)))

    def _fail(self, code: str, message: str) -> None:
        self.told.append(Told(ModelOutput(error_code=code, error=message)))


def _response_id(event: Event) -> str:
    response = event.get("response")
    inner = response.get("id") if isinstance(response, dict) else None
    return str(event.get("response_id") or inner or "")


def _reason(metadata: object) -> str:
    reason = metadata.get("reason") if isinstance(metadata, dict) else None
    return reason if isinstance(reason, str) and reason else "model_listen"


def _failure(response: Event) -> tuple[str, str]:
    """The code of a failed response, in either dialect."""
    details = response.get("status_details")
    if not isinstance(details, dict):
        return refusals.code_and_message(None)
    error = details.get("error")
    told = dict(error) if isinstance(error, dict) else {"code": details.get("reason")}
    told.setdefault("message", "the upstream response failed")
    return refusals.code_and_message(told)


def _ms(value: object) -> int:
    return int(value) if isinstance(value, int | float) and value >= 0 else 0


def _keep(known: dict[str, Any]) -> None:
    while len(known) > MAX_OPEN:
        del known[next(iter(known))]
