"""Pieces as vLLM's prompts. Imports vLLM: for stage workers only."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from vllm.multimodal.inputs import (
    MultiModalFieldElem,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    MultiModalSharedField,
    PlaceholderRange,
)
from vllm.renderers.inputs.preprocess import parse_model_prompt

from duologue.models.vllm_stream.context import Piece
from duologue.models.vllm_stream.options import RATE_HZ

_serial = itertools.count()


class Prompts:
    """For one loaded model. `sound_token`: its placeholder of sound and of embeddings; None: it hears nothing."""

    def __init__(self, engine: Any, sound_token: int | None) -> None:
        self._engine, self._sound = engine, sound_token
        self._hidden = int(engine.model_config.get_hidden_size())

    async def render(self, piece: Piece) -> tuple[Any, int]:
        """The prompt, and how many tokens it is. Raises ValueError for what the model cannot take."""
        if piece.kind == "tokens":
            ids = [*piece.before, *piece.after]
            return {"type": "token", "prompt_token_ids": ids}, len(ids)
        if self._sound is None:
            raise ValueError("this model takes tokens and nothing else")
        if piece.kind == "prompt_embeds":
            prompt = self._embeds(piece, self._sound)
        else:
            data = self._pcm(piece) if piece.kind == "pcm" else {"audio_embeds": [self._rows(piece)]}
            written = {
                "prompt_token_ids": [*piece.before, self._sound, *piece.after],
                "multi_modal_data": {"audio": data},
            }
            parsed = parse_model_prompt(self._engine.model_config, written)
            [prompt] = await self._engine.renderer.render_cmpl_async([parsed])
        return prompt, len(prompt["prompt_token_ids"])

    def _pcm(self, piece: Piece) -> list[tuple[Any, int]]:
        return [(np.frombuffer(piece.payload, "<f4"), RATE_HZ)]

    def _rows(self, piece: Piece) -> Any:
        row = 4 * self._hidden
        if not piece.payload or len(piece.payload) % row:
            raise ValueError(f"embeddings are rows of {self._hidden} float32 numbers")
        return torch.frombuffer(bytearray(piece.payload), dtype=torch.float32).reshape(-1, self._hidden)

    def _embeds(self, piece: Piece, placeholder: int) -> dict[str, Any]:
        """The pass-through modality: no processor and no encoder. Built by hand, as vLLM makes it inside."""
        rows = self._rows(piece)
        element = MultiModalFieldElem(data=rows, field=MultiModalSharedField(batch_size=1))
        return {
            "type": "multimodal",
            "prompt_token_ids": [*piece.before, *[placeholder] * len(rows), *piece.after],
            "mm_kwargs": MultiModalKwargsItems({"prompt_embeds": [MultiModalKwargsItem({"embedding": element})]}),
            "mm_hashes": {"prompt_embeds": [f"duologue-{next(_serial)}"]},
            "mm_placeholders": {"prompt_embeds": [PlaceholderRange(offset=len(piece.before), length=len(rows))]},
        }
