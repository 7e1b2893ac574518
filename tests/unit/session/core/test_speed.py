"""How fast the voice speaks: checked by name, refused where the model cannot."""

from __future__ import annotations

from typing import Any

import pytest
from unit.session.core.fake_models import FakeModel
from unit.session.core.session_world import World, pick

from duologue.protocol.duplex import (
    Commit,
    CreateResponse,
    DuplexCapabilities,
    RealtimeProtocolError,
    ResponseOptions,
    SessionUpdate,
    command_from_realtime,
)

pytestmark = pytest.mark.unit


class Paced(FakeModel):
    def capabilities(self, max_sessions: int) -> DuplexCapabilities:
        return DuplexCapabilities(supports_input_append=True, supports_output_speed=True)


def refusal(world: World, **session: Any) -> tuple[str, str] | None:
    errors = pick(world.send(SessionUpdate(session=session)), "error")
    return (errors[0]["error"]["code"], errors[0]["error"]["param"]) if errors else None


def test_a_model_that_cannot_refuses_by_name_at_open_in_an_update_and_for_a_response() -> None:
    with pytest.raises(RealtimeProtocolError) as refused:
        World(speed=1.2)
    assert (refused.value.code, refused.value.param) == ("unsupported", "session.speed")
    world = World()
    assert refusal(world, speed=1.2) == ("unsupported", "session.speed")
    world.say(80)
    world.send(Commit())
    (error,) = pick(world.send(CreateResponse(options=ResponseOptions(speed=1.2))), "error")
    assert error["error"]["code"] == "unsupported_native_response_options"
    assert error["error"]["param"] == "response.speed"
    assert world.response_count() == 0


def test_its_own_pace_is_accepted_by_every_model() -> None:
    world = World(speed=1)
    assert refusal(world, speed=1.0) is None
    assert refusal(world, speed=None) is None


@pytest.mark.parametrize("speed", [0.2, 1.6, 2, 0])
@pytest.mark.parametrize("nested", [False, True])
def test_the_range_is_checked(speed: float, nested: bool) -> None:
    world = World(Paced())
    session = {"audio": {"output": {"speed": speed}}} if nested else {"speed": speed}
    assert refusal(world, **session) == ("bad_event", "session.audio.output.speed" if nested else "session.speed")
    with pytest.raises(RealtimeProtocolError) as refused:
        command_from_realtime(f'{{"type": "response.create", "response": {{"speed": {speed}}}}}')
    assert refused.value.param == "response.speed"


@pytest.mark.parametrize("speed", [0.25, 1, 1.5])
def test_what_is_in_the_range_is_echoed(speed: float) -> None:
    world = World(Paced())
    assert refusal(world, speed=speed) is None
    assert pick(world.events, "session.updated")[-1]["session"]["speed"] == speed
