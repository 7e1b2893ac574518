"""What PersonaPlex makes of a session, told without streaming: one pass over all positions, no cache, no batch.

The tokens of the opening are laid out in a table by the rules of the published code (text and the first codebook
of a frame stand at its position, the other seven one later; nothing of frame 0 is kept), and the model fills in the
rest greedily, position by position, with the whole of what stands before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

PAD = 3
SINE = [430, 1268, 381, 1611, 1095, 1495, 56, 472]
SILENCE = [948, 243, 1178, 546, 1736, 1030, 1978, 2008]
UNKNOWN = -9


class Table:
    """`[17, positions]`."""

    def __init__(self, lm: Any, positions: int) -> None:
        self.lm = lm
        self.cells = torch.full((17, positions), UNKNOWN)
        for stream, delay in enumerate(lm.delays):
            self.cells[stream, : delay + 1] = lm.text_card if stream == 0 else lm.card

    def lay(self, frame: int, streams: slice, tokens: Sequence[int]) -> None:
        for stream, token in zip(range(17)[streams], tokens, strict=True):
            position = frame + self.lm.delays[stream]
            if position > self.lm.delays[stream] and position < self.cells.shape[1]:
                self.cells[stream, position] = token


def opening(lm: Any, role: Sequence[int], voice: dict[str, torch.Tensor] | None, positions: int) -> tuple[Table, int]:
    """The table with the opening in it, and the number of its frames."""
    table = Table(lm, positions)
    rows = 0 if voice is None else voice["embeddings"].shape[0] + 1
    text = [PAD] * 6 + list(role) + [PAD] * 6
    for n, token in enumerate(text):
        table.lay(rows + n, slice(0, 1), [token])
        table.lay(rows + n, slice(1, 9), SILENCE)
        table.lay(rows + n, slice(9, 17), SINE)
    if voice is not None:
        for position in (rows - 1, rows):  # the ring of four, where the model still looks
            for stream in range(17):
                if position == rows - 1 or lm.delays[stream] == 1:
                    table.cells[stream, position] = voice["cache"][0, stream, position % 4]
    return table, rows + len(text)


def greedy(
    lm: Any,
    role: Sequence[int],
    heard: torch.Tensor,
    voice: dict[str, torch.Tensor] | None = None,
) -> list[list[int]]:
    """`heard`: `[frames, 8]` codes. For each of them the nine tokens of the model: text, then sound."""
    frames = heard.shape[0]
    table, first = opening(lm, role, voice, len(role) + 12 + frames + 40)
    for n in range(frames):
        table.lay(first + n, slice(9, 17), heard[n].tolist())
    rows = torch.zeros(0, lm.dim) if voice is None else voice["embeddings"].reshape(-1, lm.dim)
    cells = table.cells
    for position in range(first + frames):
        out = _hidden(lm, cells[:, : position + 1], rows)[:, -1:]
        _fill(lm, cells, position + 1, out)
    made = []
    for n in range(frames):
        position = first + n
        made.append([int(cells[k, position + lm.delays[k]]) for k in range(9)])
    return made


def _hidden(lm: Any, cells: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    known = cells.clamp(min=0)[None]
    fused = sum(lm.emb[k](known[:, 1 + k]) for k in range(16)) + lm.text_emb(known[:, 0])
    count = min(rows.shape[0], fused.shape[1])
    fused[0, :count] = rows[:count]
    return lm.out_norm(lm.transformer(fused)) if lm.out_norm else lm.transformer(fused)


def _fill(lm: Any, cells: torch.Tensor, position: int, out: torch.Tensor) -> None:
    """The nine tokens of one position, each from those before it; what stands there already is kept."""
    if cells[0, position] == UNKNOWN:
        cells[0, position] = lm.text_linear(out)[0, 0].argmax()
    chain = [lm.depformer_text_emb(cells[None, 0, position, None])]
    for k in range(8):
        inner = torch.cat([chain[i] + lm.depformer_in[i](out) for i in range(k + 1)], dim=1)
        if cells[1 + k, position] == UNKNOWN:
            cells[1 + k, position] = lm.linears[k](lm.depformer(inner)[0, k]).argmax()
        if k < 7:
            chain.append(lm.depformer_emb[k](cells[None, 1 + k, position, None]))
