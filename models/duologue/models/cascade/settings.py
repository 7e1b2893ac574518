"""The options of a cascade pipeline, typed: what `[options]` and its tables may say, with the defaults.

Used by both halves; imports no engine library. A wrong key or value is a PipelineError that names it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from duologue.model.pipeline import PipelineError, PipelineSpec
from duologue.models.vllm_stream.options import EngineOptions

RATE_HZ = 16_000
VOICE_RATE_HZ = 24_000

PERSONA = "You are a helpful voice assistant. Answer in plain English, in one or two short sentences."
"""Chosen by trial for the small model in the package: it answers better to few words."""

LOCAL_CONTEXT, REMOTE_CONTEXT, VLLM_CONTEXT = 1024, 16_384, 4096

_Ms = Annotated[int, msgspec.Meta(ge=0, le=120_000)]
_PositiveMs = Annotated[int, msgspec.Meta(ge=1, le=120_000)]
_Probability = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
_Count = Annotated[int, msgspec.Meta(ge=1)]


class Perception(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model_path: str = ""
    """Another silero_vad.onnx; empty: the one of the package."""
    end_of_turn_path: str = ""
    """Another smart-turn onnx file."""
    threshold: _Probability = 0.5
    release: _Probability = 0.35
    min_speech_ms: _PositiveMs = 96
    pause_ms: _PositiveMs = 128
    """Silence after speech that counts as a pause: the recogniser and the end-of-turn model are asked."""


class Turns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    complete_ms: _PositiveMs = 320
    """Silence that ends a turn when both the end-of-turn model and the words say that it is finished."""
    unsure_ms: _PositiveMs = 560
    """The same when they disagree or do not know."""
    hard_ms: _PositiveMs = 1000
    """Silence that ends any turn."""
    early_ms: _PositiveMs = 400
    """Speech over an answer is looked at first when it is so long."""
    sustained_ms: _PositiveMs = 700
    """Speech over an answer that is so long and no back-channel interrupts."""
    limit_ms: _PositiveMs = 1600
    """Speech over an answer that is so long interrupts when the recogniser did not get to it."""
    pre_roll_ms: _Ms = 320
    max_utterance_ms: _PositiveMs = 120_000


class Recognition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model_path: str = ""
    """A CTranslate2 Whisper folder (model.bin, config.json, tokenizer.json, vocabulary.txt)."""
    threads: _Count = 1
    partial_ms: _Ms = 800
    """How often running speech is recognised; 0: only at pauses and over an answer."""
    min_confidence: float = -1.6
    """Mean log probability of a token under which words are not believed."""
    max_no_speech: _Probability = 0.8


class Thinker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    engine: Literal["", "vllm"] = ""
    """vllm: a model in vLLM, the conversation of a session kept in its cache; empty: the URL's, or llama.cpp's."""
    url: str = ""
    """Base of an OpenAI-compatible API (".../v1"); empty: SmolLM2 in this process."""
    model: str = ""
    """The model's name at that URL."""
    api_key_env: str = ""
    """The environment variable that holds the key for that URL."""
    timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 20.0
    """How long the URL may send nothing."""
    model_path: str = ""
    """Another GGUF file with a chat template. For vLLM: a folder, or an id of the hub."""
    threads: _Count = 1
    parallel: _Count = 8
    """Answers thought at once by the local model; each keeps its own prompt cache."""
    context_tokens: Annotated[int, msgspec.Meta(ge=256)] | None = None
    """For each answer, prompt and answer together; without it 1024 here, 4096 in vLLM and 16384 at a URL."""
    max_tokens: _Count = 110
    """Of the words of an answer."""
    call_tokens: Annotated[int, msgspec.Meta(ge=0)] = 512
    """How many more an answer may have that calls functions."""
    tools: bool = True
    """The model at the URL calls functions."""
    vision: bool = False
    """The model at the URL sees images."""
    usage: bool = True
    """The server at the URL knows `stream_options`, and counts tokens."""
    max_sentences: _Count = 3
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] = 0.0
    instructions: str = PERSONA
    vllm: EngineOptions = EngineOptions()
    """How vLLM is run."""
    template: dict[str, Any] = {}
    """More arguments of the chat template, for vLLM: `enable_thinking = false`."""

    @property
    def context(self) -> int:
        usual = VLLM_CONTEXT if self.engine else REMOTE_CONTEXT if self.url else LOCAL_CONTEXT
        return self.context_tokens or usual

    @property
    def calls(self) -> bool:
        """It can call functions: the model in this process is too small for that."""
        return bool(self.url) and self.tools

    @property
    def sees(self) -> bool:
        return bool(self.url) and self.vision


class Speech(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model_path: str = ""
    """Another onnx file for the same synthesiser."""
    speed: Annotated[float, msgspec.Meta(ge=0.5, le=2)] = 1.0
    threads: _Count = 1
    chunk_ms: Annotated[int, msgspec.Meta(ge=40, le=1000)] = 320


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    unit_ms: Annotated[int, msgspec.Meta(ge=20, le=1000)] = 160
    perception: Perception = Perception()
    turns: Turns = Turns()
    recognition: Recognition = Recognition()
    thinker: Thinker = Thinker()
    speech: Speech = Speech()


def settings_of(pipeline: PipelineSpec) -> Settings:
    """Raises PipelineError."""
    options: dict[str, Any] = pipeline.options
    try:
        settings = msgspec.convert(options, Settings)
    except msgspec.ValidationError as error:
        raise PipelineError(f"{pipeline.name}: options: {error}") from None
    thinker = settings.thinker
    if thinker.url and not thinker.url.startswith(("http://", "https://")):
        raise PipelineError(f"{pipeline.name}: options.thinker.url: {thinker.url!r} is no http(s) URL")
    if thinker.url and not thinker.model:
        raise PipelineError(f"{pipeline.name}: options.thinker.model: name the model at {thinker.url}")
    if thinker.engine and (thinker.url or not thinker.model_path):
        raise PipelineError(
            f"{pipeline.name}: options.thinker.engine: vLLM needs model_path, a folder or an id of the hub, and no url"
        )
    if thinker.vision and not thinker.url:
        raise PipelineError(f"{pipeline.name}: options.thinker.vision: the model in this process sees no images")
    if settings.turns.hard_ms < settings.turns.complete_ms:
        raise PipelineError(f"{pipeline.name}: options.turns.hard_ms is less than complete_ms")
    return settings
