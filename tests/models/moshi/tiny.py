"""Tiny random checkpoints in the file format of the published ones, seeded, for tests and for `make models`.

    python tests/models/moshi/tiny.py FOLDER [--personaplex]

writes the folder, and beside the files a `moshi.toml` (`personaplex.toml`) that serves it on the CPU.
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from moshi.models import loaders
from safetensors.torch import save_file

VOICES = ("NATF0", "VARM1")
VOICED = f'voices = {json.dumps(VOICES)}\ninstructions = "the lazy dog"\n'
VOICE_ROWS = 9
VOCABULARY = 100
WORDS = "the quick brown fox jumps over a lazy dog while rain falls on the quiet town and nobody minds".split()

LM = {
    "dim": 128,
    "text_card": 512,
    "num_heads": 4,
    "num_layers": 2,
    "context": 300,
    "depformer_dim": 64,
    "depformer_dim_feedforward": 128,
    "depformer_num_heads": 2,
    "hidden_scale": 2.0,
}
MOSHI = {**LM, "depformer_num_layers": 1, "card": 64}
PERSONAPLEX = {**LM, "depformer_num_layers": 2, "card": 2048, "depformer_context": 16}


def lm_arguments(**changed: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = copy.deepcopy(loaders._lm_kwargs)
    return arguments | changed


def mimi_config(bins: int) -> dict[str, Any]:
    config: dict[str, Any] = copy.deepcopy(loaders._mimi_config)
    config["seanet"].update(n_filters=4, dimension=32)
    config["quantizer"].update(dimension=16, bins=bins, input_dimension=32, output_dimension=32)
    config["transformer"].update(
        d_model=32, num_heads=2, num_layers=1, dim_feedforward=64, input_dimension=32, output_dimensions=[32]
    )
    return config


def write_mimi(folder: Path, bins: int, name: str = "mimi.safetensors") -> None:
    """A codec that hears: freshly made, its biases drown the sound, and every frame gets the same codes."""
    config = mimi_config(bins)
    mimi = loaders.get_mimi(None, config, num_codebooks=8)
    with torch.no_grad():
        for part, gain in ((mimi.encoder, 2.0), (mimi.decoder, 1.6)):
            for key, parameter in part.named_parameters():
                parameter.mul_(0.0 if key.endswith("bias") else gain)
        noise = torch.randn(1, 1, 1920 * 40) * torch.rand(40).repeat_interleave(1920) * 0.3
        latent = mimi.encode_to_latent(noise, quantize=False)
        spread = {
            half: float(getattr(mimi.quantizer, half).input_proj(latent).std()) for half in ("rvq_first", "rvq_rest")
        }
    state = mimi.state_dict()
    for key, value in state.items():
        if key.endswith("embedding_sum"):
            half, level = key.split(".")[1], int(key.split(".")[4])
            state[key] = torch.randn(value.shape) * spread[half] * 0.8**level
        elif key.endswith(("cluster_usage", "_initialized")):
            state[key] = torch.ones(value.shape)
    save_file({key: value.contiguous() for key, value in state.items()}, folder / name)
    (folder / "mimi_config.json").write_text(json.dumps(config))


def random_lm(arguments: dict[str, Any], scale: float, padding: float) -> Any:
    """A model whose padding is likelier than a word, and a word than what is in no tokenizer here: it speaks and
    listens by turns."""
    lm = loaders.get_moshi_lm(None, arguments, dtype=torch.float32)
    with torch.no_grad():
        for parameter in lm.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, scale)
        lm.text_linear.weight[3] *= padding
        lm.text_linear.weight[VOCABULARY:] *= 0.1
    return lm


def write_tokenizer(path: Path) -> None:
    lines = [" ".join(WORDS[(n * step) % len(WORDS)] for n in range(1, 9)) for step in range(1, 401)]
    source = path.with_suffix(".txt")
    source.write_text("\n".join(lines))
    sentencepiece.SentencePieceTrainer.train(
        input=str(source),
        model_prefix=str(path.with_suffix("")),
        vocab_size=VOCABULARY,
        pad_id=3,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    source.unlink()


def write_config(folder: Path, arguments: dict[str, Any], **names: str) -> None:
    (folder / "config.json").write_text(json.dumps({**arguments, "mimi_config_name": "mimi_config.json", **names}))


def write_moshi(folder: Path, *, seed: int = 0, padding: float = 8.0) -> Path:
    """As Kyutai's repositories: names in `config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    arguments = lm_arguments(**MOSHI)
    write_mimi(folder, 64)
    save_file(random_lm(arguments, 0.05, padding).state_dict(), folder / "model.safetensors")
    write_tokenizer(folder / "tok.model")
    names = {"moshi_name": "model.safetensors", "mimi_name": "mimi.safetensors", "tokenizer_name": "tok.model"}
    write_config(folder, arguments, model_type="moshi", **names)
    return folder


def write_personaplex(folder: Path, *, seed: int = 0, steps: int = 16, padding: float = 8.0) -> Path:
    """As NVIDIA's repository: 16 (or 8) steps of the depth transformer, projections of all steps in one tensor, the
    published names, and voices."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    arguments = lm_arguments(**PERSONAPLEX, dep_q=16)
    write_mimi(folder, 2048, loaders.MIMI_NAME)
    state = joined(random_lm(arguments, 0.08, padding).state_dict(), 16)
    if steps < 16:
        state = first_steps(state, steps)
    save_file(state, folder / loaders.MOSHI_NAME)
    write_tokenizer(folder / loaders.TEXT_TOKENIZER_NAME)
    write_config(folder, {**arguments, "dep_q": 8, "depformer_context": 8})
    voices = folder / "voices"
    voices.mkdir(exist_ok=True)
    for name in VOICES:
        rows = torch.randn(VOICE_ROWS, 1, 1, arguments["dim"]) * 0.2
        ring = torch.randint(0, 64, (1, 17, 4))
        torch.save({"embeddings": rows, "cache": ring}, voices / f"{name}.pt")
    return folder


def joined(state: dict[str, torch.Tensor], steps: int) -> dict[str, torch.Tensor]:
    """One projection for all steps, as the published file has it."""
    out: dict[str, torch.Tensor] = {}
    for key, value in state.items():
        for part, whole in (("in_projs.", "in_proj_weight"), ("out_projs.", "out_proj.weight")):
            if ".self_attn." in key and f".{part}" in key:
                if key.endswith(f".{part}0.weight"):
                    base = key[: key.index(part)]
                    count = steps if key.startswith("depformer.") else 1
                    out[base + whole] = torch.cat([state[f"{base}{part}{n}.weight"] for n in range(count)])
                break
        else:
            out[key] = value
    return out


def first_steps(state: dict[str, torch.Tensor], steps: int) -> dict[str, torch.Tensor]:
    """The file that a distribution without the user's heads would be."""
    out = {}
    for key, value in state.items():
        parts = key.split(".")
        index = next((int(part) for part in parts if part.isdigit() and "layers" not in parts[:1]), 0)
        if parts[0] in ("depformer_in", "linears") and index >= steps:
            continue
        if parts[0] == "depformer_emb" and index >= steps - 1:
            continue
        if key.startswith("depformer.layers.") and "gating" in parts and int(parts[4]) >= steps:
            continue
        if key.startswith("depformer.layers.") and key.endswith(("in_proj_weight", "out_proj.weight")):
            value = value[: value.shape[0] * steps // 16].clone()
        out[key] = value
    return out


def pipeline_toml(folder: Path, name: str, *, slots: int = 4, extra: str = "") -> Path:
    """A pipeline file that serves the folder here."""
    source = Path(__file__).parents[3] / "models" / "duologue" / "models" / name / f"{name}.toml"
    head = source.read_text().split("[options]")[0].replace("max_sessions = 8", f"max_sessions = {slots}")
    plugin_options = f"""[options]
checkpoint = "{folder}"
device = "cpu"
dtype = "float32"
threads = 1
{extra}
[options.talking]
loudness = 9.0
pause_ms = 240
hush_ms = 800
"""
    stage = "[[stages]]" + source.read_text().split("[[stages]]")[1].split("#")[0]
    stage = stage.replace("slots = 8", f"slots = {slots}").replace("max_batch = 8", f"max_batch = {slots}")
    path = folder / f"{name}.toml"
    path.write_text(f'{head}{plugin_options}\n{stage.rstrip()}\nenvironment = {{ NO_TORCH_COMPILE = "1" }}\n')
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a tiny random checkpoint and its pipeline file.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--personaplex", action="store_true")
    parser.add_argument("--slots", type=int, default=4)
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    if arguments.personaplex:
        print(pipeline_toml(write_personaplex(folder), "personaplex", slots=arguments.slots, extra=VOICED))
    else:
        print(pipeline_toml(write_moshi(folder), "moshi", slots=arguments.slots))


if __name__ == "__main__":
    main()
