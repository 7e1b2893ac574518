"""Loads what a repository of the `moshi` package holds: language model, codec, tokenizer. Needs torch.

Rule 1. A folder and a repository on the hub go through the same loader of the package; a folder touches no network.
Rule 2. What is missing is a PipelineError that names the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from moshi.models import loaders

from duologue.model.pipeline import PipelineError
from duologue.models.moshi.options import FRAME, RATE_HZ, MoshiOptions

CODEBOOKS = 8
"""Of a frame of sound, in and out."""


@dataclass
class Checkpoint:
    """Loaded and ready to stream. `frame_tokens` is the context: older frames are forgotten."""

    lm: Any
    mimi: Any
    tokenizer: Any
    device: torch.device


def prepare(options: MoshiOptions) -> torch.device:
    """Set what is set once in a process; the device."""
    if options.threads:
        torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise PipelineError(f"device {options.device}: this torch ({torch.__version__}) sees no GPU")
    return device


def load(options: MoshiOptions) -> Checkpoint:
    """Raises PipelineError, or what the package raises."""
    device = prepare(options)
    info = find(options)
    lm = info.get_moshi(device, dtype=getattr(torch, options.dtype))
    return checked(Checkpoint(lm, info.get_mimi(device), info.get_text_tokenizer(), device))


def find(options: MoshiOptions, config_path: Path | None = None) -> Any:
    """The package's `CheckpointInfo`. `config_path`: arguments to use instead of the repository's own."""
    folder = Path(options.checkpoint).expanduser()
    if not folder.is_dir():
        if folder.is_absolute() or options.checkpoint.count("/") != 1:
            raise PipelineError(f"checkpoint {options.checkpoint}: no such folder, and no name of a repository")
        return loaders.CheckpointInfo.from_hf_repo(
            options.checkpoint, config_path=config_path, revision=options.revision or None
        )
    config_path = config_path or folder / "config.json"
    raw = read_json(config_path)
    mimi_config = raw.get("mimi_config_name")
    paths = {
        "moshi_weights": folder / raw.get("moshi_name", loaders.MOSHI_NAME),
        "mimi_weights": folder / raw.get("mimi_name", loaders.MIMI_NAME),
        "tokenizer": folder / raw.get("tokenizer_name", loaders.TEXT_TOKENIZER_NAME),
        "mimi_config_path": None if mimi_config is None else folder / mimi_config,
    }
    for path in paths.values():
        if path is not None and not path.is_file():
            raise PipelineError(f"checkpoint {options.checkpoint}: {path.name} is missing")
    return loaders.CheckpointInfo.from_hf_repo("local", config_path=config_path, **paths)


def read_json(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PipelineError(f"{path}: {error}") from None
    if not isinstance(document, dict):
        raise PipelineError(f"{path}: not a JSON object")
    return document


def checked(loaded: Checkpoint) -> Checkpoint:
    """Raises PipelineError for a model of another shape than the engine serves."""
    lm, mimi = loaded.lm, loaded.mimi
    if lm.dep_q != CODEBOOKS or lm.n_q != 2 * CODEBOOKS:
        raise PipelineError(f"a model of {lm.dep_q} codebooks out of {lm.n_q} is not one that hears and speaks")
    if mimi.sample_rate != RATE_HZ or mimi.frame_size != FRAME:
        raise PipelineError(f"the codec has frames of {mimi.frame_size} at {mimi.sample_rate} Hz")
    return loaded
