"""One batch of slots on one copy of the weights: a tick takes one frame of each slot that has one. Needs torch.

Rule 1. A slot that has no frame in a tick is masked out: nothing of it moves. So sessions may start, pause, end
        and catch up as they like, and each gets what it would get alone.
Rule 2. Codec and language model have masks of their own: a frame that is forced (an opening) passes by the codec,
        and the first step of a slot, which makes no sound, does not touch its decoder.
Rule 3. All tensors of a tick are made once, pinned where there is a GPU, and one copy back ends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from duologue.models.moshi.checkpoint import CODEBOOKS, Checkpoint
from duologue.models.moshi.generator import FREE, SlotGen
from duologue.models.moshi.options import FRAME, Sampling
from duologue.models.moshi.sampling import SlotSampler

Floats = npt.NDArray[np.float32]
WARM_UP_TICKS = 3
"""The first runs plainly, the second is captured where there is a GPU, the third replays."""


@dataclass(frozen=True)
class Forced:
    """One frame of an opening. `codes` is what the user is to have said: `[8]`."""

    codes: torch.Tensor
    tokens: torch.Tensor
    """`[9]`: the tokens of the step's target, -1 where the model is free."""
    row: torch.Tensor | None = None
    """`[dim]`: stands for the fused input."""


@dataclass(frozen=True)
class Frame:
    """What a slot made in a tick: a token of text, and 1920 samples; None in its first."""

    text: int
    sound: Floats | None
    codes: npt.NDArray[np.int64]
    """`[8]`, as they are decoded."""


class FrameBatch:
    """Not thread-safe. `slots` sessions at most."""

    def __init__(self, loaded: Checkpoint, slots: int, default: Sampling) -> None:
        self._device = loaded.device
        self._mimi = loaded.mimi
        self.slots = slots
        pinned = loaded.device.type == "cuda"
        with torch.no_grad():
            self.sampler = SlotSampler(slots, CODEBOOKS, loaded.device, default)
            self._stream = self._mimi.streaming(slots)
            self._gen = SlotGen(loaded.lm, slots, self.sampler)
        self._sound_here = torch.zeros((slots, 1, FRAME), pin_memory=pinned)
        self._samples = self._sound_here.numpy()
        """The same memory."""
        self._sound = torch.zeros((slots, 1, FRAME), device=loaded.device)
        self._codes = torch.zeros((slots, CODEBOOKS, 1), device=loaded.device, dtype=torch.long)
        self._forced_slots: tuple[int, ...] = ()
        self._row_slots: tuple[int, ...] = ()
        self._masks: dict[str, tuple[int, ...] | None] = {"mimi": None, "gen": None}
        self._steps = [0] * slots

    def warm_up(self) -> None:
        """Run every part with every slot, so that the first session finds all of it made (and captured)."""
        everyone = dict.fromkeys(range(self.slots), np.zeros(FRAME, np.float32))
        for _ in range(WARM_UP_TICKS):
            self.tick(everyone, {})
        for slot in range(self.slots):
            self.reset(slot)

    def reset(self, slot: int) -> None:
        """A new session has the slot."""
        mask = torch.zeros(self.slots, dtype=torch.bool)
        mask[slot] = True
        with torch.no_grad():
            self._mimi.reset_streaming(reset_mask=mask)
            self._gen.reset_streaming(reset_mask=mask)
        self._masks = {"mimi": None, "gen": None}  # a reset lets its slot run
        self._steps[slot] = 0

    def tick(self, heard: Mapping[int, Floats], openings: Mapping[int, Forced]) -> dict[int, Frame]:
        """One step of the slots in either: what those that heard something made. A slot is in one of them."""
        hearing = tuple(sorted(heard))
        forced = tuple(sorted(openings))
        stepping = tuple(sorted((*hearing, *forced)))
        with torch.no_grad():
            self._hear(heard, hearing)
            self._force(openings, forced)
            self.sampler.renew(list(stepping))
            self._mask("gen", self._gen, stepping)
            out = self._gen.step(self._codes)
            for slot in stepping:
                self._steps[slot] += 1
            speaking = tuple(slot for slot in hearing if self._steps[slot] > self._gen.max_delay)
            return self._collect(out, hearing, speaking)

    def _hear(self, heard: Mapping[int, Floats], hearing: tuple[int, ...]) -> None:
        if not hearing:
            return
        for slot in hearing:
            self._samples[slot, 0] = heard[slot]
        self._sound.copy_(self._sound_here, non_blocking=True)
        self._mask("mimi", self._mimi, hearing)
        self._codes.copy_(self._mimi.encode(self._sound))

    def _force(self, openings: Mapping[int, Forced], forced: tuple[int, ...]) -> None:
        for slot in self._forced_slots:
            self._gen.forced[slot] = FREE
        for slot in self._row_slots:
            self._gen.rows[slot] = torch.nan
        for slot in forced:
            opening = openings[slot]
            self._codes[slot, :, 0] = opening.codes
            self._gen.forced[slot] = opening.tokens
            if opening.row is not None:
                self._gen.rows[slot, 0] = opening.row
        self._forced_slots = forced
        self._row_slots = tuple(slot for slot in forced if openings[slot].row is not None)

    def _mask(self, name: str, module: Any, slots: tuple[int, ...]) -> None:
        """Let only these slots move. Costs a walk through every module, so it is left out where nothing changes."""
        if self._masks[name] == slots:
            return
        mask = torch.zeros(self.slots, dtype=torch.bool)
        mask[list(slots)] = True
        module.set_exec_mask(mask)
        self._masks[name] = slots

    def _collect(self, out: torch.Tensor, hearing: tuple[int, ...], speaking: tuple[int, ...]) -> dict[int, Frame]:
        if not hearing:
            return {}
        sound = None
        if speaking:
            self._mask("mimi", self._mimi, speaking)
            sound = self._mimi.decode(out[:, 1:].clamp(min=0)).to("cpu", torch.float32).numpy()
        tokens = out[:, :, 0].to("cpu").numpy()
        frames = {}
        for slot in hearing:
            speaks = sound is not None and slot in speaking
            samples = np.ascontiguousarray(sound[slot, 0]) if speaks and sound is not None else None
            frames[slot] = Frame(int(tokens[slot, 0]), samples, tokens[slot, 1:].copy())
        return frames

    def release(self) -> None:
        """Give the state of all slots back; the weights may stream in another batch."""
        self._gen.stream.close()
        self._stream.close()

    def slot_bytes(self) -> int:
        """Memory of one slot's streaming state: keys and values, convolutions, codes."""
        total = 0
        for module in (self._gen, self._gen.lm_model, self._mimi):
            for state in module.get_streaming_state().values():
                total += sum(_tensor_bytes(value) for value in vars(state).values())
        return total // self.slots


def _tensor_bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return int(value.numel() * value.element_size())
    cache = getattr(value, "cache", None)
    return _tensor_bytes(cache) if isinstance(cache, torch.Tensor) else 0
