"""The one stage of Moshi: hears a frame, says a frame, for every session of the worker in one batch.

Rule 1. A live step takes one frame of each session that the worker has gathered. Who is late is masked out, and
        catches up in later steps, which delays nobody.
Rule 2. What does not come live (an opening, and what was heard meanwhile) is done by a thread of the engine's own,
        tick by tick, faster than real time; a live step waits for at most the tick that is under way, and takes
        the openings along.
Rule 3. A hard stop does not touch the model: its slot is hushed until it pauses. What it was about to say it
        goes on believing to have said.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence

import numpy as np

from duologue.model.emissions import emitted, failed, lost, pcm16, slot_config
from duologue.model.engine import Emission, EngineUsage, Slot, StageEngine, StageRefused, StageUnit
from duologue.model.outputs import ModelOutput, Usage
from duologue.model.pipeline import PipelineSpec
from duologue.model.turnstile import Turnstile
from duologue.models.moshi.batch import Floats, Forced, Frame, FrameBatch
from duologue.models.moshi.checkpoint import Checkpoint, load
from duologue.models.moshi.mouth import Mouth, Said
from duologue.models.moshi.options import FRAME, MAX_WAITING, RATE_HZ, MoshiOptions, read_options
from duologue.models.moshi.spelling import Speller
from duologue.models.moshi.wire import FORCE_LISTEN, SlotConfig, decode_config

_log = logging.getLogger("duologue.models.moshi")


def build(pipeline: PipelineSpec, stage_index: int) -> StageEngine:
    """Raises PipelineError for options that it does not know and files that are not there."""
    return MoshiEngine(pipeline, read_options(pipeline, MoshiOptions))


class Place:
    """What the engine keeps of a slot, beside the batch."""

    __slots__ = ("lost", "mouth", "opening", "prompt_tokens", "slot", "speller", "steps", "waiting")

    def __init__(self, slot: Slot, speller: Speller, mouth: Mouth) -> None:
        self.slot = slot
        self.speller = speller
        self.mouth = mouth
        self.opening: deque[Forced] = deque()
        self.waiting: deque[StageUnit] = deque()
        self.prompt_tokens = 0
        """Of the opening, until they are told."""
        self.steps = 0
        self.lost = False
        """A step failed half-way: what the slot holds means nothing any more."""


class MoshiEngine(StageEngine):
    """See the module."""

    def __init__(self, pipeline: PipelineSpec, options: MoshiOptions) -> None:
        self.options = options
        self._slots = pipeline.stages[0].slots
        self._batch: FrameBatch
        self._loaded: Checkpoint
        self._context = 0
        self._places: dict[int, Place] = {}
        self._turnstile = Turnstile()
        self._made: deque[Emission] = deque()
        """By the background, in order; the worker reads them. Bounded by what waits."""
        self._todo = threading.Event()
        self._ended = False
        self._slot_bytes = 0
        self._background = threading.Thread(target=self._work, name="moshi-background", daemon=True)

    def load(self) -> Checkpoint:
        return load(self.options)

    def warm_up(self) -> None:
        self._loaded = self.load()
        self._context = self._loaded.lm.context or 0
        self._batch = FrameBatch(self._loaded, self._slots, self.options.sampling)
        self._batch.warm_up()
        self._slot_bytes = self._batch.slot_bytes()
        self._background.start()

    # -- slots -----------------------------------------------------------------------------------------

    def open(self, slot: Slot, config: bytes) -> None:
        if slot.index >= self._slots:
            raise StageRefused("resource_exhausted", f"the batch has {self._slots} slots")
        settings = slot_config(decode_config, config)
        place = Place(slot, Speller(self._loaded.tokenizer), Mouth(settings.talking))
        opening = self.opening(settings, place)
        with self._turnstile.live():
            self._batch.reset(slot.index)
            self._batch.sampler.begin(slot.index, settings.sampling, settings.seed)
            place.opening = deque(opening)
            self._places[slot.index] = place
        if opening:
            self._todo.set()

    def opening(self, settings: SlotConfig, place: Place) -> Sequence[Forced]:
        """The frames that a session begins with. Raises StageRefused."""
        return ()

    def cancel(self, slot: Slot, epoch: int) -> None:
        place = self._place(slot)
        if place is not None:
            with self._turnstile.live():
                place.mouth.hush()
                place.speller.start()

    def control(self, slot: Slot, kind: str, body: bytes) -> None:
        place = self._place(slot)
        if place is not None and kind == "update":
            settings = slot_config(decode_config, body)
            with self._turnstile.live():
                self._batch.sampler.set(slot.index, settings.sampling)

    def close(self, slot: Slot) -> None:
        if self._place(slot) is not None:
            with self._turnstile.live():
                del self._places[slot.index]

    def usage(self) -> EngineUsage:
        places = list(self._places.values())
        kept = sum(min(place.steps, self._context) for place in places)
        return EngineUsage(len(places), self._slots, len(places) * self._slot_bytes, kept)

    def shut_down(self) -> None:
        self._ended = True
        self._todo.set()
        if self._background.is_alive():
            self._background.join()

    def _place(self, slot: Slot) -> Place | None:
        place = self._places.get(slot.index)
        return place if place is not None and place.slot == slot else None

    # -- steps -----------------------------------------------------------------------------------------

    def append_batch(self, batch: Sequence[StageUnit]) -> Sequence[Emission]:
        with self._turnstile.live():
            refused = [emission for unit in batch if (emission := self._take_in(unit)) is not None]
            made = self._tick()
            emissions = [*self.read(), *refused, *made]
            if self._behind():
                self._todo.set()
        return emissions

    def read(self) -> Sequence[Emission]:
        made = []
        while self._made:
            made.append(self._made.popleft())
        return made

    def _take_in(self, unit: StageUnit) -> Emission | None:
        """Let a unit wait for its tick, or say why not."""
        place = self._place(unit.slot)
        if place is None:
            return failed(unit, "stage_not_open", "the slot is not open")
        if place.lost:
            return lost(unit, "a step of the batch failed")
        if not unit.frames or len(unit.frames[0]) != FRAME * 4:
            size = len(unit.frames[0]) // 4 if unit.frames else 0
            return failed(unit, "runtime_append_failed", f"a frame has {FRAME} samples, not {size}")
        if len(place.waiting) >= MAX_WAITING:
            return failed(unit, "stage_backlog", f"{MAX_WAITING} frames wait for the opening already")
        place.waiting.append(unit)
        return None

    def _tick(self) -> list[Emission]:
        """One frame of every slot that has one. Under the turnstile."""
        openings: dict[int, Forced] = {}
        units: dict[int, StageUnit] = {}
        for index, place in self._places.items():
            if place.opening:
                openings[index] = place.opening.popleft()
            elif place.waiting:
                units[index] = place.waiting.popleft()
            else:
                continue
            place.steps += 1
        if not units and not openings:
            return []
        heard: dict[int, Floats] = {n: np.frombuffer(unit.frames[0], dtype="<f4") for n, unit in units.items()}
        try:
            frames = self._batch.tick(heard, openings)
        except Exception:
            _log.exception("a step over %d sessions failed half-way", len(units) + len(openings))
            return self._lose(list(units.values()))
        return [self._emission(self._places[index], units[index], frame) for index, frame in frames.items()]

    def _lose(self, units: list[StageUnit]) -> list[Emission]:
        """One step moves the state of every slot together: after half of one, nobody's can be trusted."""
        for place in self._places.values():
            place.lost = True
            units.extend(place.waiting)
            place.waiting.clear()
            place.opening.clear()
        return [lost(unit, "a step of the batch failed") for unit in units]

    def _behind(self) -> bool:
        return any(place.opening or place.waiting for place in self._places.values())

    def _work(self) -> None:
        """The background thread: tick until nothing is behind, then sleep."""
        while self._todo.wait() and not self._ended:
            self._todo.clear()
            while not self._ended and self._catch_up():
                pass

    def _catch_up(self) -> bool:
        """One tick. False: nothing was behind."""
        with self._turnstile.background():
            if not self._behind():
                return False
            made = self._tick()
            self._made.extend(made)
        if made:
            self.wake()
        return True

    # -- results ---------------------------------------------------------------------------------------

    def _emission(self, place: Place, unit: StageUnit, frame: Frame) -> Emission:
        if unit.head == FORCE_LISTEN:
            place.mouth.hush()
        usage = None
        if place.prompt_tokens:
            usage, place.prompt_tokens = Usage(input_text_tokens=place.prompt_tokens), 0
        has_text, said = place.speller.spoken(frame.text), Said.LISTENING
        if frame.sound is not None:  # the first frame has none yet
            said = place.mouth.frame(text=has_text, loudness=float(np.sqrt(np.mean(np.square(frame.sound)))))
        text = ""
        if said is Said.LISTENING or frame.sound is None:
            place.speller.start()
        elif has_text:
            text = place.speller.text(frame.text)
        if unit.replay:
            return emitted(unit, ModelOutput(usage=usage))
        if said is Said.LISTENING or frame.sound is None:
            return emitted(unit, ModelOutput(listen=True, usage=usage))
        output = ModelOutput(text=text, audio_rate_hz=RATE_HZ, end_of_turn=said is Said.ENDING, usage=usage)
        return emitted(unit, output, (pcm16(frame.sound),))
