"""The measurement of MiniCPM-o runs, with the weights of a folder and without them. Tiny on a CPU too.

.envs/minicpmo/bin/python -m pytest -q tests/gpu/test_minicpmo.py
"""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import pytest
from gpu.conftest import load_bench

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="its environment is not here: `make env NAME=minicpmo`")
if transformers.__version__ != "4.51.0":
    pytest.skip(f"transformers {transformers.__version__} is not that of `minicpmo`", allow_module_level=True)

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.models, pytest.mark.timeout(600)]
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")),
]


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load_bench("minicpmo_units")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from models.minicpmo_4_5.tiny import write_checkpoint

    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    return write_checkpoint(tmp_path / "tiny")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("random", [False, True])
def test_the_measurement_runs_at_tiny_size(bench: ModuleType, folder: Path, device: str, random: bool) -> None:
    if random:
        for weights in folder.glob("*.safetensors"):
            weights.unlink()
    words = ["--checkpoint", str(folder), "--device", device, "--sessions", "1,2", "--seconds", "4"]
    rows = bench.main([*words, "--bandwidth", "10", *(["--random"] if random else [])])
    assert [row.sessions for row in rows] == [1, 2]
    for row in rows:
        assert 0 < row.listening_ms and 0 < row.speaking_ms <= row.slowest_second_ms
        assert row.session_mib > 0.01 and row.gb_per_s > 0
        assert row.share == pytest.approx(row.gb_per_s / 10, abs=0.01)
        assert 0 < row.spoken_tokens <= 20
