"""A tiny random checkpoint with remote code in its folder, seeded, for tests and for `make models`.

    python tests/models/minicpmo_4_5/tiny.py FOLDER [--slots 4] [--vision]

writes the folder, and beside the files a `minicpmo_4_5.toml` that serves it on the CPU, with a tone for a vocoder. The
code in the folder is a stand-in for the published one (`remote_code.py`).
"""

from __future__ import annotations

import argparse
import json
import shutil
import string
import sys
import wave
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
SPECIAL = (
    *("<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unit>", "</unit>", "<image>", "</image>"),
    *("<|audio_start|>", "<|audio_end|>", "<|tts_bos|>", "<|tts_eos|>", "<|listen|>", "<|speak|>", "<|interrupt|>"),
    *("<|turn_eos|>", "<|chunk_eos|>", "<|chunk_tts_eos|>", "<|tts_pad|>"),
)


def write_tokenizer(folder: Path) -> int:
    """A letter is a token; returns how many there are."""
    letters = [letter for letter in string.printable if letter.isprintable()] + ["\n"]
    vocabulary = {name: number for number, name in enumerate((*SPECIAL, *letters))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=[name for name in SPECIAL[1:] if name not in ("<|im_end|>", "<|endoftext|>")],
    )
    fast.save_pretrained(folder)
    return len(vocabulary)


def write_checkpoint(folder: Path, *, seed: int = 0, vision: bool = False, separate: bool = False) -> Path:
    """`separate`: the code has the form of `as_duplex`."""
    folder.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(HERE))
    try:
        remote_code = import_module("remote_code")  # the name of its file in the folder
    finally:
        sys.path.remove(str(HERE))

    torch.manual_seed(seed)
    remote_code.register()
    model = remote_code.StandIn(remote_code.StandInConfig(vocab_size=write_tokenizer(folder), init_vision=vision))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3 if "embed" in name or "lm_head" in name else 0.12)
    model.save_pretrained(folder)
    shutil.copy(HERE / "remote_code.py", folder / "remote_code.py")
    shutil.copy(HERE / "tone.py", folder / "tone_vocoder.py")
    config = json.loads((folder / "config.json").read_text())
    kind = "SeparateStandIn" if separate else "StandIn"
    config["auto_map"] = {"AutoConfig": "remote_code.StandInConfig", "AutoModel": f"remote_code.{kind}"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_voice(path: Path, hz: float = 180.0, seconds: float = 1.2) -> Path:
    t = np.arange(int(16000 * seconds)) / 16000
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes((np.sin(2 * np.pi * hz * t) * 9000).astype("<i2").tobytes())
    return path


def pipeline_toml(folder: Path, *, slots: int = 4, vision: bool = False, extra: str = "") -> Path:
    """A pipeline file that serves the folder here."""
    voice = write_voice(folder / "voice.wav")
    path = folder / "minicpmo_4_5.toml"
    path.write_text(
        f"""name = "minicpmo_4_5"
plugin = "duologue.models.minicpmo_4_5.plugin:MiniCPMO"
max_sessions = {slots}
rebuild = "input"

[options]
checkpoint = "{folder}"
device = "cpu"
dtype = "float32"
threads = 1
vision = {str(vision).lower()}
vocoder = "tone_vocoder:Tone"
ref_audio = "{voice}"
context_tokens = 1024
force_listen_count = 1
{extra}
[[stages]]
name = "units"
engine = "duologue.models.minicpmo_4_5.engine:build"
worker = "minicpmo"
venv = "minicpmo"
requires = ["transformers==4.51.0", "minicpmo-utils==1.0.7"]
slots = {slots}
max_batch = 1
environment = {{ HF_HOME = "{folder / "hub"}", HF_HUB_OFFLINE = "1" }}
"""
    )
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a tiny random checkpoint and its pipeline file.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--vision", action="store_true")
    arguments = parser.parse_args()
    folder = write_checkpoint(arguments.folder.resolve(), vision=arguments.vision)
    print(pipeline_toml(folder, slots=arguments.slots, vision=arguments.vision))


if __name__ == "__main__":
    main()
