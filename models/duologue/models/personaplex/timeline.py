"""The opening of a PersonaPlex session as frames of the public `moshi` package. Needs torch.

    voice rows (one frame more than rows) | 6 frames of silence | a frame for each token of the role | 6 of silence

Rule 1. In every frame of the opening the user "says" a sine and the model silence; text is padding except where the
        role is. The model is free from the first frame after the opening on.
Rule 2. Step j is given what the user says in frame j, and its target is position j + 1, where the token of codebook
        k is that of frame j + 1 - delay_k. Positions up to delay_k hold the initial token.
Rule 3. A stored voice is the fused inputs of its frames, which replace those of the first steps, and the ring of
        tokens after them (index = position % 4), from which the codes of its last two frames are rebuilt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from duologue.models.moshi.batch import Forced
from duologue.models.moshi.checkpoint import CODEBOOKS
from duologue.models.moshi.generator import FREE
from duologue.models.moshi.spelling import PADDING

SILENCE: Final = (948, 243, 1178, 546, 1736, 1030, 1978, 2008)
SINE: Final = (430, 1268, 381, 1611, 1095, 1495, 56, 472)
SILENT_FRAMES: Final = 6
RING: Final = 4
_STREAMS: Final = 1 + CODEBOOKS


@dataclass(frozen=True)
class Voice:
    """`rows`: `[n, dim]`; `ring`: `[17, 4]` tokens of positions n - 2 to n + 1."""

    rows: torch.Tensor
    ring: torch.Tensor


def opening(
    voice: Voice | None, role: Sequence[int], delays: Sequence[int], initial: int, silent: int = SILENT_FRAMES
) -> list[Forced]:
    """The frames of an opening. `role`: tokens; `delays`: of the 17 streams; `initial`: the audio token that stands
    before the first."""
    text = [PADDING] * silent + list(role) + [PADDING] * silent
    spoken = 0 if voice is None else voice.rows.shape[0] + 1
    total = spoken + len(text)
    sine, silence = torch.tensor(SINE), torch.tensor(SILENCE)
    frames = []
    for step in range(total):
        codes = sine if voice is None or step >= spoken else _said(voice, step, delays)
        tokens = torch.full((_STREAMS,), FREE)
        for stream in range(_STREAMS):
            position, frame = step + 1, step + 1 - delays[stream]
            if position <= delays[stream]:
                tokens[stream] = initial
            elif voice is not None and frame < spoken:
                tokens[stream] = voice.ring[stream, position % RING] if position >= spoken - 1 else _filler(stream)
            elif frame < total:
                tokens[stream] = text[frame - spoken] if stream == 0 else silence[stream - 1]
        row = voice.rows[step] if voice is not None and step < voice.rows.shape[0] else None
        frames.append(Forced(codes, tokens, row))
    return frames


def _said(voice: Voice, frame: int, delays: Sequence[int]) -> torch.Tensor:
    """What the user says in a frame of the voice: of the last two the ring has it, before them nothing reads it."""
    if frame < voice.rows.shape[0] - 1:
        return torch.tensor(SINE)
    streams = range(_STREAMS, _STREAMS + CODEBOOKS)
    return torch.stack([voice.ring[stream, (frame + delays[stream]) % RING] for stream in streams])


def _filler(stream: int) -> int:
    """Where the fused row stands for whatever is here."""
    return PADDING if stream == 0 else SILENCE[stream - 1]
