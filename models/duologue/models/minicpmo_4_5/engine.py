"""The one stage of MiniCPM-o: hears a second and answers it, for one session after another.

Rule 1. The remote code computes one session at a time. A unit is answered as soon as its answer is there; what the
        model must be given behind it is given by a thread of the engine's own, or before the session's next unit.
Rule 2. A hard stop is a unit that is listened to: the turn of the model is closed, and what it heard stays.
Rule 3. The context of a session is `context_tokens`. Before it is full the session is asked to bind anew; a unit for
        which there is no room is refused by code, which does it at once. It never just ends.
Rule 4. What a session keeps for its speech is bounded: a voice that needs more is refused, a turn that grows beyond it
        goes on with a talker that begins anew.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from duologue.model.emissions import emitted, failed, lost, pcm16, slot_config
from duologue.model.engine import SESSION, Emission, EngineUsage, Failure, Slot, StageEngine, StageRefused, StageUnit
from duologue.model.outputs import ModelOutput, Usage
from duologue.model.pipeline import PipelineError, PipelineSpec
from duologue.model.turnstile import Turnstile
from duologue.models.minicpmo_4_5.checkpoint import load
from duologue.models.minicpmo_4_5.images import BadFrame, decoded
from duologue.models.minicpmo_4_5.options import (
    FRAME_TOKENS,
    MAX_FRAMES,
    OUTPUT_RATE_HZ,
    SPEAK_TOKENS,
    UNIT_SAMPLES,
    MiniCPMOOptions,
    Sampling,
    Window,
    read_options,
)
from duologue.models.minicpmo_4_5.reference import Voice, voice_of, write_wav
from duologue.models.minicpmo_4_5.seat import Heard, Seat
from duologue.models.minicpmo_4_5.voices import BadVoice, wav_voice
from duologue.models.minicpmo_4_5.wire import FORCE_LISTEN, SlotConfig, decode_config

_log = logging.getLogger("duologue.models.minicpmo_4_5")

TALKER_UNIT = 64
"""Positions of the talker in one unit, at most: text, a mark, and 26 codes."""


def build(pipeline: PipelineSpec, stage_index: int) -> StageEngine:
    """Raises PipelineError for options that it does not know and files that are not there."""
    return MiniCPMOEngine(pipeline, read_options(pipeline))


class Place:
    """What the engine keeps of a slot, beside its seat."""

    __slots__ = (
        "context",
        "hushed",
        "lost",
        "prompt_tokens",
        "sampling",
        "seat",
        "slot",
        "speaks",
        "voice_path",
        "weighs",
    )

    def __init__(self, slot: Slot, seat: Seat, sampling: Sampling, speaks: bool) -> None:
        self.slot, self.seat, self.sampling, self.speaks = slot, seat, sampling, speaks
        self.hushed = False
        """A hard stop is still to be told to the model."""
        self.lost = False
        """A unit failed half-way: what the seat holds means nothing any more."""
        self.context = 0
        self.weighs = 0
        self.prompt_tokens = 0
        """Until they are told."""
        self.voice_path: Path | None = None
        """What the vocoder was given, and may read again."""

    def clear(self) -> None:
        self.seat.clear()
        if self.voice_path is not None:
            self.voice_path.unlink(missing_ok=True)

    def look(self) -> None:
        """Note how large it is: `usage` may be asked while the seat is at work."""
        self.context, self.weighs = self.seat.context_tokens, self.seat.state_bytes


class MiniCPMOEngine(StageEngine):
    """See the module."""

    def __init__(self, pipeline: PipelineSpec, options: MiniCPMOOptions) -> None:
        self.options = options
        self.max_batch = pipeline.stages[0].max_batch
        self._slots = pipeline.stages[0].slots
        self._voice: Voice | None = _own_voice(pipeline, options)
        self._seats: list[Seat] = []
        self._places: dict[int, Place] = {}
        self._folder: Path | None = None
        """For voices: the vocoder reads files."""
        self._turnstile = Turnstile()
        self._todo = threading.Event()
        self._ended = False
        self._background = threading.Thread(target=self._work, name="minicpmo-background", daemon=True)

    def warm_up(self) -> None:
        loaded = load(self.options)
        self._seats = [Seat(loaded) for _ in range(self._slots)]
        seat = self._seats[0]
        with seat.seated():
            seat.prepare(self.options.instructions, Window(), None, None, 0, False)
            for _ in range(2):
                seat.hear(np.zeros(UNIT_SAMPLES, np.float32), (), self.options.sampling, listen=True)
            seat.finish()
        seat.clear()
        self._folder = Path(tempfile.mkdtemp(prefix="duologue-voices-"))
        self._background.start()

    # -- slots -----------------------------------------------------------------------------------------

    def open(self, slot: Slot, config: bytes) -> None:
        if slot.index >= self._slots:
            raise StageRefused("resource_exhausted", f"there are {self._slots} slots")
        settings = slot_config(decode_config, config)
        voice = voice_of(settings.voice, settings.voice_rate_hz) if settings.voice else self._voice
        if settings.speaks and voice is None:
            raise StageRefused("ref_audio_required", "neither the session nor the pipeline has a reference voice")
        place = Place(slot, self._seats[slot.index], settings.sampling, settings.speaks)
        with self._turnstile.live():
            if (before := self._places.pop(slot.index, None)) is not None:
                before.clear()
            try:
                self._prepare(place, settings, voice if settings.speaks else None)
            except StageRefused:
                place.clear()
                raise
            except Exception as error:
                place.clear()
                _log.exception("a session could not be prepared")
                raise StageRefused("engine_error", f"{type(error).__name__}: {error}") from None
            self._places[slot.index] = place

    def _prepare(self, place: Place, settings: SlotConfig, voice: Voice | None) -> None:
        if voice is not None and self._folder is not None:
            place.voice_path = self._folder / f"{place.slot.index}-{place.slot.incarnation}.wav"
            write_wav(place.voice_path, voice)
        seed = settings.seed if settings.seed is not None else secrets.randbits(63)
        with place.seat.seated():
            place.seat.prepare(
                settings.instructions,
                settings.window,
                None if voice is None else voice.heard,
                None if place.voice_path is None else str(place.voice_path),
                seed,
                settings.speaks,
            )
        bound = self.options.speech_state_bytes_per_session
        if (size := place.seat.speech_bytes) > bound:
            raise StageRefused(
                "resource_exhausted", f"the voice takes {size} bytes; speech_state_bytes_per_session is {bound}"
            )
        place.look()
        if place.context + self._room(MAX_FRAMES) > self.options.context_tokens:
            raise StageRefused("context_exhausted", f"instructions and voice take {place.context} tokens")
        place.prompt_tokens = place.context

    def cancel(self, slot: Slot, epoch: int) -> None:
        place = self._place(slot)
        if place is not None:
            with self._turnstile.live():
                place.hushed = place.hushed or place.seat.turn_open

    def control(self, slot: Slot, kind: str, body: bytes) -> None:
        place = self._place(slot)
        if place is not None and kind == "update":
            place.sampling = slot_config(decode_config, body).sampling

    def close(self, slot: Slot) -> None:
        place = self._place(slot)
        if place is not None:
            with self._turnstile.live():
                del self._places[slot.index]
                place.clear()

    def usage(self) -> EngineUsage:
        places = list(self._places.values())
        weigh, kept = sum(place.weighs for place in places), sum(place.context for place in places)
        return EngineUsage(len(places), self._slots, weigh, kept)

    def shut_down(self) -> None:
        self._ended = True
        self._todo.set()
        if self._background.is_alive():
            self._background.join()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _place(self, slot: Slot) -> Place | None:
        place = self._places.get(slot.index)
        return place if place is not None and place.slot == slot else None

    # -- units -----------------------------------------------------------------------------------------

    def append_batch(self, batch: Sequence[StageUnit]) -> Sequence[Emission]:
        return [self._answer(unit) for unit in batch]

    def _answer(self, unit: StageUnit) -> Emission:
        place = self._place(unit.slot)
        if place is None:
            return failed(unit, "stage_not_open", "the slot is not open")
        if place.lost:
            return lost(unit, "a unit failed half-way")
        if not unit.frames or len(unit.frames[0]) != UNIT_SAMPLES * 4:
            size = len(unit.frames[0]) // 4 if unit.frames else 0
            return failed(unit, "runtime_append_failed", f"a unit has {UNIT_SAMPLES} samples, not {size}")
        try:
            images = decoded(unit.frames[1:]) if self.options.vision else []
        except BadFrame as error:
            return failed(unit, "invalid_video_frames", str(error))
        with self._turnstile.live():
            return self._compute(place, unit, images)

    def _compute(self, place: Place, unit: StageUnit, images: list[object]) -> Emission:
        """Under the turnstile."""
        seat = place.seat
        try:
            with seat.seated():
                seat.finish()
                full = seat.context_tokens + self._room(len(images)) > self.options.context_tokens
                if full:
                    return self._full(place, unit)
                forced = place.hushed or unit.replay or unit.head == FORCE_LISTEN
                sound = np.frombuffer(unit.frames[0], dtype="<f4").astype(np.float32)  # its own: the code keeps it
                heard = seat.hear(sound, images, place.sampling, listen=forced)
            self._bound_speech(place)
        except Exception:
            _log.exception("a unit failed half-way")
            place.lost = True
            return lost(unit, "a unit failed half-way")
        place.look()
        if heard.refused:
            return failed(unit, "runtime_append_failed", heard.refused)
        self._todo.set()
        cancelled, place.hushed = place.hushed, False
        return self._emission(place, unit, heard, cancelled=cancelled)

    def _room(self, images: int) -> int:
        return SPEAK_TOKENS + images * FRAME_TOKENS

    def _full(self, place: Place, unit: StageUnit) -> Emission:
        place.context = place.seat.context_tokens
        message = f"{place.context} tokens of {self.options.context_tokens}"
        failure = Failure("context_exhausted", message, retryable=True)
        return Emission(unit.slot, SESSION, unit.unit, unit.turn_id, failure=failure)

    def _bound_speech(self, place: Place) -> None:
        """A turn may go on for as long as the model likes; what is kept for it may not grow with it."""
        seat = place.seat
        if not place.speaks or not seat.talker_tokens:
            return
        long = seat.talker_tokens + TALKER_UNIT > self.options.talker_tokens
        if long or seat.speech_bytes > self.options.speech_state_bytes_per_session:
            _log.info("slot %d: the talker begins anew after %d positions", place.slot.index, seat.talker_tokens)
            seat.restart_talker()

    def _emission(self, place: Place, unit: StageUnit, heard: Heard, *, cancelled: bool) -> Emission:
        prompt, place.prompt_tokens = place.prompt_tokens, 0
        usage = None
        if prompt or heard.text_tokens or heard.audio_tokens:
            usage = Usage(
                input_text_tokens=prompt,
                output_audio_tokens=heard.audio_tokens,
                output_text_tokens=heard.text_tokens,
            )
        if unit.replay:
            return emitted(unit, ModelOutput(usage=usage))
        rebind = "context_rollover" if place.context > self.options.rollover_tokens else ""
        if heard.listens:
            ended = heard.ended and not cancelled  # a cancelled response is over already
            return emitted(unit, ModelOutput(listen=not ended, end_of_turn=ended, usage=usage, rebind=rebind))
        rate = 0 if heard.sound is None else OUTPUT_RATE_HZ
        output = ModelOutput(text=heard.text, audio_rate_hz=rate, end_of_turn=heard.ended, usage=usage, rebind=rebind)
        return emitted(unit, output, () if heard.sound is None else (pcm16(heard.sound),))

    # -- behind the answers ----------------------------------------------------------------------------

    def _work(self) -> None:
        """The background thread: give the model the ends of its units, while nobody waits for an answer."""
        while self._todo.wait() and not self._ended:
            self._todo.clear()
            while not self._ended and self._finish_one():
                pass

    def _finish_one(self) -> bool:
        """False: no session owes anything."""
        with self._turnstile.background():
            place = next((one for one in list(self._places.values()) if one.seat.owes and not one.lost), None)
            if place is None:
                return False
            try:
                with place.seat.seated():
                    place.seat.finish()
                place.look()
            except Exception:
                _log.exception("the end of a unit failed")
                place.lost = True
        return True


def _own_voice(pipeline: PipelineSpec, options: MiniCPMOOptions) -> Voice | None:
    """The pipeline's. Raises PipelineError."""
    if not options.ref_audio:
        return None
    path = Path(options.ref_audio).expanduser()
    try:
        return voice_of(*wav_voice(path.read_bytes(), options.max_ref_audio_s))
    except (OSError, BadVoice) as error:
        raise PipelineError(f"pipeline {pipeline.name}: options: ref_audio: {path}: {error}") from None
