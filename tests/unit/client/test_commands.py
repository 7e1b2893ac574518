"""Every command that a client can send is one that a server reads, and says what its arguments say."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from duologue.client import SessionConfig
from duologue.client.commands import Command, SessionCommands
from duologue.protocol.duplex import AppendAudio, Commit, DuplexCommand, command_from_realtime

pytestmark = pytest.mark.unit

PICTURE = "data:image/png;base64,iVBORw0KGgo="


class Sender(SessionCommands):
    """Keeps what it is asked to send, as a server reads it."""

    def __init__(self) -> None:
        self.config = SessionConfig()
        self.written: list[Command] = []

    async def send(self, command: Command) -> str:
        self.written.append(command)
        return f"evt_{len(self.written)}"

    @property
    def read(self) -> list[DuplexCommand]:
        return [command_from_realtime(json.dumps(command)) for command in self.written]


Say = Callable[[Sender], Awaitable[Any]]
COMMANDS: dict[str, Say] = {
    "input_audio_buffer.append": lambda s: s.append_audio(bytes(640), is_speech=True, video_frames=[PICTURE]),
    "input_audio_buffer.commit": lambda s: s.commit(create_response=False),
    "input_audio_buffer.clear": lambda s: s.clear_input(),
    "input.cancel": lambda s: s.cancel_input(),
    "response.create": lambda s: s.create_response(instructions="be brief"),
    "response.cancel": lambda s: s.cancel_response("resp_1"),
    "barge_in": lambda s: s.barge_in(),
    "output_audio_buffer.clear": lambda s: s.clear_output(),
    "playback.ack": lambda s: s.ack_playback(120.5, response_id="resp_1", truncate=True),
    "conversation.item.create": lambda s: s.create_item({"type": "message", "role": "user", "content": []}),
    "conversation.item.retrieve": lambda s: s.retrieve_item("item_1"),
    "conversation.item.delete": lambda s: s.delete_item("item_1"),
    "conversation.item.truncate": lambda s: s.truncate_item("item_1", 500),
    "session.update": lambda s: s.update_session(instructions="be brief"),
    "turn.signal": lambda s: s.signal_turn("custom", {"a": 1}),
    "session.heartbeat": lambda s: s.heartbeat(),
}


@pytest.mark.parametrize("kind", COMMANDS)
async def test_a_server_reads_what_is_sent(kind: str) -> None:
    sender = Sender()
    assert await COMMANDS[kind](sender) == "evt_1"
    assert [command.type for command in sender.read] == [kind]


async def test_what_is_not_said_is_not_sent() -> None:
    sender = Sender()
    await sender.cancel_response()
    await sender.create_response()
    await sender.ack_playback(3)
    assert sender.written == [
        {"type": "response.cancel"},
        {"type": "response.create"},
        {"type": "playback.ack", "played_ms": 3},
    ]
    await sender.commit()
    [*_, commit] = sender.read
    assert isinstance(commit, Commit) and commit.response_create is None


async def test_a_stream_is_cut_into_chunks_and_its_pictures_go_with_their_seconds() -> None:
    sender = Sender()
    pcm = bytes(range(256)) * 320  # 2.56 s
    pictures = [f"data:image/png;base64,iVBORw0KGgo{letter}" for letter in "AB"]
    assert await sender.stream_pcm(pcm, chunk_ms=400, realtime=False, video_frames=pictures) == 7
    appends = [command for command in sender.read if isinstance(command, AppendAudio)]
    assert b"".join(append.audio for append in appends) == pcm
    assert [len(append.video_frames) for append in appends] == [0, 0, 1, 0, 1, 0, 0]
    assert [round(append.audio_end_ms or 0) for append in appends] == [400, 800, 1200, 1600, 2000, 2400, 2560]


async def test_the_result_of_a_function_and_a_text_are_items() -> None:
    sender = Sender()
    await sender.send_function_output("call_1", "42")
    await sender.send_text("hello")
    assert [command["item"]["type"] for command in sender.written] == ["function_call_output", "message"]
    assert [command.type for command in sender.read] == ["conversation.item.create"] * 2
