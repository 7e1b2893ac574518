"""A language model that has places: the thinker takes one for each slot, gives it back, and tells what it holds."""

from __future__ import annotations

import pytest

from duologue.model.engine import Slot, StageRefused
from duologue.model.pipeline import PipelineError
from duologue.models.cascade.engines import thinker
from duologue.models.cascade.engines.language import LanguageError, LanguageModel, Listener
from duologue.models.cascade.settings import Settings, Thinker
from duologue.models.cascade.wire import Ask

pytestmark = pytest.mark.unit


class OnePlace(LanguageModel):
    def __init__(self) -> None:
        self.taken: list[int] = []
        self.left: list[int] = []

    def load(self) -> None:
        """Nothing to load."""

    def open(self, place: int) -> None:
        if self.taken:
            raise LanguageError("resource_exhausted", "the cache is full")
        self.taken.append(place)

    def leave(self, place: int) -> None:
        self.taken.remove(place)
        self.left.append(place)

    def held_tokens(self) -> int | None:
        return 7 * len(self.taken)

    def start(self, place: int, ask: Ask, listener: Listener) -> None:
        raise AssertionError("nobody asks")

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> OnePlace:
    made = OnePlace()
    monkeypatch.setattr(thinker, "language_model", lambda options, slots: made)
    return made


def test_a_slot_that_the_model_has_no_place_for_is_refused_and_stays_free(model: OnePlace) -> None:
    engine = thinker.ThinkerEngine(Settings(), 4)
    engine.open(Slot(2, 1), b"")
    with pytest.raises(StageRefused, match="the cache is full") as refused:
        engine.open(Slot(3, 1), b"")
    assert refused.value.code == "resource_exhausted"
    usage = engine.usage()
    assert (usage.slots_used, usage.kv_tokens) == (1, 7)


def test_a_place_is_left_once_and_by_its_own_slot(model: OnePlace) -> None:
    engine = thinker.ThinkerEngine(Settings(), 4)
    engine.open(Slot(2, 1), b"")
    engine.close(Slot(2, 1))
    engine.open(Slot(2, 2), b"")
    engine.close(Slot(2, 1))
    engine.close(Slot(3, 1))
    assert model.left == [2] and model.taken == [2]


def test_vllm_that_is_not_here_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duologue.models.cascade.parts.find_spec", lambda name: None)
    with pytest.raises(PipelineError, match=r'venv = "vllm".*cascade-vllm\.toml'):
        thinker.language_model(Thinker(engine="vllm", model_path="some/model"), 4)
