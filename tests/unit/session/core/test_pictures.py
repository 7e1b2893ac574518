"""Images of items and camera frames of units: bounded by name, given to the model, in no echo and no checkpoint."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from unit.session.core.fake_models import FakeModel, FakeState
from unit.session.core.session_world import World, error_codes, pick, sound

from duologue.model.plugin import AppendPlan, InputUnit, ResponseRequest
from duologue.protocol.duplex import (
    AppendAudio,
    ContentPart,
    CreateItem,
    CreateResponse,
    DeleteItem,
    DuplexCapabilities,
    Item,
    RealtimeProtocolError,
    command_from_realtime,
)
from duologue.session.core import DuplexSessionMachine, SessionLimits
from duologue.session.core.engine_session import DuplexEngineSession
from duologue.session.core.pictures import MAX_ECHOED_CHARS, MAX_PICTURE_CHARS, MAX_PICTURES

pytestmark = pytest.mark.unit


def picture(size: int = 60) -> str:
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG" + bytes(size)).decode()


class Seeing(FakeModel):
    """Remembers what it was shown."""

    def __init__(self) -> None:
        super().__init__(answers="plan")
        self.shown: list[tuple[Item, ...]] = []

    def capabilities(self, max_sessions: int) -> DuplexCapabilities:
        return DuplexCapabilities(supports_input_append=True, supports_text_only_turn=True, supports_image_input=True)

    def plan_response(self, state: FakeState, request: ResponseRequest) -> AppendPlan:
        self.shown.append(request.items)
        return super().plan_response(state, request)


class Watching(FakeModel):
    def __init__(self) -> None:
        super().__init__()
        self.frames: list[tuple[bytes, ...]] = []

    def plan_unit(self, state: FakeState, unit: InputUnit) -> AppendPlan:
        self.frames.append(unit.video_frames)
        return super().plan_unit(state, unit)


def show(world: World, *urls: str, text: str = "look", id: str = "") -> list[dict[str, Any]]:
    parts = [ContentPart(type="input_text", text=text)] if text else []
    parts += [ContentPart(type="input_image", image_url=url) for url in urls]
    return world.send(CreateItem(item=Item(id=id, role="user", content=tuple(parts))))


def urls_of(items: tuple[Item, ...]) -> list[str]:
    return [str(part.image_url) for item in items for part in item.content or () if part.type == "input_image"]


# -- images ---------------------------------------------------------------------------------------------------


def test_an_image_reaches_the_model_and_a_long_one_is_not_echoed() -> None:
    model = Seeing()
    world = World(model)
    short, long = picture(), picture(300_000)
    seen = show(world, short, long)
    told = [part.get("image_url") for part in pick(seen, "conversation.item.added")[0]["item"]["content"][1:]]
    assert told == [short, None]
    world.send(CreateResponse())
    assert urls_of(model.shown[0]) == [short, long]


def test_no_checkpoint_has_it_and_a_snapshot_has() -> None:
    model = Seeing()
    world = World(model)
    show(world, picture(200_000))
    assert max(len(point.body) for point in world.checkpoints) < 50_000
    world.restart()
    world.send(CreateResponse())
    assert urls_of(model.shown[0]) == [picture(200_000)]


def test_a_conversation_from_a_checkpoint_has_its_words() -> None:
    model = Seeing()
    world = World(model)
    show(world, picture(MAX_ECHOED_CHARS))
    state = msgspec.msgpack.decode(world.checkpoints[-1].body, type=DuplexEngineSession)
    assert state.history[-1].item.text == "look"
    heir = DuplexSessionMachine.restore(world.checkpoints[-1].body, plugin=model, owner=2)
    assert heir.items_for_gap()


def test_an_image_counts_apart_from_the_text_of_its_item() -> None:
    parts = [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": picture(1_000_000)}]
    frame: dict[str, Any] = {"type": "conversation.item.create", "item": {"role": "user", "content": parts}}
    command = command_from_realtime(json.dumps(frame))
    assert isinstance(command, CreateItem)
    assert DuplexSessionMachine.input_cost(command) == len(picture(1_000_000))
    parts[0]["text"] = "x" * 300_000
    with pytest.raises(RealtimeProtocolError) as refused:
        command_from_realtime(json.dumps(frame))
    assert (refused.value.code, refused.value.param) == ("bad_event", "item")


def test_too_many_are_refused_by_name_until_one_is_deleted() -> None:
    world = World(Seeing())
    show(world, *[picture()] * MAX_PICTURES, id="first")
    (error,) = pick(show(world, picture()), "error")
    assert (error["error"]["code"], error["error"]["param"]) == ("input_backpressure", "item.content[1]")
    assert world.machine.observed.rejected == 1
    world.send(DeleteItem(item_id="first"))
    assert error_codes(show(world, picture())) == []


def test_too_large_ones_are_refused_by_name_and_leave_no_item() -> None:
    world = World(Seeing())
    half = picture(MAX_PICTURE_CHARS // 2)
    assert error_codes(show(world, half)) == []
    seen = show(world, half)
    assert (error_codes(seen), pick(seen, "conversation.item.added")) == (["input_backpressure"], [])


def test_a_model_that_sees_nothing_says_so() -> None:
    (error,) = pick(show(World(), picture()), "error")
    assert (error["error"]["code"], error["error"]["param"]) == ("unsupported", "item.content[1]")


# -- camera frames ------------------------------------------------------------------------------------------


def frame(size: int) -> bytes:
    return b"\xff\xd8" + bytes(size)


def test_frames_go_with_the_unit_that_they_came_with() -> None:
    model = Watching()
    world = World(model, auto=True)
    world.send(AppendAudio(audio=sound(40), video_frames=(frame(1),)))
    world.send(AppendAudio(audio=sound(40), video_frames=(frame(2), frame(3))))
    world.send(AppendAudio(audio=sound(80)))
    world.send(AppendAudio(audio=sound(200), video_frames=(frame(4),)))
    assert model.frames == [(frame(1), frame(2), frame(3)), (), (frame(4),), ()]


def test_frames_that_wait_count_as_input() -> None:
    world = World(Watching(), limits=SessionLimits(max_pending_input_bytes=10_000))
    world.send(AppendAudio(audio=sound(20), video_frames=(frame(4000),)))
    assert world.machine.pending_input_bytes > 4000
    seen = world.send(AppendAudio(audio=sound(20), video_frames=(frame(8000),)))
    assert error_codes(seen) == ["input_backpressure"]


@pytest.mark.parametrize(
    "frames",
    ["x", ["AAAA"], [""], ["!!!!"], [base64.b64encode(frame(60)).decode()] * 3, [7]],
    ids=["no list", "no picture", "empty", "no base64", "three", "no text"],
)
def test_what_is_no_frame_is_refused_by_name(frames: Any) -> None:
    with pytest.raises(RealtimeProtocolError) as refused:
        command_from_realtime(
            json.dumps({"type": "input_audio_buffer.append", "audio": "AAAA", "video_frames": frames})
        )
    assert refused.value.code == "invalid_video_frames"
    assert "video_frames" in (refused.value.param or "")
