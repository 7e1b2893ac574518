"""One upstream response on its way to the session: sound put together with its words. SANS-I/O.

Rule 1. Servers of the duplex contract send one transcript delta after every audio delta, empty or not: the sound waits
        for it, so that both are one output. Of others each goes on as it comes.
Rule 2. Marks come cumulative and go within the output that they are of.
Rule 3. What cannot be read is a `ValueError`, which fails the response and nothing else.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Any, NamedTuple

from duologue.model.outputs import ModelOutput, TextMark, ToolCall, Usage

Event = dict[str, Any]


class Told(NamedTuple):
    """One result for the session, and its sound."""

    output: ModelOutput
    pcm: bytes = b""


class _Sound(NamedTuple):
    pcm: bytes
    rate_hz: int
    marks: tuple[tuple[int, float], ...]


class Answer:
    """`promised`: it was asked for. `paired`: see rule 1."""

    def __init__(self, response_id: str, *, promised: bool, paired: bool, rate_hz: int) -> None:
        self.id = response_id
        self.promised = promised
        self.item_id = ""
        self.spoke = False
        self.listened = False
        self.called = False
        self.ms = 0.0
        """Sound that was passed on."""
        self._paired = paired
        self._rate_hz = rate_hz
        self._chars = 0
        self._waiting: _Sound | None = None
        self._odd = b""

    def sound(self, event: Event) -> Iterator[Told]:
        """An audio delta. Raises ValueError."""
        if event.get("format") not in (None, "pcm16"):
            raise ValueError(f"the sound is {str(event['format'])[:40]!r}, not pcm16")
        self.item_id = str(event.get("item_id") or self.item_id)
        try:
            pcm = self._odd + base64.b64decode(event.get("delta") or "", validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise ValueError("the sound is no base64") from None
        whole = len(pcm) & ~1
        self._odd, pcm = pcm[whole:], pcm[:whole]
        rate = event.get("sample_rate_hz")
        rate_hz = rate if isinstance(rate, int) and 8000 <= rate <= 192_000 else self._rate_hz
        yield from self.rest()
        self._waiting = _Sound(pcm, rate_hz, _marks(event.get("metadata")))
        if not self._paired:
            yield from self.rest()

    def words(self, event: Event) -> Iterator[Told]:
        """A transcript or text delta."""
        text = event.get("delta") or ""
        if not isinstance(text, str):
            raise ValueError("the words are no text")
        self.item_id = str(event.get("item_id") or self.item_id)
        if self._waiting is not None:
            yield from self._speak(self._waiting, text)
        elif text:
            self.spoke = True
            self._chars += len(text)
            yield Told(ModelOutput(text=text))

    def rest(self) -> Iterator[Told]:
        """Sound that no words came for."""
        if self._waiting is not None:
            yield from self._speak(self._waiting, "")

    def _speak(self, sound: _Sound, text: str) -> Iterator[Told]:
        self._waiting = None
        chars, start_ms = self._chars, self.ms
        self._chars += len(text)
        self.ms += len(sound.pcm) / 2 / sound.rate_hz * 1000
        if not sound.pcm:
            if text:
                self.spoke = True
                yield Told(ModelOutput(text=text))
            return
        self.spoke = True
        marks = tuple(TextMark(max(at - chars, 0), max(ms - start_ms, 0.0)) for at, ms in sound.marks)
        yield Told(ModelOutput(text=text, audio_rate_hz=sound.rate_hz, marks=marks), sound.pcm)


def tool_call(item: Event) -> ToolCall:
    """Of a `function_call` item; one without a name or readable arguments goes on as it was written."""
    name, arguments, call_id = item.get("name"), item.get("arguments"), item.get("call_id")
    if not isinstance(name, str) or not name or not isinstance(arguments, str):
        return ToolCall(raw=str(arguments or name or ""))
    return ToolCall(name, arguments or "{}", call_id if isinstance(call_id, str) else "")


def usage_of(response: Event) -> Usage | None:
    """What that server counts of it, if it does."""
    told = response.get("usage")
    if not isinstance(told, dict) or not told:
        return None
    came, went = told.get("input_token_details") or {}, told.get("output_token_details") or {}
    counted = Usage(
        input_audio_tokens=_count(came.get("audio_tokens")),
        input_text_tokens=_count(came.get("text_tokens")),
        output_audio_tokens=_count(went.get("audio_tokens")),
        output_text_tokens=_count(went.get("text_tokens")),
        cached_tokens=_count(came.get("cached_tokens")),
    )
    if counted == Usage():
        counted = Usage(
            input_text_tokens=_count(told.get("input_tokens")), output_text_tokens=_count(told.get("output_tokens"))
        )
    return None if counted == Usage() else counted


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _marks(metadata: object) -> tuple[tuple[int, float], ...]:
    marks = metadata.get("audio_text_marks") if isinstance(metadata, dict) else None
    found = []
    for mark in marks if isinstance(marks, list) else ():
        chars, ms = (mark.get("text_chars"), mark.get("audio_end_ms")) if isinstance(mark, dict) else (None, None)
        if isinstance(chars, int) and isinstance(ms, int | float):
            found.append((chars, float(ms)))
    return tuple(found)
