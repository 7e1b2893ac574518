"""What the owner before told beyond the checkpoint is taken into the state of its heir, in the order told. SANS-I/O.

Rule 1. What the client was told is so: responses are opened and ended as told, items are placed and removed, and
        nothing of that is told again. What was begun and not told to its end is ended by the heir.
Rule 2. What a command or the input will do again is left to them (see `echoes`): sound, configuration, turns.
Rule 3. An event that we cannot read leaves a gap.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Any

import msgspec

from duologue.protocol.duplex import Item, Response, ResponseDone, StatusDetails
from duologue.session.core import history, responses
from duologue.session.core.context import UNSET, SessionContext
from duologue.session.core.echoes import MAX_TOLD, Answer, call_key, key_of
from duologue.session.core.engine_session import HistoryItem, OpenResponse, ToolCallState

_BETA = {
    "response.audio.delta": "response.output_audio.delta",
    "response.audio_transcript.delta": "response.output_audio_transcript.delta",
    "response.text.delta": "response.output_text.delta",
}
_WORDS = ("response.output_audio_transcript.delta", "response.output_text.delta")
_ITEM = ("conversation.item.added", "conversation.item.created", "conversation.item.done")
_SPOKEN = "resp-"
"""Ids of responses that are said begin so; those of function calls do not."""


class _Cursors(msgspec.Struct):
    generated_ms: float = 0.0
    played_ms: float = 0.0
    committed_ms: float = 0.0


class _Stated(msgspec.Struct):
    epoch: int = 0
    playback: _Cursors = msgspec.field(default_factory=_Cursors)
    no_response: bool = False


class _Reason(msgspec.Struct):
    reason: str = ""


class _Response(msgspec.Struct):
    id: str = ""
    status: str = ""
    status_details: _Reason | None = None
    output: tuple[Item, ...] = ()
    modalities: tuple[str, ...] = ()
    output_modalities: tuple[str, ...] = ()
    metadata: dict[str, Any] | None = None

    @property
    def stated(self) -> _Stated:
        duplex = (self.metadata or {}).get("duplex_event")
        return _Stated() if duplex is None else msgspec.convert(duplex, _Stated, strict=False)


class _Part(msgspec.Struct):
    type: str = ""


class _Told(msgspec.Struct):
    """As much of a rendered event as the fold reads."""

    type: str
    response_id: str | None = None
    item_id: str | None = None
    previous_item_id: str | None = None
    item: Item | None = None
    response: _Response | None = None
    part: _Part | None = None
    metadata: _Stated | None = None
    event: _Stated | str | None = None
    epoch: int = 0
    delta: str = ""
    transcript: str | None = None
    audio_start_ms: float = 0.0
    audio_end_ms: float = 0.0


_decode = msgspec.json.Decoder(_Told).decode


def fold(ctx: SessionContext, bodies: Sequence[bytes]) -> list[OpenResponse]:
    """Take all of it in; the responses that have ended by it."""
    echoes = ctx.state.echoes
    told: list[_Told] = []
    echoes.begin(ctx.now)
    if len(bodies) > MAX_TOLD:
        echoes.gap = True
    for body in bodies[-MAX_TOLD:]:
        try:
            key, event = key_of(body), _decode(body)
        except msgspec.MsgspecError:
            echoes.gap = True
            continue
        told.append(event)
        if key is not None:
            echoes.add(key)
            ctx.observed.told_beyond += 1
    folding = _Folding(ctx)
    echoes.silent = True
    for event in told:
        folding.take(event)
    echoes.silent = False
    folding.finish()
    return folding.ended


class _Folding:
    """One pass over the events."""

    def __init__(self, ctx: SessionContext) -> None:
        self._ctx = ctx
        self.ended: list[OpenResponse] = []
        self._opened: Item | None = None
        """The item of the open response, where that was opened here."""
        self._calls: dict[str, Item | None] = {}
        """Responses of function calls that have not ended, and what is known of the call."""
        self._turn = ""
        """The last turn that was told."""
        self._sounded = False
        """Sound was told since the last words."""

    def take(self, event: _Told) -> None:
        self._epoch(event)
        kind = _BETA.get(event.type, event.type)
        response, item = event.response, event.item
        if kind == "response.created" and response is not None:
            self._created(response)
        elif kind == "response.done" and response is not None:
            self._done(response)
        elif kind in _ITEM and item is not None:
            self._item(item, event.previous_item_id, done=kind == "conversation.item.done")
        elif kind.startswith("response."):
            self._of_response(kind, event)
        elif event.item_id is not None:
            self._of_item(kind, event.item_id, event)
        elif kind == "session.expiring":
            self._ctx.state.life.warned = True

    def finish(self) -> None:
        """What was told open and is not known to have ended: the rest of its opening, or its end."""
        ctx, response = self._ctx, self._ctx.response
        if response is not None and self._opened is not None:
            responses.announce(ctx, response, self._opened)
        for response_id, item in self._calls.items():
            self._end_call(response_id, item)

    def _epoch(self, event: _Told) -> None:
        """The epoch that was told never goes back; clients of any dialect have it in the ids of responses."""
        state = self._ctx.state
        stated = [event.epoch, *(one.epoch for one in (event.metadata, event.event) if isinstance(one, _Stated))]
        if event.response is not None:
            stated.append(event.response.stated.epoch)
            number = event.response.id.removeprefix(f"{_SPOKEN}{state.session_id}-").partition("-")[0]
            stated += [int(number)] if number.isdecimal() else []
        state.epoch = max(state.epoch, *stated, 0)

    # -- responses --------------------------------------------------------------------------------------

    def _created(self, told: _Response) -> None:
        ctx, state = self._ctx, self._ctx.state
        if not told.id.startswith(_SPOKEN):
            self._calls[told.id] = None
            return
        config = state.config
        modalities = told.modalities if ctx.duplex and told.modalities else config.modalities
        metadata = {key: value for key, value in (told.metadata or {}).items() if key != "duplex_event"}
        response = OpenResponse(
            id=told.id,
            epoch=state.epoch,
            turn_id=state.turn_id,
            promised=True,
            speaks="audio" in modalities,
            format=config.output_format,
            modalities=modalities,
            metadata=metadata or None,
        )
        self._opened = responses.begin(ctx, response)
        if not ctx.auto or ctx.plans:
            state.echoes.answers.append(Answer(told.id, self._turn))

    def _done(self, told: _Response) -> None:
        ctx, response = self._ctx, self._ctx.response
        self._calls.pop(told.id, None)
        if response is None or response.id != told.id:
            return
        state, ledger = ctx.state, ctx.ledger(told.id)
        cursors = told.stated.playback
        ledger.generated_ms = max(ledger.generated_ms, cursors.generated_ms)
        if cursors.played_ms > 0:
            ledger.acknowledge(cursors.played_ms, cursors.committed_ms)
        reason = told.status_details.reason if told.status_details is not None else ""
        if told.status == "completed":
            ledger.commits_all = state.config.playback_commit_policy == "commit_all_on_done" and bool(reason)
        responses.close_response(ctx, response, told.status, reason or None)
        state.echoes.claim("rate_limits.updated")
        state.turn_id += told.status == "completed"
        if reason == "client_cancelled":
            state.echoes.add("response.cancel")
        entry = state.item_of(f"item_{told.id}")
        if entry is not None and told.output:
            entry.item = history.with_transcript(entry.item, told.output[0].text)
        self.ended.append(response)
        self._opened = None

    def _of_response(self, kind: str, event: _Told) -> None:
        ctx, response = self._ctx, self._ctx.response
        if event.response_id in self._calls:
            self._calls[event.response_id] = event.item or self._calls[event.response_id]
            return
        if response is None or event.response_id != response.id:
            return
        if kind == "response.output_audio.delta":
            self._heard(response, event.delta)
        elif kind in _WORDS:
            self._said(response, event.delta)
        elif kind == "response.speak":
            response.spoke = True
        elif kind == "response.content_part.added" and event.part is not None and event.part.type == "text":
            response.has_text_part = True
        ctx.state.turn_state = "assistant_playing" if response.spoke else ctx.state.turn_state

    def _heard(self, response: OpenResponse, delta: str) -> None:
        ctx = self._ctx
        ledger = ctx.ledger(response.id)
        ledger.generated_ms += response.format.duration_ms(len(binascii.a2b_base64(delta)))
        ledger.sent(ledger.generated_ms, ctx.now)
        response.spoke = response.has_audio = ctx.state.voiced = True
        self._sounded = True

    def _said(self, response: OpenResponse, delta: str) -> None:
        response.spoke = True
        response.text += delta
        if response.speaks:
            ledger = self._ctx.ledger(response.id)
            ledger.text = response.text
            # Words whose sound was taken back are behind all sound that is known.
            ledger.marks.append((len(response.text), round(ledger.generated_ms) + (not self._sounded)))
            self._sounded = False

    def _end_call(self, response_id: str, item: Item | None) -> None:
        """A function call was told in part: nobody may rely on it."""
        ctx = self._ctx
        output = () if item is None else (item.with_status("incomplete"),)
        for call in ctx.state.calls:
            if output and call.item_id == output[0].id:
                call.state = "stale"
        ctx.emit(
            ResponseDone(
                event_id=ctx.event_id(),
                response=Response(
                    id=response_id,
                    status="failed",
                    status_details=StatusDetails.of("failed", "shard_lost"),
                    output=output,
                    modalities=ctx.state.config.modalities,
                    metadata=ctx.state.config.metadata,
                ),
                response_id=response_id,
            ),
            reserved=True,
        )

    # -- items ------------------------------------------------------------------------------------------

    def _item(self, item: Item, previous: str | None, *, done: bool) -> None:
        ctx, state = self._ctx, self._ctx.state
        if item.role == "assistant" and item.id.startswith(f"item_{_SPOKEN}"):
            return
        known = state.item_of(item.id)
        if known is not None:
            known.item = item
        else:
            history.place(ctx, HistoryItem(item), self._behind(previous))
        if item.type != "function_call" or not self._calls:
            state.echoes.name(item.id).item = True
            return
        if item.call_id is not UNSET and not any(call.call_id == item.call_id for call in state.calls):
            state.calls.append(ToolCallState(item.call_id, item.id, ctx.now))
        if done:
            state.echoes.add(call_key(str(item.name), str(item.arguments)))

    def _behind(self, previous: str | None) -> str | None:
        """Where an item was told to stand; at the end where its predecessor is not known."""
        if previous is None:
            return "root" if any(entry.shown for entry in self._ctx.state.history) else None
        return previous if self._ctx.state.item_of(previous) is not None else None

    def _of_item(self, kind: str, item_id: str, event: _Told) -> None:
        state = self._ctx.state
        entry = state.item_of(item_id)
        if kind == "input_audio_buffer.speech_started":
            named = state.echoes.name(item_id)
            named.speech, named.at_ms = True, event.audio_start_ms
        elif kind == "input_audio_buffer.committed":
            self._committed(item_id, event)
        elif kind == "conversation.item.deleted" and entry is not None:
            state.history.remove(entry)
        elif kind == "conversation.item.truncated" and entry is not None:
            ledger = state.ledgers.get(entry.response_id)
            if ledger is not None:
                ledger.truncate(event.audio_end_ms)
                entry.item = history.with_transcript(entry.item, ledger.text_at(ledger.cap_ms))
        elif kind == "conversation.item.input_audio_transcription.completed" and entry is not None:
            entry.item = history.with_transcript(entry.item, event.transcript or "")

    def _committed(self, item_id: str, event: _Told) -> None:
        state = self._ctx.state
        state.echoes.name(item_id).turn = True
        self._turn = item_id
        entry = state.item_of(item_id)
        if entry is not None and isinstance(event.event, _Stated) and event.event.no_response:
            entry.in_context = False
