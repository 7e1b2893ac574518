"""Moshi's batch where there is a GPU: CUDA graphs change nothing, and the measurement runs. Tiny on a CPU too.

.envs/moshi/bin/python -m pytest -q tests/gpu
"""

from __future__ import annotations

from types import ModuleType

import pytest
from gpu.conftest import load_bench

pytest.importorskip("moshi", reason="the environment of the model is not here: `make env NAME=moshi`")

import numpy as np
import torch

from duologue.models.moshi.batch import Frame, FrameBatch
from duologue.models.moshi.options import FRAME, Sampling

pytestmark = [pytest.mark.models, pytest.mark.timeout(600)]
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")),
]


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load_bench("moshi_ticks")


@pytest.mark.parametrize("device", DEVICES)
def test_the_measurement_runs_at_tiny_size(bench: ModuleType, device: str) -> None:
    rows = bench.main(
        ["--geometry", "tiny", "--device", device, "--batches", "1,3", "--ticks", "4", "--bandwidth", "10"]
    )
    assert [row.slots for row in rows] == [1, 3]
    for row in rows:
        assert 0 < row.median_ms <= row.slowest_ms and row.slot_mib > 0.5 and row.gib_per_s > 0
        assert row.share == pytest.approx(row.gib_per_s / 10, abs=0.01)


@pytest.mark.parametrize("device", DEVICES)
def test_sessions_that_pause_and_draw_equal_solo_runs(bench: ModuleType, device: str) -> None:
    """Through the graphs: masks, forced tokens and noise are read anew in every replay."""
    batch = FrameBatch(bench.random_model("tiny", torch.device(device), torch.float32), 3, Sampling())
    batch.warm_up()
    sounds = [np.random.default_rng(n).standard_normal((12, FRAME)).astype(np.float32) * 0.1 for n in range(3)]

    def begin(slot: int, session: int) -> None:
        batch.reset(slot)
        batch.sampler.begin(slot, Sampling(temperature_audio=0.0) if session == 1 else Sampling(), session)

    together: list[list[Frame]] = [[], [], []]
    for n in range(3):
        begin(n, n)
    for tick in range(36):
        due = [n for n in range(3) if len(together[n]) < 12 and (tick + n) % (n + 1) == 0]
        for n, frame in batch.tick({n: sounds[n][len(together[n])] for n in due}, {}).items():
            together[n].append(frame)
    for n in range(3):
        begin(2 - n, n)
        alone = [batch.tick({2 - n: frame}, {})[2 - n] for frame in sounds[n]]
        assert [(f.text, f.codes.tolist()) for f in alone] == [(f.text, f.codes.tolist()) for f in together[n]]
    batch.release()
