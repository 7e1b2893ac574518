"""PersonaPlex's published weights in the public `moshi` package. Needs torch.

The file has a depth transformer of 16 steps, which predicts the user's codes too (a distribution may hold 8). What
the user says is always given, so the steps after the eighth are dropped, and the rest is Moshi's own shape.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import torch
from moshi.models.lm import LMModel
from safetensors.torch import load_file

from duologue.model.pipeline import PipelineError
from duologue.models.moshi.checkpoint import CODEBOOKS, Checkpoint, checked, find, prepare, read_json
from duologue.models.personaplex.options import PersonaPlexOptions

ARGUMENTS: Final = Path(__file__).with_name("personaplex-7b-v1.json")
"""Of the published model, whose own `config.json` does not say them."""
_PER_STEP = re.compile(r"(?:depformer_in|linears|depformer\.layers\.\d+\.gating)\.(\d+)\.")
_EMBEDDING = re.compile(r"depformer_emb\.(\d+)\.")
_PROJECTION = re.compile(r"depformer\.layers\.\d+\.self_attn\.(in_proj_weight|in_proj\.weight|out_proj\.weight)$")


def load(options: PersonaPlexOptions) -> Checkpoint:
    """Raises PipelineError, or what the package raises."""
    device = prepare(options)
    info = find(options, _arguments(options))
    dtype = getattr(torch, options.dtype)
    state = first_steps(load_file(info.moshi_weights, device=str(device)), CODEBOOKS)
    state = {key: value.to(dtype) if value.is_floating_point() else value for key, value in state.items()}
    lm = LMModel(device=torch.device("meta"), dtype=dtype, **info.lm_config)
    lm.load_state_dict(state, assign=True)
    lm.eval()
    return checked(Checkpoint(lm, info.get_mimi(device), info.get_text_tokenizer(), device))


def _arguments(options: PersonaPlexOptions) -> Path:
    """The folder's own arguments, if it says any."""
    own = Path(options.checkpoint).expanduser() / "config.json"
    return own if own.is_file() and "dim" in read_json(own) else ARGUMENTS


def first_steps(state: dict[str, Any], steps: int) -> dict[str, Any]:
    """The weights of so many steps of the depth transformer. Cut by the count of rows, so a file that holds no more
    stays as it is. Raises PipelineError for one that holds fewer."""
    kept = {}
    for key, value in state.items():
        per_step, embedding = _PER_STEP.match(key), _EMBEDDING.match(key)
        if per_step is not None and int(per_step[1]) >= steps:
            continue
        if embedding is not None and int(embedding[1]) >= steps - 1:
            continue
        projection = _PROJECTION.match(key)
        kept[key] = value if projection is None else _first_rows(key, value, steps, projection[1].startswith("in"))
    return kept


def _first_rows(key: str, value: torch.Tensor, steps: int, joint: bool) -> torch.Tensor:
    rows = steps * value.shape[1] * (3 if joint else 1)
    if value.shape[0] < rows:
        raise PipelineError(f"{key} has {value.shape[0]} rows, {steps} steps need {rows}")
    return value[:rows].clone()
