"""Loads MiniCPM-o as its repository says: the model with the Python code beside its weights. Needs torch, transformers.

Rule 1. That code is run by the worker. Where it comes from is the operator's word (`checkpoint`, `revision`), never a
        client's; a repository of the hub is fetched whole first, and loaded from the folder that it is in then.
Rule 2. Two forms of the code are known: `init_unified`, which makes `model.duplex`, and `as_duplex`, which returns one.
Rule 3. The vocoder is loaded once, whatever the code does for each session.
Rule 4. The code prints and logs what is said, word by word: a worker does not.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch

from duologue.model.pipeline import PipelineError, resolve
from duologue.models.minicpmo_4_5.options import MiniCPMOOptions

TOKENS: Final = (
    *("<unit>", "</unit>", "<|listen|>", "<|speak|>", "<|tts_bos|>", "<|tts_pad|>", "<|chunk_eos|>"),
    *("<|chunk_tts_eos|>", "<|turn_eos|>", "<|audio_start|>", "<|audio_end|>", "<|im_start|>", "<|im_end|>"),
)
"""What the protocol of units is made of. Their numbers are the tokenizer's."""
_VOCODER: Final = ("stepaudio2", "onnxruntime", "onnx", "torchaudio", "hyperpyyaml")
"""What the model's own vocoder imports. Only minicpmo-utils is in the locked environment."""
_REMOTE: Final = "transformers_modules"
"""The package that transformers puts the code of a checkpoint into."""


class NoVocoder:
    """In the place of a vocoder where answers are text: nothing asks it for sound."""

    class flow:
        pre_lookahead_len = 3

    def set_stream_cache(self, prompt_wav: str) -> tuple[dict[str, Any], dict[str, Any]]:
        raise RuntimeError('the pipeline says vocoder = "none"')

    def stream(self, *arguments: Any, **named: Any) -> bytes:
        raise RuntimeError('the pipeline says vocoder = "none"')


@dataclass
class Checkpoint:
    """Loaded, on its device. `make_duplex` makes one more object that holds a session's state."""

    model: Any
    device: torch.device
    make_duplex: Callable[[], Any]
    make_processor: Callable[[], Any]
    tokenizer: Any

    @property
    def vocoder(self) -> Any:
        tts = getattr(self.model, "tts", None)
        return getattr(tts, "audio_tokenizer", None)


def pretrained(options: MiniCPMOOptions, folder: Path) -> Any:
    """The model with the weights of the folder, on the CPU."""
    from transformers import AutoModel  # takes seconds: not before it is needed

    return AutoModel.from_pretrained(
        str(folder),
        trust_remote_code=True,
        attn_implementation=options.attention,
        torch_dtype=getattr(torch, options.dtype),
        init_vision=options.vision,
        init_audio=True,
        init_tts=True,  # the code reaches for it when it changes its mode, also where answers are text
    )


def load(options: MiniCPMOOptions, make_model: Callable[[MiniCPMOOptions, Path], Any] = pretrained) -> Checkpoint:
    """`make_model`: where the weights come from. Raises PipelineError, or what the remote code raises."""
    if options.vocoder == "token2wav" and (lacks := [name for name in _VOCODER if find_spec(name) is None]):
        raise PipelineError(
            f"vocoder token2wav needs {', '.join(lacks)}, in versions that fit this torch ({torch.__version__}); "
            "docs/minicpmo.md tells how they get into its environment"
        )
    if options.threads:
        torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise PipelineError(f"device {options.device}: this torch ({torch.__version__}) sees no GPU")
        device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        torch.cuda.set_device(device)  # the vocoder takes the current one
    model = make_model(options, _folder(options)).eval().to(device)
    _hush()
    config = _duplex_config(options)
    if hasattr(model, "as_duplex"):
        return _separate(model, options, device, config)
    if hasattr(model, "init_unified"):
        return _unified(model, options, device, config)
    raise PipelineError(f"checkpoint {options.checkpoint}: {type(model).__name__} has no duplex mode")


def accepted(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments that the function takes by name."""
    parameters = inspect.signature(function).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return dict(arguments)
    return {name: value for name, value in arguments.items() if name in parameters}


def _folder(options: MiniCPMOOptions) -> Path:
    folder = Path(options.checkpoint).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise PipelineError(f"checkpoint {options.checkpoint}: config.json is missing")
        return folder.resolve()
    if folder.is_absolute() or options.checkpoint.count("/") != 1:
        raise PipelineError(f"checkpoint {options.checkpoint}: no such folder, and no name of a repository")
    from huggingface_hub import snapshot_download  # only who names a repository needs the hub

    return Path(snapshot_download(options.checkpoint, revision=options.revision or None))


def _hush() -> None:
    """Take `print` from the modules of remote code, and what they log below warnings."""
    logging.getLogger(_REMOTE).setLevel(logging.WARNING)
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{_REMOTE}."):
            vars(module)["print"] = lambda *arguments, **named: None


def _duplex_config(options: MiniCPMOOptions) -> dict[str, Any]:
    """What does not differ between sessions; what does is set when one opens."""
    return {
        "generate_audio": options.speaks,
        "ls_mode": "explicit",
        "force_listen_count": 0,  # the session half counts
        "max_new_speak_tokens_per_chunk": options.max_speak_tokens,
    }


def _unified(model: Any, options: MiniCPMOOptions, device: torch.device, config: dict[str, Any]) -> Checkpoint:
    own = options.vocoder == "token2wav"
    if not own:
        model._tts_streaming = _other_vocoder(model, options)
    init = {"preload_both_tts": own, "duplex_config": config, "device": str(device)}
    model.init_unified(**accepted(model.init_unified, init))
    first = model.duplex
    kept = {**getattr(model, "_duplex_config", {}), **config}

    def make() -> Any:
        return type(first)(model=model, device=str(device), **kept)

    return _checked(model, options, device, make, first)


def _separate(model: Any, options: MiniCPMOOptions, device: torch.device, config: dict[str, Any]) -> Checkpoint:
    if options.vocoder != "token2wav":
        _keep_vocoder(model, _other_vocoder(model, options))
    given = accepted(model.as_duplex, {"device": str(device), **config})
    first = model.as_duplex(**given)
    if options.vocoder == "token2wav":
        _keep_vocoder(model, model.tts.audio_tokenizer)
    return _checked(model, options, device, lambda: model.as_duplex(**given), first)


def _other_vocoder(model: Any, options: MiniCPMOOptions) -> Any:
    vocoder = NoVocoder() if options.vocoder == "none" else resolve(options.vocoder)(options.device)
    if getattr(model, "tts", None) is not None:
        model.tts.audio_tokenizer = vocoder
    return vocoder


def _keep_vocoder(model: Any, vocoder: Any) -> None:
    """The code loads a vocoder again for each duplex object: let it find the one that is there."""
    for name in ("init_tts", "init_token2wav"):
        if hasattr(model, name):
            setattr(model, name, lambda *arguments, **named: vocoder)


def _checked(
    model: Any, options: MiniCPMOOptions, device: torch.device, make: Callable[[], Any], first: Any
) -> Checkpoint:
    processor = getattr(model, "processor", None) or first.processor
    tokenizer = processor.tokenizer
    unknown = getattr(tokenizer, "unk_token_id", None)
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in TOKENS}
    if missing := [name for name, number in ids.items() if number is None or number == unknown]:
        raise PipelineError(f"checkpoint {options.checkpoint}: its tokenizer knows no {', '.join(missing)}")
    for name in ("prepare", "streaming_prefill", "streaming_generate"):
        if not hasattr(first, name):
            raise PipelineError(f"checkpoint {options.checkpoint}: {type(first).__name__} has no {name}")
    kind, path = type(processor), str(model.config._name_or_path)

    def another() -> Any:
        return kind.from_pretrained(path, trust_remote_code=True)

    return Checkpoint(model, device, make, another, tokenizer)
