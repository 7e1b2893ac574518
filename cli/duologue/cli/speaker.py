"""A loudspeaker for programs without one: it plays answers in real time, and knows what was heard.

What it has "played" is what a person would have heard, so its acknowledgements are the truth that the model
remembers. A response that is cancelled, or an `output_audio_buffer.cleared`, stops it at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from msgspec import UNSET

from duologue.client import DuplexClient, Event
from duologue.protocol.duplex import AudioDelta, ResponseDone, TextMark

ACK_EVERY_S = 0.2


class PlayedResponse:
    """One answer in the speaker: how much there is, how much was heard."""

    def __init__(self, response_id: str, rate_hz: int) -> None:
        self.response_id = response_id
        self.pcm = bytearray()
        self.played_ms = 0.0
        self._rate_hz = rate_hz

    @property
    def length_ms(self) -> float:
        return len(self.pcm) / 2 / self._rate_hz * 1000

    @property
    def heard(self) -> bytes:
        return bytes(self.pcm[: int(self.played_ms * self._rate_hz / 1000) * 2])


class Speaker:
    """Plays PCM16. `sink` gets each piece when it sounds: a sound card, or nothing."""

    def __init__(self, client: DuplexClient, rate_hz: int, sink: Callable[[bytes], None] | None = None) -> None:
        self.responses: list[PlayedResponse] = []
        self.first_audio_at: float | None = None
        self._client, self._rate_hz, self._sink = client, rate_hz, sink
        self._current: PlayedResponse | None = None
        self._acked_ms = 0.0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._marks: dict[str, list[TextMark]] = {}

    def marks_of(self, response_id: str) -> list[TextMark]:
        """How many characters of an answer have sounded after how many milliseconds."""
        return self._marks.get(response_id, [])

    async def wait_quiet(self) -> None:
        """Until everything that has arrived has been played."""
        await self._quiet.wait()

    @property
    def playing(self) -> bool:
        return self._current is not None and self._current.played_ms < self._current.length_ms

    def take(self, event: Event) -> None:
        """See every event of the session."""
        if isinstance(event, AudioDelta):
            self._add(event)
        elif isinstance(event, ResponseDone) and event.response.status == "cancelled":
            self._stop(event.response_id)
        elif event.type == "output_audio_buffer.cleared":
            self._stop(None)

    def _add(self, event: AudioDelta) -> None:
        if self.first_audio_at is None:
            self.first_audio_at = time.monotonic()
        if self._current is None or self._current.response_id != event.response_id:
            self._current = PlayedResponse(event.response_id, self._rate_hz)
            self.responses.append(self._current)
            self._acked_ms = 0.0
        rate = self._rate_hz if event.sample_rate_hz is UNSET else event.sample_rate_hz
        assert rate == self._rate_hz, "the session was opened with this rate"
        self._current.pcm += event.delta
        self._quiet.clear()
        if event.metadata is not UNSET and event.metadata.audio_text_marks is not UNSET:
            self._marks.setdefault(event.response_id, []).extend(event.metadata.audio_text_marks)

    def _stop(self, response_id: str | None) -> None:
        if self._current is not None and response_id in (None, self._current.response_id):
            heard = self._current.heard
            self._current.pcm = bytearray(heard)

    async def play(self) -> None:
        """Run beside the conversation until cancelled."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.02)
            now = time.monotonic()
            await self._advance((now - last) * 1000)
            last = now

    async def _advance(self, ms: float) -> None:
        current = self._current
        if current is None or current.played_ms >= current.length_ms:
            self._quiet.set()
            return
        before = len(current.heard)
        current.played_ms = min(current.played_ms + ms, current.length_ms)
        if self._sink is not None:
            self._sink(current.heard[before:])
        finished = current.played_ms >= current.length_ms
        if finished or current.played_ms - self._acked_ms >= ACK_EVERY_S * 1000:
            self._acked_ms = current.played_ms
            await self._client.ack_playback(round(current.played_ms), response_id=current.response_id)
