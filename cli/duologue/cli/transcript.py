"""The live transcript of a conversation in a terminal, with the time from end of speech to first sound."""

from __future__ import annotations

import time

from rich.console import Console
from rich.markup import escape

from duologue.client import ConnectionResumed, Event
from duologue.protocol.duplex import (
    AudioDelta,
    ErrorEvent,
    ResponseDone,
    SpeechStarted,
    SpeechStopped,
    TranscriptDelta,
    TranscriptionCompleted,
)


class Transcript:
    """Prints what is heard and said as the events come. `latencies_ms` has one entry for each answer."""

    def __init__(self, console: Console) -> None:
        self.heard: list[str] = []
        self.answers: list[str] = []
        self.latencies_ms: list[float] = []
        self._console = console
        self._speech_ended_at: float | None = None
        self._answer: str | None = None

    def speech_ended(self) -> None:
        """The caller knows when the last sound of the user left; else the server's stop event is taken."""
        self._speech_ended_at = time.monotonic()

    def take(self, event: Event) -> None:
        match event:
            case SpeechStarted():
                self._line("dim", "…", "speech")
            case SpeechStopped() if self._speech_ended_at is None:
                self._speech_ended_at = time.monotonic()
            case TranscriptionCompleted():
                self.heard.append(event.transcript)
                self._line("cyan", "you", event.transcript)
            case AudioDelta():
                self._first_sound()
            case TranscriptDelta() if event.delta:
                self._answer = (self._answer or "") + event.delta
            case ResponseDone():
                self._ended(event)
            case ErrorEvent():
                self._line("red", "error", f"{event.error.code}: {event.error.message}")
            case ConnectionResumed():
                self._line("yellow", "…", "the connection was lost and resumed")

    def _first_sound(self) -> None:
        if self._speech_ended_at is not None:
            latency_ms = (time.monotonic() - self._speech_ended_at) * 1000
            self._speech_ended_at = None
            self.latencies_ms.append(latency_ms)
            self._line("dim", "…", f"first sound after {latency_ms:.0f} ms")

    def _ended(self, event: ResponseDone) -> None:
        answer, self._answer = (self._answer or "").strip(), None
        self.answers.append(answer)
        how = "" if event.response.status == "completed" else f" [{event.response.status}]"
        if answer or how:
            self._line("green", "model", answer + how)

    def _line(self, style: str, who: str, what: str) -> None:
        # Escaped: what a person or a model says may look like markup.
        self._console.print(f"[{style}]{who:>6}[/]  {escape(what)}", highlight=False, soft_wrap=True)
