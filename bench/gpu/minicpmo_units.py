"""What a unit of MiniCPM-o costs against how many sessions share the weights. Real code, any weights.

    PYTHON=.envs/minicpmo/bin/python
    $PYTHON bench/gpu/minicpmo_units.py --checkpoint FOLDER --random --device cuda --dtype bfloat16 --bandwidth 4800
    $PYTHON tests/models/minicpmo_4_5/tiny.py TINY && $PYTHON bench/gpu/minicpmo_units.py --checkpoint TINY

FOLDER has the files of the published repository; with `--random` its weights are not read, and need not be there: the
model is made by its code in the geometry of `config.json`. Sessions are computed one after another, through the seats
that the engine uses, so `real time` says that a second of all of them took less than a second. A session listens to a
unit and is made to speak in the next one; answers are text, since the model's vocoder needs files of its own.
`bandwidth`: bytes of the language model that were read (its weights, once for every forward pass) over the time of the
units, and its share of what the memory can do (`--bandwidth`, GB/s).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from duologue.models.minicpmo_4_5.checkpoint import Checkpoint, load, pretrained
from duologue.models.minicpmo_4_5.options import UNIT_MS, UNIT_SAMPLES, MiniCPMOOptions, Sampling, Window
from duologue.models.minicpmo_4_5.seat import Floats, Heard, Seat

SPEAK = "<|speak|>"
DECIDES = 1e4
"""Added to a logit: random weights never choose to speak by themselves."""


@dataclass(frozen=True)
class Row:
    """So many sessions, turn by turn. Times of one unit of one session in ms, memory of one session in MiB."""

    sessions: int
    listening_ms: float
    speaking_ms: float
    slowest_second_ms: float
    real_time: bool
    spoken_tokens: float
    session_mib: float
    gb_per_s: float
    share: float | None


class Pushed(Seat):
    """A seat whose model speaks when it is told to."""

    speak: int | None = None

    def _prefill(self, sound: Floats, images: Sequence[Any]) -> dict[str, Any]:
        taken = super()._prefill(sound, images)
        if self.speak is not None and (logits := self._duplex.pending_logits) is not None:
            logits[..., self.speak] += DECIDES
        return taken


class Passes:
    """Counts the forward passes of the language model."""

    def __init__(self, model: Any) -> None:
        self.count = 0
        self.bytes = sum(p.numel() * p.element_size() for p in model.llm.parameters())
        model.llm.model.register_forward_pre_hook(self._count)

    def _count(self, *passed: Any) -> None:
        self.count += 1


def random_weights(options: MiniCPMOOptions, folder: Path) -> Any:
    """The model as its code makes it before any weights are read, made where it will be."""
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    config.init_vision, config.init_audio, config.init_tts = options.vision, True, True
    with torch.device(options.device):
        model = AutoModel.from_config(
            config,
            trust_remote_code=True,
            attn_implementation=options.attention,
            torch_dtype=getattr(torch, options.dtype),
        )
    model.config._name_or_path = str(folder)
    return model


def measure(loaded: Checkpoint, passes: Passes, sessions: int, seconds: int, bandwidth: float) -> Row:
    seats = [Pushed(loaded) for _ in range(sessions)]
    speak = loaded.tokenizer.convert_tokens_to_ids(SPEAK)
    noise = np.random.default_rng(0)
    for number, seat in enumerate(seats):
        with seat.seated():
            seat.prepare("Answer.", Window(), None, None, number, False)
    _second(seats, noise, None)  # caches are made, kernels are chosen
    passes.count = 0
    listening: list[float] = []
    speaking: list[float] = []
    whole: list[float] = []
    tokens = 0
    for second in range(seconds):
        told = _second(seats, noise, speak if second % 2 else None)
        (speaking if second % 2 else listening).extend(ms for ms, _ in told)
        whole.append(sum(ms for ms, _ in told))
        tokens += sum(heard.text_tokens for _, heard in told)
    weighs = max(seat.state_bytes for seat in seats)
    for seat in seats:
        seat.clear()
    rate = passes.count * passes.bytes / (sum(whole) / 1000) / 1e9
    return Row(
        sessions,
        round(float(np.median(listening)), 2),
        round(float(np.median(speaking)), 2),
        round(max(whole), 2),
        max(whole) < UNIT_MS,
        round(tokens / len(speaking), 1),
        round(weighs / 2**20, 2),
        round(rate, 2),
        round(rate / bandwidth, 3) if bandwidth else None,
    )


def _second(seats: Sequence[Pushed], noise: np.random.Generator, speak: int | None) -> list[tuple[float, Heard]]:
    """A unit of every session, with its time in ms: the swap, the unit, and its end."""
    told = []
    for seat in seats:
        seat.speak = speak
        sound = (noise.standard_normal(UNIT_SAMPLES) * 0.1).astype(np.float32)
        started = time.perf_counter()
        with seat.seated():
            heard = seat.hear(sound, (), Sampling(), listen=speak is None)
            seat.finish()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        told.append(((time.perf_counter() - started) * 1000, heard))
    return told


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description="Units of MiniCPM-o against the number of sessions.")
    parser.add_argument("--checkpoint", required=True, help="a folder with config.json, the code and the tokenizer")
    parser.add_argument("--random", action="store_true", help="do not read weights")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--sessions", default="1,2,4,8")
    parser.add_argument("--seconds", type=int, default=20, help="units of each session")
    parser.add_argument("--bandwidth", type=float, default=0.0, help="of the memory, GB/s; 0: no share is told")
    parser.add_argument("--threads", type=int, default=1, help="of a CPU")
    given = parser.parse_args(arguments)
    options = MiniCPMOOptions(
        checkpoint=given.checkpoint, device=given.device, dtype=given.dtype, threads=given.threads, vocoder="none"
    )
    loaded = load(options, random_weights if given.random else pretrained)
    passes = Passes(loaded.model)
    rows = []
    for sessions in map(int, given.sessions.split(",")):
        rows.append(measure(loaded, passes, sessions, given.seconds, given.bandwidth))
        print(json.dumps(asdict(rows[-1])), flush=True)
    return rows


if __name__ == "__main__":
    main()
