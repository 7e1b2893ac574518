"""The voices of a checkpoint: `voices/<name>.pt`, or the published archive of them. Needs torch.

Rule 1. Only the names of the pipeline's list are read, into memory; nothing of an archive is unpacked to disk.
Rule 2. A file is read as tensors and nothing else (`weights_only`).
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download

from duologue.model.pipeline import PipelineError
from duologue.models.personaplex.options import PersonaPlexOptions
from duologue.models.personaplex.timeline import RING, Voice

ARCHIVE = "voices.tgz"
_STREAMS = 17


def load_voices(options: PersonaPlexOptions, dim: int) -> dict[str, Voice]:
    """Raises PipelineError, which names the voice that is missing or wrong."""
    if not options.voices:
        return {}
    files = _files(options)
    return {name: _voice(name, files.get(name), dim) for name in options.voices}


def _files(options: PersonaPlexOptions) -> dict[str, bytes]:
    folder = Path(options.checkpoint).expanduser()
    if not folder.is_dir():
        archive = hf_hub_download(options.checkpoint, ARCHIVE, revision=options.revision or None)
        return _from_archive(Path(archive), options.voices)
    if (folder / "voices").is_dir():
        paths = ((name, folder / "voices" / f"{name}.pt") for name in options.voices)
        return {name: path.read_bytes() for name, path in paths if path.is_file()}
    if (folder / ARCHIVE).is_file():
        return _from_archive(folder / ARCHIVE, options.voices)
    raise PipelineError(f"checkpoint {options.checkpoint}: neither a folder voices nor {ARCHIVE} is there")


def _from_archive(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    wanted = {f"{name}.pt": name for name in names}
    found = {}
    with tarfile.open(path) as archive:
        for member in archive:
            name = wanted.get(member.name.rpartition("/")[2])
            if name is not None and member.isfile():
                file = archive.extractfile(member)
                assert file is not None
                found[name] = file.read()
    return found


def _voice(name: str, data: bytes | None, dim: int) -> Voice:
    if data is None:
        raise PipelineError(f"voice {name}: there is no such file in the checkpoint")
    stored: Any = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    try:
        rows, ring = stored["embeddings"].reshape(-1, dim), stored["cache"].reshape(_STREAMS, RING).long()
    except (KeyError, TypeError, RuntimeError) as error:
        raise PipelineError(f"voice {name}: not a voice of this model: {error}") from None
    if not rows.shape[0]:
        raise PipelineError(f"voice {name}: it is empty")
    return Voice(rows, ring)
