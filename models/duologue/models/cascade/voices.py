"""Speech for demonstrations and tests, made when it is needed: nothing recorded is shipped.

Renderings of one sentence differ in pace, pitch, level and the silence around them, so that nobody's ears are
tested with a single voice. Needs the model packages of the extra `cascade`.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import wave
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from duologue.models.cascade.parts import VOICE, locate, need_runtime
from duologue.models.cascade.settings import RATE_HZ, VOICE_RATE_HZ

Floats = npt.NDArray[np.float32]

QUESTION = "What is the capital of France?"
LONG_QUESTION = "Please tell me a long story about a lighthouse keeper."
BACK_CHANNELS = ("Mm-hm.", "Right.", "Okay.")
INTERRUPTION = "Stop, wait."


class Rendering(msgspec.Struct, frozen=True):
    """`pitch` over 1 is higher (and quicker); `gain` is a factor of the level."""

    name: str
    speed: float = 1.0
    pitch: float = 1.0
    gain: float = 1.0
    program: str = ""
    """A speech program of this machine instead of the packaged voice."""


RENDERINGS = (
    Rendering("plain"),
    Rendering("quick and high", speed=1.2, pitch=1.12, gain=0.5),
    Rendering("slow and low", speed=0.85, pitch=0.9, gain=0.8),
)
_PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "flite": ("flite", "-voice", "slt", "-o", "{wav}", "-t", "{text}"),
    "espeak-ng": ("espeak-ng", "-v", "en-us", "-w", "{wav}", "{text}"),
}


def renderings() -> tuple[Rendering, ...]:
    """Those of the packaged voice, and one for each other speech program that this machine has."""
    others = (Rendering(name, program=name) for name in _PROGRAMS if shutil.which(name))
    return (*RENDERINGS, *others)


def say(text: str, rendering: Rendering = RENDERINGS[0]) -> Floats:
    """Mono float32 at 16 kHz; the same each time. Raises PipelineError if the voice is not installed."""
    import soxr

    if rendering.program:
        sound, rate = _by_program(rendering.program, text)
    else:
        sound, rate = _packaged()(text, speed=rendering.speed, seed=1), VOICE_RATE_HZ
    resampled = soxr.resample(np.asarray(sound, np.float32), rate, RATE_HZ / rendering.pitch)
    return np.asarray(resampled * rendering.gain, np.float32)


def silence(ms: int) -> Floats:
    return np.zeros(RATE_HZ * ms // 1000, np.float32)


def write_wav(path: Path, sound: Floats, rate_hz: int = RATE_HZ) -> None:
    """16-bit mono."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes((np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes())


@lru_cache(maxsize=1)
def _packaged() -> Any:
    need_runtime("numpy", "soxr", "hibari", "onnxruntime")
    model = locate(VOICE, "")
    from hibari import Hibari

    return Hibari(voice="heart", model=str(model), threads=1)


def _by_program(name: str, text: str) -> tuple[Floats, int]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "speech.wav"
        command = [part.format(wav=path, text=text) for part in _PROGRAMS[name]]
        subprocess.run(command, check=True, capture_output=True, timeout=30)
        with wave.open(str(path), "rb") as file:
            sound = np.frombuffer(file.readframes(file.getnframes()), "<i2")
            return np.asarray(sound / 32768, np.float32), file.getframerate()
