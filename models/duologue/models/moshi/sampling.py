"""How tokens are drawn, slot by slot, in one batch. Needs torch.

Rule 1. What a slot draws depends on its own seed, its own temperature and its own steps, never on its neighbours
        or its place: the noise comes from the slot's generator, which moves only when the slot takes a step.
Rule 2. All tensors are made once and written in place, so that a captured CUDA graph goes on reading them.
"""

from __future__ import annotations

import torch

from duologue.models.moshi.options import MAX_TOP_K, Sampling


class SlotSampler:
    """`text` and `audio` draw from logits `[slots, card]`; `renew` makes the noise of the next step."""

    def __init__(self, slots: int, codebooks: int, device: torch.device, default: Sampling) -> None:
        self._default = default
        self._generators = [torch.Generator() for _ in range(slots)]
        self._drawing = [False] * slots
        pinned = device.type == "cuda"
        shape = (slots, 1 + codebooks, MAX_TOP_K)
        self._noise_here = torch.ones(shape, pin_memory=pinned)
        self._noise = torch.ones(shape, device=device)
        self._temperature = torch.zeros((2, slots, 1), device=device)
        self._top_k = torch.ones((2, slots, 1), device=device, dtype=torch.long)
        self._ranks = torch.arange(MAX_TOP_K, device=device)

    def begin(self, slot: int, sampling: Sampling, seed: int | None) -> None:
        """A new session has the slot. Without a seed it takes one of its own."""
        generator = self._generators[slot]
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(seed)
        self.set(slot, sampling)

    def set(self, slot: int, sampling: Sampling) -> None:
        """Draw so from the next step on."""
        temperatures = (sampling.temperature_text, sampling.temperature_audio)
        self._drawing[slot] = any(temperatures)
        self._temperature[:, slot, 0] = torch.tensor(temperatures, device=self._temperature.device)
        top_k = (sampling.top_k_text, sampling.top_k_audio)
        self._top_k[:, slot, 0] = torch.tensor(top_k, device=self._top_k.device)

    def renew(self, slots: list[int]) -> None:
        """Noise for a step of these slots."""
        drawing = [slot for slot in slots if self._drawing[slot]]
        for slot in drawing:
            self._noise_here[slot].exponential_(generator=self._generators[slot])
        if drawing:
            self._noise.copy_(self._noise_here, non_blocking=True)

    def text(self, logits: torch.Tensor) -> torch.Tensor:
        return self._draw(logits, 0, self._noise[:, 0])

    def audio(self, logits: torch.Tensor, codebook: int) -> torch.Tensor:
        return self._draw(logits, 1, self._noise[:, 1 + codebook])

    def _draw(self, logits: torch.Tensor, kind: int, noise: torch.Tensor) -> torch.Tensor:
        """The likeliest where the temperature is 0; else of the likeliest k the one that wins p / Exp(1), which
        is a draw by p."""
        width = min(MAX_TOP_K, logits.shape[-1])
        temperature = self._temperature[kind]
        scaled = logits.float() / torch.where(temperature > 0, temperature, 1.0)
        chances, ids = torch.topk(torch.softmax(scaled, dim=-1), width, dim=-1)
        race = chances / noise[:, :width]
        race = torch.where(self._ranks[:width] < self._top_k[kind], race, -1.0)
        drawn = ids.gather(-1, race.argmax(dim=-1, keepdim=True))[:, 0]
        return torch.where(temperature[:, 0] > 0, drawn, logits.argmax(dim=-1))
