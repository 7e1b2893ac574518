"""The package's `LMGen`, with what belongs to a slot instead of the batch: sampling and forced tokens. Needs torch.

Rule 1. The target of step j is position j + 1; the token of codebook k in frame f stands at position f + delay_k.
        `forced` holds the tokens of the next step's target, -1 where the model is free.
Rule 2. `rows` replaces the fused input of a step (a voice prompt is stored as such rows); NaN: it is not replaced.
Rule 3. Both, and the sampler's tensors, exist before the first step, so that a CUDA graph captures them.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from moshi.models.lm import LMGen

from duologue.models.moshi.sampling import SlotSampler

FREE = -1


class SlotGen(LMGen):  # type: ignore[misc]
    """Steps `slots` sessions at once. `step(codes)` is the package's."""

    def __init__(self, lm: Any, slots: int, sampler: SlotSampler) -> None:
        super().__init__(
            lm,
            use_sampling=False,
            support_out_of_sync=True,
            on_text_logits_hook=self._keep_logits,
            on_text_hook=self._choose_text,
        )
        self._sampler = sampler
        self._text_logits: torch.Tensor | None = None
        self.forced = torch.full((slots, 1 + lm.dep_q), FREE, device=lm.device, dtype=torch.long)
        self.rows = torch.full((slots, 1, lm.dim), torch.nan, device=lm.device, dtype=lm.dtype)
        lm.forward_text = MethodType(_forward_text, lm)
        self.stream = self.streaming(slots)
        """Ends the streaming when it is closed."""
        # The package fuses a sum of conditions here, which these models do not have.
        self._streaming_state.condition_sum = self.rows

    def _keep_logits(self, logits: torch.Tensor) -> None:
        self._text_logits = logits[:, 0, 0]

    def _choose_text(self, token: torch.Tensor) -> None:
        """In place: what is here is what the depth transformer and the cache get."""
        assert self._text_logits is not None
        token.copy_(self._or_forced(0, self._sampler.text(self._text_logits)))

    def _or_forced(self, row: int, drawn: torch.Tensor) -> torch.Tensor:
        forced = self.forced[:, row]
        return torch.where(forced >= 0, forced, drawn)

    def depformer_step(self, text_token: torch.Tensor, transformer_out: torch.Tensor) -> torch.Tensor:
        """The codebooks of one frame, each from those before it: `[slots]` -> `[slots, dep_q]`."""
        lm = self.lm_model
        previous = text_token
        tokens = []
        with lm.depformer.streaming(text_token.shape[0]):
            for codebook in range(lm.dep_q):
                logits = lm.forward_depformer(codebook, previous[:, None, None], transformer_out)
                drawn = self._sampler.audio(logits[:, 0, 0], codebook)
                previous = self._or_forced(1 + codebook, drawn)
                tokens.append(previous)
        return torch.stack(tokens, dim=1)


def _forward_text(
    lm: Any, sequence: torch.Tensor, rows: torch.Tensor | None = None, cross: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """`LMModel.forward_text`, where rows that are not NaN stand for the fused input."""
    first = lm.audio_offset
    fused = lm.emb[0](sequence[:, first])  # in the package's order: sums of floats depend on it
    for codebook in range(1, lm.num_audio_codebooks):
        fused = fused + lm.emb[codebook](sequence[:, codebook + first])
    fused = fused + lm.text_emb(sequence[:, 0])
    if rows is not None:
        fused = torch.where(rows.isnan(), fused, rows.to(fused))
    out = lm.transformer(fused, cross_attention_src=cross)
    if lm.out_norm:
        out = lm.out_norm(out)
    return out, lm.text_linear(out)[:, None]
