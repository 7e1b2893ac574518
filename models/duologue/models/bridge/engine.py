"""The engine of a bridge: one upstream realtime session for each slot. Only stage workers import this.

Rule 1. Here, in the step's thread, everything is decided; the event loop in the thread beside it only moves frames.
Rule 2. A unit is consumed when it is on its way. Whatever comes of it comes between appends (`read`).
Rule 3. A connection that breaks is resumed where that server can; else the session is bound anew, to a new upstream
        session. One that was lost at once, or never came to be, ends the session: it would be lost again.
"""

from __future__ import annotations

import logging
import os
import random
import ssl
import time
from collections import deque
from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec
import numpy as np

from duologue.model.engine import (
    NO_UNIT,
    SESSION,
    Emission,
    EngineUsage,
    Failure,
    Slot,
    StageEngine,
    StageRefused,
    StageUnit,
)
from duologue.model.loop_thread import LoopThread
from duologue.model.outputs import ModelOutput, encode_output
from duologue.model.pipeline import PipelineError, PipelineSpec
from duologue.models.bridge import heads, refusals
from duologue.models.bridge.connection import Address, Closed, Connected, Connection, Frame, Idle, News, Quiet
from duologue.models.bridge.conversation import OVER, Conversation
from duologue.models.bridge.metering import Meter
from duologue.models.bridge.options import Options, read_options

_log = logging.getLogger("duologue.models.bridge")

SETTLED_S: Final = 5.0
"""A session that is lost sooner than this is not tried again."""
BACKOFF_S: Final = (0.1, 2.0)
_NOTHING: Final = encode_output(ModelOutput())
_LISTEN: Final = encode_output(ModelOutput(listen=True))


def build(pipeline: PipelineSpec, stage_index: int) -> StageEngine:
    """Raises PipelineError: wrong options, no key where one is named, no certificates."""
    return BridgeEngine(pipeline.name, read_options(pipeline), pipeline.stages[stage_index].slots)


class _Place:
    """One slot: its upstream session and the socket to it."""

    def __init__(self, slot: Slot, conversation: Conversation) -> None:
        self.slot = slot
        self.conversation = conversation
        self.connection: Connection
        self.turn_id = 0
        self.live_at = 0.0
        self.resume_until = 0.0
        self.tries = 0
        self.dead = False
        """Its session was told to end, or to bind anew."""


class BridgeEngine(StageEngine):
    """See the module."""

    def __init__(self, pipeline: str, options: Options, slots: int) -> None:
        self._options = options
        self._slots = slots
        self._meter = Meter(pipeline)
        self._address = _address(pipeline, options)
        self._places: dict[int, _Place] = {}
        self._rung: deque[_Place] = deque()
        """Places with news; grows in the loop's thread."""
        self._spare: list[Emission] = []
        """Made by an order, told with the next `read`."""
        self._random = random.Random()
        self._thread = LoopThread(f"{pipeline}-upstream")

    def warm_up(self) -> None:
        """That server is not asked: it may come up later, and a session that needs it says so."""
        self._thread.start()

    # -- orders ----------------------------------------------------------------------------------------

    def open(self, slot: Slot, config: bytes) -> None:
        """The slot is taken at once; an upstream session that does not come to be ends this one, by name."""
        if len(self._places) >= self._slots:
            raise StageRefused("resource_exhausted", "the bridge has no free slot")
        try:
            settings = heads.decode_config(config)
        except msgspec.DecodeError as error:
            raise StageRefused("invalid_duplex_runtime_config", f"bridge: {error}") from None
        place = _Place(slot, Conversation(self._options, settings, self._meter))

        def ring() -> None:
            self._rung.append(place)
            self.wake()

        place.connection = Connection(self._thread.loop, self._address, ring, self._meter.full)
        self._places[slot.index] = place
        place.connection.dial()

    def cancel(self, slot: Slot, epoch: int) -> None:
        place = self._places[slot.index]
        ends = [] if place.dead else self._take_news(place)
        self._told(place)  # of before the cancel: void
        place.conversation.cancel()
        self._send(place)
        if ends:
            self._spare += ends
            self.wake()

    def control(self, slot: Slot, kind: str, body: bytes) -> None:
        place = self._places[slot.index]
        if kind == heads.HEARD:
            place.conversation.heard(heads.decode_heard(body).ms)
        else:
            place.conversation.update(heads.decode_config(body))
        self._send(place)

    def close(self, slot: Slot) -> None:
        place = self._places.get(slot.index)
        if place is None or place.slot != slot:
            return
        del self._places[slot.index]
        place.dead = True
        place.connection.close(place.conversation.farewell())
        self._count_links()

    # -- units -----------------------------------------------------------------------------------------

    def append_batch(self, batch: Sequence[StageUnit]) -> Sequence[Emission]:
        return [self._append(unit) for unit in batch]

    def blocks(self, batch: Sequence[StageUnit]) -> bool:
        """A second of sound is base64 in a fraction of a millisecond."""
        return False

    def _append(self, unit: StageUnit) -> Emission:
        place = self._places[unit.slot.index]
        place.turn_id = unit.turn_id
        conversation, head = place.conversation, heads.decode_head(unit.head)
        size = conversation.pending_bytes + sum(map(len, unit.frames))
        if place.dead or not place.connection.room(size):
            text = "the upstream server does not take its input fast enough"
            failure = None if place.dead else Failure(refusals.BACKPRESSURE, text)
            return Emission(unit.slot, SESSION, unit.unit, unit.turn_id, _NOTHING, failure=failure)
        told = _NOTHING
        if head.item is not None:
            conversation.item(head)
        elif not unit.replay:
            conversation.unit(head, _as_pcm16(unit.frames))
            if conversation.listens and not head.flags & heads.CONTINUATION:
                told = _LISTEN
        self._send(place)
        return Emission(unit.slot, SESSION, unit.unit, unit.turn_id, told)

    def read(self) -> Sequence[Emission]:
        emissions, self._spare = self._spare, []
        while self._rung:
            place = self._rung.popleft()
            if not place.dead:
                emissions += self._take_news(place)
                emissions += self._told(place)
                self._send(place)
        return emissions

    def usage(self) -> EngineUsage:
        pending = sum(place.conversation.pending_bytes for place in self._places.values())
        return EngineUsage(len(self._places), self._slots, state_bytes=pending)

    def shut_down(self) -> None:
        closing = [place.connection.close(place.conversation.farewell()) for place in self._places.values()]
        self._places.clear()
        for closed in closing:
            closed.result(timeout=10)
        self._thread.close()

    # -- inside ----------------------------------------------------------------------------------------

    def _send(self, place: _Place) -> None:
        place.connection.send(place.conversation.take_out())

    def _told(self, place: _Place) -> list[Emission]:
        """The results that are for the session."""
        return [
            Emission(
                place.slot, SESSION, NO_UNIT, place.turn_id, encode_output(told.output), (told.pcm,) if told.pcm else ()
            )
            for told in place.conversation.take_told()
        ]

    def _take_news(self, place: _Place) -> list[Emission]:
        """Let the conversation know what came. Its end is for the session."""
        ends: list[Emission] = []
        for news in place.connection.take():
            if place.dead:
                break
            ends += self._news(place, news)
            if place.conversation.phase == OVER and not place.dead:
                ends.append(self._end(place, *(place.conversation.failure or (refusals.LOST, ""))))
        return ends

    def _news(self, place: _Place, news: News) -> list[Emission]:
        conversation = place.conversation
        was_live = conversation.is_live
        if isinstance(news, Frame):
            conversation.frame(news.text)
        elif isinstance(news, Connected):
            conversation.connected()
        elif isinstance(news, Quiet):
            conversation.quiet()
        elif isinstance(news, Idle):
            conversation.alive()
        elif (end := self._closed(place, news)) is not None:
            return [end]
        if conversation.is_live and not was_live:
            place.connection.settled()
            place.live_at = place.live_at or time.monotonic()
            if place.resume_until:
                self._meter.ended("resumed")
            place.resume_until, place.tries = 0.0, 0
            self._count_links()
        return []

    def _closed(self, place: _Place, closed: Closed) -> Emission | None:
        """The socket is gone: resume, or end."""
        conversation, now = place.conversation, time.monotonic()
        if not conversation.resumable or closed.refused or not self._options.resume_s:
            return self._end(place, closed.code, closed.message)
        place.resume_until = place.resume_until or now + self._options.resume_s
        if now > place.resume_until:
            return self._end(place, refusals.LOST, closed.message)
        conversation.disconnected()
        low, high = BACKOFF_S
        place.connection.dial(self._random.uniform(0.0 if not place.tries else low, min(high, low * 2**place.tries)))
        place.tries += 1
        self._count_links()
        return None

    def _end(self, place: _Place, code: str, message: str) -> Emission:
        """There is no upstream session any more: bind anew, or end the session (rule 3)."""
        lived = bool(place.live_at) and time.monotonic() - place.live_at >= SETTLED_S
        place.dead = True
        place.connection.close([])
        self._count_links()
        self._meter.ended("lost" if place.live_at else "unavailable" if code == refusals.UNAVAILABLE else "refused")
        _log.warning("an upstream session of %s ended (%s): %s", self._address.url.partition("?")[0], code, message)
        if lived:
            failure = Failure(refusals.LOST, message, retryable=True)
            return Emission(place.slot, SESSION, NO_UNIT, place.turn_id, failure=failure)
        output = ModelOutput(error_code=code, error=message, fatal=True)
        return Emission(place.slot, SESSION, NO_UNIT, place.turn_id, encode_output(output))

    def _count_links(self) -> None:
        self._meter.links(sum(place.conversation.is_live and not place.dead for place in self._places.values()))


def _as_pcm16(frames: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Float samples of the session as what goes up; camera frames as they are."""
    if not frames:
        return ()
    samples = np.frombuffer(frames[0], "<f4")
    pcm = np.rint(np.clip(samples, -1.0, 1.0) * 32767.0).astype("<i2").tobytes()
    return (pcm, *frames[1:])


def _address(pipeline: str, options: Options) -> Address:
    """Raises PipelineError."""
    headers = dict(options.headers)
    if options.api_key_env:
        key = os.environ.get(options.api_key_env, "")
        if not key:
            raise PipelineError(f"{pipeline}: options.api_key_env: {options.api_key_env} is not set")
        headers["Authorization"] = f"Bearer {key}"
    parts = urlsplit(options.url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if options.model:
        query.setdefault("model", options.model)
    if options.dialect == "duplex":
        query |= {"duplex": "1", "autostart": "0"}
    tls = None
    if parts.scheme == "wss":
        tls = ssl.create_default_context()
        if options.ca_file:
            try:
                tls.load_verify_locations(options.ca_file)
            except (OSError, ssl.SSLError) as error:
                raise PipelineError(f"{pipeline}: options.ca_file: {options.ca_file}: {error}") from None
    return Address(
        url=urlunsplit(parts._replace(query=urlencode(query))),
        headers=headers,
        tls=tls,
        connect_s=options.connect_timeout_s,
        open_s=options.open_timeout_s,
        idle_s=options.idle_timeout_s,
        heartbeat_s=options.heartbeat_s,
        max_up_bytes=options.pending_up_kib * 1024,
        max_down_bytes=options.pending_down_kib * 1024,
    )
