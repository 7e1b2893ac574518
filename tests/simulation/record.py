"""One session as its client lived it, and what is wrong with it: nothing here knows the product's state.

A client's tone is its own: its pitch is nobody else's, and the phase of each unit tells which one it is. Each
unit of speech says its own name (client, life, step, unit), so text and sound can be held against each other.
"""

from __future__ import annotations

import base64
import functools
import re
from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from simulation.witness import AUDIO

if TYPE_CHECKING:
    from simulation.network import Event
    from simulation.world import World

UNIT_MS = 80
RATE_HZ = 24_000
SAMPLES = UNIT_MS * RATE_HZ // 1000
CYCLE = 64
"""A tone comes back to its phase after so many units: a unit knows its place among them."""
CUT_S = 4.0
ACK_S, LATE_ACK_S = 0.06, 0.3
"""So long after it came an event may not be known as delivered where the session lives; and with a late bus."""
LEVEL = 0.3 * 32767
TEXT = "response.output_audio_transcript.delta"
_RESPONSE_ID = re.compile(r"resp-(.+)-(\d+)-[0-9a-f]{8}")

ANSWERS = {
    "session.heartbeat_ack": "session.heartbeat",
    "playback.acknowledged": "playback.ack",
    "input_audio_buffer.cleared": "clear",
    "input_audio_buffer.committed": "input_audio_buffer.commit",
    "turn.event": "turn.signal",
    "conversation.item.retrieved": "conversation.item.retrieve",
    "session.updated": "session.update",
}
"""The event that answers a command, and the command (`clear` is three of them)."""
ONCE = (
    "input_audio_buffer.committed",
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
    "conversation.item.added",
    "conversation.item.done",
    "conversation.item.deleted",
    "response.output_item.added",
    "response.output_item.done",
    "response.output_audio.done",
    "response.output_audio_transcript.done",
)
"""Events that are told once of an item. (One that was deleted may be written again.)"""


class Tone:
    """The one sine of a session."""

    def __init__(self, number: int) -> None:
        self.hz = 12.5 * (20 + number) + 12.5 / CYCLE
        angle = 2 * np.pi * self.hz / RATE_HZ * np.arange(SAMPLES)
        self._sine: npt.NDArray[np.float64] = np.sin(angle)
        self._cosine: npt.NDArray[np.float64] = np.cos(angle)
        self._known: dict[str, int | None] = {}

    def place(self, pcm: str) -> int | None:
        """Which unit (modulo `CYCLE`) these samples (base64) are; None: they are not of this tone."""
        if pcm not in self._known:
            self._known[pcm] = self._place(base64.b64decode(pcm))
        return self._known[pcm]

    def _place(self, pcm: bytes) -> int | None:
        wave = np.frombuffer(pcm, "<i2").astype(np.float64)
        if wave.size != SAMPLES:
            return None
        phase = np.arctan2(wave @ self._cosine, wave @ self._sine) / (2 * np.pi)
        place = round(float(phase) * CYCLE) % CYCLE
        turn = 2 * np.pi * place / CYCLE
        due = LEVEL * (np.cos(turn) * self._sine + np.sin(turn) * self._cosine)
        return place if float(np.abs(wave - due).max()) < 2.0 else None


@functools.cache
def tone(number: int) -> Tone:
    """That of a client's life; worlds share them, for all that one knows follows from its pitch."""
    return Tone(number)


class Heard:
    """One response, as far as it has come."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.step = ""
        self.texts = 0
        self.audios = 0
        self.place = -1
        self.acked = False
        self.acked_ms = 0.0
        self.done = ""


class Record:
    """See the module."""

    def __init__(self, world: World, number: int, life: int) -> None:
        self._world = world
        self.name = f"{number}.{life}"
        self.tone = tone(number + 8 * (life % 4))
        self.session_id = ""
        self.seq = 0
        """The last number received."""
        self.epoch = 0
        self._came: list[float] = []
        """When each seq came, from 1."""
        self._cleared: list[int] = []
        """The seq of each `input_audio_buffer.cleared`."""
        self.responses: dict[str, Heard] = {}
        self.open: str | None = None
        self.items: Counter[str] = Counter()
        self.once: set[tuple[str, str]] = set()
        self.answers: Counter[str] = Counter()
        self.errors: dict[str, str] = {}
        """The code of the error that names a command, by its event_id."""
        self.events = 0
        self.last_place = -1
        self.terminal = ""
        self.cut_asked_at = -1e9
        """When the client last asked for silence: what is finished and still under way may lose its sound."""
        self.inherited = False
        """Another owner has taken it over (see `Faults`)."""
        self.gapped = False
        """It was told of a gap: it goes on from the head, and knows no more what it has missed."""
        self.told_lost = 0
        """How often it was told that its model has forgotten something."""
        self.may_end: str = ""
        """Why this session may end without having been asked to."""

    def sound(self, event_id: str, ms: int) -> str:
        """What this command says, base64."""
        return self._world.sound_of(event_id, ms)

    def told_until(self) -> float:
        """What came before this is known as delivered by the time at which a command of now arrives."""
        world = self._world
        return world.now - (LATE_ACK_S if world.weather.late else ACK_S)

    def under_way(self, told_until: float, clears: int) -> int:
        """How many events may have been under way when the `clears`-th command that is answered by
        `input_audio_buffer.cleared` was carried out: they came after `told_until` and before the answer."""
        through = self._cleared[clears - 1] if clears <= len(self._cleared) else self.seq
        return through - bisect_left(self._came, told_until)

    def fail(self, what: str) -> None:
        self._world.fail(f"session {self.name} ({self.session_id}): {what}")

    def gap(self, head_seq: int) -> None:
        """Everything up to there is lost to this client."""
        if head_seq <= self.seq:
            self.fail(f"a gap up to {head_seq}, {self.seq} was received")
        self.gapped = True
        self.seq = head_seq
        self.open = None

    # -- events ----------------------------------------------------------------------------------------

    def received(self, event: Event) -> None:
        """One numbered event, in the order in which it came."""
        seq = event["server_event_seq"]
        if seq != self.seq + 1:
            self.fail(f"seq {seq} where {self.seq + 1} was due ({event['type']})")
        self.seq = seq
        self._came.append(self._world.now)
        self.events += 1
        if self.terminal:
            self.fail(f"{event['type']} after {self.terminal}")
        kind = event["type"]
        self._check_epoch(event)
        session_id = event.get("session_id")
        if session_id is not None and session_id != self.session_id:
            self.fail(f"{kind} of session {session_id}")
        if self.gapped:
            if kind in ("session.closed", "session.expired"):
                self.terminal = event["reason"]
            return
        self._content(kind, event)

    def _content(self, kind: str, event: Event) -> None:
        """What the event says of responses, commands and the session."""
        response_id = event.get("response_id")
        if response_id is not None and response_id.startswith("resp-"):
            self._of_response(kind, response_id, event)
        if kind in ONCE:
            self._once(kind, event.get("item_id") or event["item"]["id"])
        answered = ANSWERS.get(kind)
        if answered is not None:
            self.answers[answered] += 1
            if answered == "clear":
                self._cleared.append(self.seq)
        elif kind == "conversation.item.created":
            self._created(event["item"])
        elif kind == "error":
            self._error(event["error"])
        elif kind in ("session.closed", "session.expired"):
            self.terminal = event["reason"]
            if self.open is not None:
                self.fail(f"{kind} while response {self.open} is open")

    def _once(self, kind: str, item_id: str) -> None:
        if (kind, item_id) in self.once:
            self.fail(f"{kind} of {item_id} again")
        self.once.add((kind, item_id))

    def _check_epoch(self, event: Event) -> None:
        epoch = _epoch_of(event)
        if epoch is None:
            return
        if epoch < self.epoch:
            self.fail(f"{event['type']} of epoch {epoch} after epoch {self.epoch}")
        self.epoch = epoch

    def _created(self, item: Event) -> None:
        self.items[item["id"]] += 1
        if self.items[item["id"]] > 1:
            self.fail(f"item {item['id']} was created twice")

    def _error(self, error: Event) -> None:
        named = error.get("event_id")
        if named is None:
            self.told_lost += error["code"] == "context_lost"
            self._world.count[f"error: {error['code']}"] += 1
            self._world.count["overflow"] += error["code"] == "output_backpressure"
            return
        if named in self.errors:
            self.fail(f"{named} was refused twice: {self.errors[named]}, {error['code']}")
        self.errors[named] = error["code"]

    # -- responses -------------------------------------------------------------------------------------

    def _of_response(self, kind: str, response_id: str, event: Event) -> None:
        if kind == "response.created":
            self._opened(response_id)
            return
        heard = self.responses.get(response_id)
        if heard is None:
            return self.fail(f"{kind} of response {response_id}, which was never created")
        if kind == "output_audio_buffer.cleared":
            return None
        if heard.done:
            return self.fail(f"{kind} of response {response_id} after it was {heard.done}")
        if kind == AUDIO:
            self._audio(heard, event)
        elif kind == TEXT:
            self._text(heard, event["delta"])
        elif kind == "response.done":
            self._done(response_id, heard, event["response"])
        return None

    def _opened(self, response_id: str) -> None:
        named = _RESPONSE_ID.fullmatch(response_id)
        if named is None or named[1] != self.session_id:
            return self.fail(f"a response of nobody here: {response_id}")
        if response_id in self.responses:
            self.fail(f"response id {response_id} again")
        if self.open is not None:
            self.fail(f"response {response_id} opened while {self.open} is open")
        self.responses[response_id] = Heard(int(named[2]))
        self.open = response_id
        return None

    def _audio(self, heard: Heard, event: Event) -> None:
        place = self.tone.place(event["delta"])
        if place is None:
            return self.fail("audio that is not of this session's tone")
        if heard.audios:
            if place != (heard.place + 1) % CYCLE:
                self.fail(f"unit {place} of the tone where {(heard.place + 1) % CYCLE} was due")
        elif heard.texts:
            self.fail("the first audio of a response came after its text")
        heard.audios += 1
        heard.place = place
        if heard.audios not in (heard.texts, heard.texts + 1):
            self.fail(f"audio unit {heard.audios} of a response beside text {heard.texts}")
        return None

    def _text(self, heard: Heard, delta: str) -> None:
        word = delta.split()
        if len(word) != 1:
            return self.fail(f"a unit says {delta!r}")
        step, _, unit = word[0].rpartition(".")
        if not step.startswith(f"{self.name}."):
            self.fail(f"foreign speech: {delta!r}")
        if heard.step and heard.step != step:
            self.fail(f"a response speaks of {heard.step} and of {step}")
        heard.step = step
        if int(unit) != heard.texts:
            self.fail(f"unit {unit} of {step} where {heard.texts} was due")
        heard.texts += 1
        return None

    def _done(self, response_id: str, heard: Heard, response: Event) -> None:
        if self.open != response_id:
            self.fail(f"response {response_id} ended while {self.open} is open")
        self.open = None
        heard.done = response["status"]
        self._world.count[f"response {heard.done}"] += 1
        asked = self._world.now < self.cut_asked_at + CUT_S
        if heard.done == "completed" and heard.audios != heard.texts and not asked:
            self.fail(f"a completed response of {heard.texts} units has {heard.audios} of sound")
        overflowed = (response.get("status_details") or {}).get("reason") == "output_backpressure"
        for item in response["output"]:
            said = item["content"][0].get("transcript") or ""
            words = len(said.split())
            if heard.done == "cancelled" and words > -(-heard.acked_ms // UNIT_MS):
                self.fail(f"a cancelled response keeps {words} words, {heard.acked_ms} ms were acknowledged")
            if words > heard.texts and not overflowed:
                self.fail(f"an item holds {words} words, {heard.texts} were said")

    def check_history(self, response_id: str, text: str) -> None:
        """What the model would be told that was heard: never more than was acknowledged or, without that, sent."""
        heard = self.responses.get(response_id)
        words = len(text.split())
        most = 0
        if heard is not None:
            most = -int(-heard.acked_ms // UNIT_MS) if heard.acked else heard.audios
        if words > most:
            self.fail(f"history holds {words} words of {response_id}, {most} were heard")

    @property
    def latest(self) -> str | None:
        """The newest response."""
        return next(reversed(self.responses), None)


def _epoch_of(event: Event) -> int | None:
    """The epoch that an event states, wherever it does."""
    places: list[Any] = [event, event.get("metadata"), event.get("event")]
    response = event.get("response")
    if isinstance(response, dict):
        metadata = response.get("metadata")
        if isinstance(metadata, dict):
            places.append(metadata.get("duplex_event"))
    for place in places:
        if isinstance(place, dict) and isinstance(place.get("epoch"), int):
            return int(place["epoch"])
    return None
