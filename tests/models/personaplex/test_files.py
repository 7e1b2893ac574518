"""The published files: weights with 16 or 8 steps, voices in a folder or in the archive, and broken ones."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("moshi", reason="the environment of the model is not here: `make env NAME=moshi`")

import msgspec
import torch
from models.moshi.tiny import PERSONAPLEX, VOICE_ROWS, VOICES, lm_arguments, write_personaplex
from moshi.models import loaders
from safetensors.torch import load_file

from duologue.model.pipeline import PipelineError
from duologue.models.personaplex.options import PersonaPlexOptions
from duologue.models.personaplex.voices import load_voices
from duologue.models.personaplex.weights import ARGUMENTS, first_steps, load

pytestmark = [pytest.mark.models, pytest.mark.timeout(120)]


def options(folder: Path, **changed: Any) -> PersonaPlexOptions:
    return PersonaPlexOptions(checkpoint=str(folder), voices=VOICES, **changed)


@pytest.fixture(scope="module")
def sixteen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_personaplex(tmp_path_factory.mktemp("sixteen"))


def test_a_file_of_eight_steps_and_one_of_sixteen_are_the_same_model(sixteen: Path, tmp_path: Path) -> None:
    eight = write_personaplex(tmp_path, steps=8)
    sizes = [(folder / loaders.MOSHI_NAME).stat().st_size for folder in (sixteen, eight)]
    assert sizes[0] > 1.3 * sizes[1], "the files differ"
    one, other = (load(options(folder)).lm.state_dict() for folder in (sixteen, eight))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_the_cut_is_by_rows_and_keeps_the_first_steps(sixteen: Path) -> None:
    whole = load_file(sixteen / loaders.MOSHI_NAME)
    kept = first_steps(whole, 8)
    dim = PERSONAPLEX["depformer_dim"]
    assert isinstance(dim, int)
    key = "depformer.layers.1.self_attn.in_proj_weight"
    assert whole[key].shape == (16 * 3 * dim, dim) and torch.equal(kept[key], whole[key][: 8 * 3 * dim])
    key = "depformer.layers.1.self_attn.out_proj.weight"
    assert torch.equal(kept[key], whole[key][: 8 * dim])
    names = {key.partition(".weight")[0] for key in kept}
    assert "linears.7" in names and "linears.8" not in names
    assert "depformer_emb.6" in names and "depformer_emb.7" not in names
    assert "depformer.layers.0.gating.7.linear_in" in names and "depformer.layers.0.gating.8.linear_in" not in names
    assert all(torch.equal(kept[key], whole[key]) for key in kept if not key.startswith("depformer"))
    assert first_steps(kept, 8).keys() == kept.keys(), "cutting again cuts nothing"


def test_a_file_of_fewer_steps_is_refused_by_name(sixteen: Path) -> None:
    short = first_steps(load_file(sixteen / loaders.MOSHI_NAME), 4)
    with pytest.raises(PipelineError, match=r"in_proj_weight has 768 rows, 8 steps need 1536"):
        first_steps(short, 8)


def test_the_arguments_of_the_published_model_are_those_of_the_package_with_eight_steps() -> None:
    told = msgspec.json.decode(ARGUMENTS.read_bytes())
    names = {key: told.pop(key) for key in ("moshi_name", "mimi_name", "tokenizer_name", "model_type")}
    assert told == lm_arguments(dep_q=8, depformer_context=8)
    assert names["mimi_name"] == loaders.MIMI_NAME and names["tokenizer_name"] == loaders.TEXT_TOKENIZER_NAME


@pytest.mark.parametrize("packed", [False, True])
def test_voices_come_from_a_folder_or_from_the_archive(tmp_path: Path, sixteen: Path, packed: bool) -> None:
    folder = sixteen
    if packed:
        folder = tmp_path
        with tarfile.open(folder / "voices.tgz", "w:gz") as archive:
            for name in VOICES:
                archive.add(sixteen / "voices" / f"{name}.pt", f"voices/{name}.pt")
    voices = load_voices(options(folder), 128)
    assert tuple(voices) == VOICES
    for name, voice in voices.items():
        stored = torch.load(sixteen / "voices" / f"{name}.pt", weights_only=True)
        assert voice.rows.shape == (VOICE_ROWS, 128) and torch.equal(voice.rows, stored["embeddings"][:, 0, 0])
        assert torch.equal(voice.ring, stored["cache"][0])


def test_what_is_wrong_with_voices_is_told_by_name(tmp_path: Path, sixteen: Path) -> None:
    with pytest.raises(PipelineError, match=r"neither a folder voices nor voices\.tgz"):
        load_voices(options(tmp_path), 128)
    with pytest.raises(PipelineError, match="voice NATM2: there is no such file"):
        load_voices(msgspec.structs.replace(options(sixteen), voices=("NATM2",)), 128)
    (tmp_path / "voices").mkdir()
    torch.save({"embeddings": torch.zeros(3, 1, 1, 7), "cache": torch.zeros(1, 17, 4)}, tmp_path / "voices/NATF0.pt")
    with pytest.raises(PipelineError, match="voice NATF0: not a voice of this model"):
        load_voices(msgspec.structs.replace(options(tmp_path), voices=("NATF0",)), 128)
    assert load_voices(msgspec.structs.replace(options(tmp_path), voices=()), 128) == {}


def test_a_missing_file_is_told_by_name(tmp_path: Path, sixteen: Path) -> None:
    for path in sixteen.iterdir():
        if path.is_file() and path.name != loaders.MIMI_NAME:
            (tmp_path / path.name).symlink_to(path)
    with pytest.raises(PipelineError, match=f"{loaders.MIMI_NAME} is missing"):
        load(options(tmp_path))
    with pytest.raises(PipelineError, match="no such folder"):
        load(options(tmp_path / "nothing"))
    with pytest.raises(PipelineError, match="sees no GPU"):
        load(options(sixteen, device="cuda"))
