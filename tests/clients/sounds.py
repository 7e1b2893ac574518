"""What people say to the clients: made once with the packaged voice, kept as bare PCM16 at 24 kHz."""

from __future__ import annotations

import numpy as np
from clients.environments import BUILT

from duologue.models.cascade.settings import RATE_HZ

RATE_24_KHZ = 24_000
SAID = {
    "question": "What is the capital of France?",
    "story": "Please tell me a long story about a lighthouse keeper.",
    "interruption": "And what is the capital of Japan?",
    "weather": "What is the weather in Paris today?",
}
FOLDER = BUILT / "sounds"


def make() -> None:
    """The files of SAID, as `NAME.pcm`; what is there already stays."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    missing = {name: text for name, text in SAID.items() if not (FOLDER / f"{name}.pcm").exists()}
    if not missing:
        return
    import soxr

    from duologue.models.cascade.voices import say

    for name, text in missing.items():
        sound = soxr.resample(say(text), RATE_HZ, RATE_24_KHZ)
        (FOLDER / f"{name}.pcm").write_bytes((np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes())
