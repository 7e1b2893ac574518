"""What a model does not hear or see, or must: the append is refused in the words of the contract, and is no input."""

from __future__ import annotations

import msgspec
import pytest
from unit.session.core.fake_models import FakeModel
from unit.session.core.session_world import World, error_codes, pick, sound

from duologue.protocol.duplex import AppendAudio, Commit, DuplexCapabilities, RealtimeProtocolError

pytestmark = pytest.mark.unit

PICTURE = b"\xff\xd8" + bytes(40)
HEARS_ONLY = "This duplex model does not accept video_frames"
SEES_ONLY = "This duplex model does not accept audio input"
MUST_HEAR = "This duplex model requires audio on input_audio_buffer.append"
MUST_SEE = "This duplex model requires video_frames on input_audio_buffer.append"


class Choosy(FakeModel):
    def __init__(self, required: tuple[str, ...], optional: tuple[str, ...]) -> None:
        super().__init__()
        self.takes = required, optional

    def capabilities(self, max_sessions: int) -> DuplexCapabilities:
        required, optional = self.takes
        return msgspec.structs.replace(
            super().capabilities(max_sessions), required_input_modalities=required, optional_input_modalities=optional
        )


@pytest.mark.parametrize(
    ("required", "optional", "audio", "frames", "message"),
    [
        (("audio",), (), True, True, HEARS_ONLY),
        (("video",), (), True, True, SEES_ONLY),
        (("audio",), ("video",), False, True, MUST_HEAR),
        (("video",), ("audio",), True, False, MUST_SEE),
    ],
)
def test_an_append_of_the_wrong_kind_is_refused(
    required: tuple[str, ...], optional: tuple[str, ...], audio: bool, frames: bool, message: str
) -> None:
    world = World(Choosy(required, optional))
    append = AppendAudio(
        event_id="e", audio=sound(80) if audio else b"", video_frames=(PICTURE,) if frames else (), video_bytes=60
    )
    (refused,) = world.send(append)
    told = refused["error"]
    assert (told["code"], told["event_id"], told["message"]) == ("invalid_input_modality", "e", message)
    assert error_codes(world.send(Commit())) == ["input_audio_buffer_empty"]


@pytest.mark.parametrize(
    ("required", "optional", "frames"), [(("audio",), ("video",), False), (("audio", "video"), (), True)]
)
def test_an_append_of_the_right_kind_is_taken(
    required: tuple[str, ...], optional: tuple[str, ...], frames: bool
) -> None:
    world = World(Choosy(required, optional))
    world.send(AppendAudio(audio=sound(80), video_frames=(PICTURE,) if frames else (), video_bytes=60))
    assert pick(world.send(Commit()), "input_audio_buffer.committed")


def test_a_model_that_owns_its_turns_opens_no_other_session() -> None:
    with pytest.raises(RealtimeProtocolError) as refused:
        World(FakeModel(auto_only=True))
    assert (refused.value.code, refused.value.param) == (
        "unsupported_nemotron_duplex_mode",
        "session.extra_body.auto_response",
    )
    assert World(FakeModel(auto_only=True), auto=True).machine.closed is False
