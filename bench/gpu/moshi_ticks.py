"""What a tick of Moshi costs against the size of its batch: random weights in the real geometry, no files.

    PYTHON=.envs/moshi/bin/python
    $PYTHON bench/gpu/moshi_ticks.py --device cuda --dtype bfloat16 --batches 1,4,8,16,32 --bandwidth 4800
    $PYTHON bench/gpu/moshi_ticks.py --geometry tiny --batches 1,4      # the same on a CPU, to try the script

A tick is what the engine does for one frame of every session: encode, step, decode, copies both ways. `real time`: the
slowest of a hundred ticks took less than 80 ms. `bandwidth`: bytes that a tick must read (weights once, the keys and
values of every slot) over its median time, and its share of what the memory can do (`--bandwidth`, GB/s).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

if not any(argument.startswith("cuda") for argument in sys.argv):
    os.environ.setdefault("NO_TORCH_COMPILE", "1")  # the package reads it when it is imported

import numpy as np
import torch
from moshi.models import loaders

from duologue.models.moshi.batch import FrameBatch
from duologue.models.moshi.checkpoint import Checkpoint
from duologue.models.moshi.options import FRAME, UNIT_MS, Sampling

TINY_LM = {
    "dim": 128,
    "text_card": 512,
    "num_heads": 4,
    "num_layers": 2,
    "context": 300,
    "depformer_dim": 64,
    "depformer_dim_feedforward": 128,
    "depformer_num_heads": 2,
    "depformer_num_layers": 1,
    "hidden_scale": 2.0,
}
TINY_CODEC: dict[str, dict[str, Any]] = {
    "seanet": {"n_filters": 4, "dimension": 32},
    "quantizer": {"dimension": 16, "input_dimension": 32, "output_dimension": 32},
    "transformer": {
        "d_model": 32,
        "num_heads": 2,
        "num_layers": 1,
        "dim_feedforward": 64,
        "input_dimension": 32,
        "output_dimensions": [32],
    },
}


@dataclass(frozen=True)
class Row:
    """One size of batch. Times in ms, memory in MiB."""

    slots: int
    median_ms: float
    slowest_ms: float
    real_time: bool
    slot_mib: float
    gib_per_s: float
    share: float | None


def random_model(geometry: str, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    """Moshi 7B and Mimi as the package makes them, or both tiny."""
    torch.manual_seed(0)
    tiny = geometry == "tiny"
    arguments = {**loaders._lm_kwargs, **(TINY_LM if tiny else {})}
    codec = {key: {**value, **TINY_CODEC[key]} if key in TINY_CODEC else value for key, value in _codec().items()}
    lm = loaders.get_moshi_lm(None, arguments, device=device, dtype=dtype)
    mimi = loaders.get_mimi(None, codec if tiny else None, device=device, num_codebooks=8)
    return Checkpoint(lm, mimi, None, device)


def _codec() -> dict[str, Any]:
    return dict(loaders._mimi_config)


def measure(model: Checkpoint, slots: int, ticks: int, bandwidth: float) -> Row:
    batch = FrameBatch(model, slots, Sampling())
    try:
        batch.warm_up()
        for slot in range(slots):
            batch.sampler.begin(slot, Sampling(), slot)
        noise = np.random.default_rng(0)
        times = []
        for _ in range(ticks):
            heard = {slot: (noise.standard_normal(FRAME) * 0.1).astype(np.float32) for slot in range(slots)}
            started = time.perf_counter()
            batch.tick(heard, {})
            times.append((time.perf_counter() - started) * 1000)
        median = float(np.median(times))
        slot_bytes = batch.slot_bytes()
        read = (_weight_bytes(model.lm) + _weight_bytes(model.mimi) + slots * slot_bytes) / (median / 1000) / 1e9
        return Row(
            slots,
            round(median, 2),
            round(max(times), 2),
            max(times) < UNIT_MS,
            round(slot_bytes / 2**20, 1),
            round(read, 1),
            round(read / bandwidth, 3) if bandwidth else None,
        )
    finally:
        batch.release()
        del batch
        gc.collect()
        if model.device.type == "cuda":
            torch.cuda.empty_cache()


def _weight_bytes(module: Any) -> int:
    """Embeddings are looked up, not read through."""
    tables = {id(p) for part in module.modules() if isinstance(part, torch.nn.Embedding) for p in part.parameters()}
    return sum(p.numel() * p.element_size() for p in module.parameters() if id(p) not in tables)


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description="Ticks of Moshi against the size of the batch.")
    parser.add_argument("--geometry", choices=("7b", "tiny"), default="7b")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batches", default="1,2,4,8,16,32,48,64")
    parser.add_argument("--ticks", type=int, default=100)
    parser.add_argument("--bandwidth", type=float, default=0.0, help="of the memory, GB/s; 0: no share is told")
    parser.add_argument("--threads", type=int, default=1, help="of a CPU")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    model = random_model(options.geometry, torch.device(options.device), getattr(torch, options.dtype))
    rows = []
    for slots in map(int, options.batches.split(",")):
        try:
            rows.append(measure(model, slots, options.ticks, options.bandwidth))
        except torch.OutOfMemoryError:
            print(f"{slots} slots do not fit")
            break
        print(json.dumps(asdict(rows[-1])), flush=True)
    return rows


if __name__ == "__main__":
    main()
