"""Token counts: of each response, of the session, through a checkpoint."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from unit.session.core.fake_models import FakeModel
from unit.session.core.session_world import World, pick, spoken

from duologue.model.outputs import ModelOutput, Usage
from duologue.protocol.duplex import CancelResponse, Commit
from duologue.session.core.engine_session import DuplexEngineSession

pytestmark = pytest.mark.unit


class Counting(FakeModel):
    """Tells tokens when it is asked."""

    last: Usage | None = None

    def take_usage(self, state: Any) -> Usage | None:
        last, self.last = self.last, None
        return last


def answering(model: FakeModel) -> World:
    world = World(model)
    world.say(80)
    world.send(Commit(response_create=True))
    return world


def used(world: World) -> Usage | None:
    return msgspec.msgpack.decode(world.machine.snapshot(), type=DuplexEngineSession).used


def test_what_outputs_tell_adds_up_in_the_shape_of_openai() -> None:
    world = answering(FakeModel())
    world.answer(ModelOutput(usage=Usage(input_text_tokens=20, cached_tokens=4)), spoken("hi"), last=False)
    done = pick(world.answer(spoken(end_of_turn=True, usage=Usage(0, 0, 3, 2))), "response.done")[0]
    assert done["response"]["usage"] == {
        "total_tokens": 25,
        "input_tokens": 20,
        "output_tokens": 5,
        "input_token_details": {"text_tokens": 20, "audio_tokens": 0, "cached_tokens": 4},
        "output_token_details": {"text_tokens": 2, "audio_tokens": 3},
    }
    assert used(world) == Usage(0, 20, 3, 2, 4)


def test_a_model_that_counts_nothing_has_no_usage() -> None:
    done = pick(answering(FakeModel()).answer(spoken("hi", end_of_turn=True)), "response.done")[0]
    assert "usage" not in done["response"]


def test_a_model_is_asked_at_the_end_of_a_response_whatever_ended_it() -> None:
    model = Counting()
    world = answering(model)
    world.answer(spoken("hi"), last=False)
    model.last = Usage(input_audio_tokens=7)
    done = pick(world.send(CancelResponse()), "response.done")[0]
    assert done["response"]["usage"]["input_token_details"]["audio_tokens"] == 7
    assert world.machine.observed.tokens == {"input_audio_tokens": 7}


def test_the_totals_go_on_in_another_process() -> None:
    model = Counting()
    world = answering(model)
    model.last = Usage(output_audio_tokens=5)
    world.answer(spoken("hi", end_of_turn=True))
    world.restart()
    world.now += 1.0
    world.say(80)
    world.send(Commit(response_create=True))
    model.last = Usage(output_audio_tokens=2)
    world.answer(spoken("ho", end_of_turn=True))
    assert used(world) == Usage(output_audio_tokens=7)


def test_what_is_told_beside_a_response_belongs_to_the_session() -> None:
    world = World(auto=True)
    world.say(80)
    world.answer(ModelOutput(listen=True, usage=Usage(input_audio_tokens=1)))
    assert used(world) == Usage(input_audio_tokens=1)
