"""A conversation with an upstream server that is only spoken of: events in, commands and results out."""

from __future__ import annotations

import base64
import json
from typing import Any

from duologue.model.outputs import ModelOutput
from duologue.models.bridge import heads
from duologue.models.bridge.answers import Told
from duologue.models.bridge.conversation import Conversation
from duologue.models.bridge.heads import SlotConfig, UnitHead
from duologue.models.bridge.options import Options

Event = dict[str, Any]
UNIT = b"\1\0" * 1280
SOUND = b"\2\0" * 1920
"""80 ms at 24 kHz."""


class Counted:
    """What the conversation counts."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.stales = 0

    def error(self, code: str) -> None:
        self.errors.append(code)

    def stale(self) -> None:
        self.stales += 1


class Talk:
    """`commands` and `told` empty what has gathered since the last look."""

    def __init__(self, dialect: str = "duplex", *, auto: bool = True, ours: bool = True, **more: Any) -> None:
        config = {key: more.pop(key) for key in list(more) if key in SlotConfig.__struct_fields__}
        options = Options(url="ws://upstream/v1/realtime", dialect=dialect, **more)  # type: ignore[arg-type]
        self.config = SlotConfig(**{"modalities": ("text", "audio"), "auto": auto, "speaks_duplex": True, **config})
        self.counted = Counted()
        self.conversation = Conversation(options, self.config, self.counted)
        self.ours = ours

    def open(self) -> Event:
        """Up to the live session; the session object that was sent."""
        self.conversation.connected()
        created = {"session": {"id": "upstream-1"}, **({"resume_token": "token-1"} if self.ours else {})}
        self.say("session.created", **created)
        (update,) = self.commands()
        self.say("session.updated", session={})
        assert self.conversation.is_live
        session: Event = update["session"]
        return session

    def say(self, kind: str, **fields: Any) -> None:
        """The server says something."""
        self.conversation.frame(json.dumps({"type": kind, "event_id": "event_x", **fields}))

    def speak(self, response_id: str = "r1", text: str = "", sound: bytes = SOUND, **metadata: Any) -> None:
        """One unit of speech, as the duplex contract has it."""
        at = {"response_id": response_id, "item_id": f"item_{response_id}", "output_index": 0, "content_index": 0}
        delta = base64.b64encode(sound).decode()
        self.say("response.output_audio.delta", **at, delta=delta, format="pcm16", metadata=metadata)
        self.say("response.output_audio_transcript.delta", **at, delta=text)

    def create(self, response_id: str = "r1") -> None:
        self.say("response.created", response={"id": response_id, "status": "in_progress"})

    def done(self, response_id: str = "r1", status: str = "completed", **more: Any) -> None:
        self.say("response.done", response={"id": response_id, "status": status, **more})

    def error(self, code: str, message: str = "no", **more: Any) -> None:
        self.say("error", error={"type": "server_error", "code": code, "message": message, **more})

    def unit(self, flags: int = heads.AUTO, *frames: bytes) -> None:
        self.conversation.unit(UnitHead(flags), frames or (UNIT,))

    def ask(self) -> str:
        """A turn of one unit that is to be answered; the id of the request."""
        self.unit(heads.FINAL | heads.ASK)
        return str(self.commands()[-1]["event_id"])

    def commands(self) -> list[Event]:
        return [json.loads(frame) for frame in self.conversation.take_out()]

    def told(self) -> list[Told]:
        return self.conversation.take_told()

    def outputs(self) -> list[ModelOutput]:
        return [told.output for told in self.told()]


def kinds(commands: list[Event]) -> list[str]:
    return [command["type"] for command in commands]
