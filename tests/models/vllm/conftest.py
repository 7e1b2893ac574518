"""vLLM on tiny checkpoints. Without its environment (`make env NAME=vllm`) these tests are skipped."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from models.vllm.counting import Counts

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    # The engine's core is another process, and finds the counting scheduler there.
    "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])),
}
os.environ.update({name: os.environ.get(name, value) for name, value in ENVIRONMENT.items() if name != "PYTHONPATH"})


def pytest_configure() -> None:
    # vLLM leaves it to the end of the process to close what it talks to its core with.
    warnings.filterwarnings(
        "ignore", r"Exception ignored in: <function Context\.__del__", pytest.PytestUnraisableExceptionWarning
    )


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counts]:
    """Of the engine that the module starts next."""
    from models.vllm.counting import COUNTS, Counts

    path = tmp_path_factory.mktemp("counts") / "counts.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(COUNTS, str(path))
        patch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
        yield Counts(path)
