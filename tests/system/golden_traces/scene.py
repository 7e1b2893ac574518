"""One socket through one golden trace: commands go out, and what comes back is kept as steps."""

from __future__ import annotations

import itertools
from typing import Any, Self

from system.wire import Event, Wire, append, level, session_object
from websockets.exceptions import ConnectionClosed

DELTAS = ("response.output_audio.delta", "response.output_audio_transcript.delta")
_probes = itertools.count()


class Scene:
    """`steps`: what was seen, by the name of the step; `wire.log`: everything."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.steps: dict[str, list[str]] = {}

    @classmethod
    async def open(cls, url: str, model: str = "loopback", **loopback: Any) -> Self:
        """A turn-based session that is open and has said so."""
        scene = cls(await Wire.open(url, session_object(model, auto=loopback.pop("auto", False), **loopback)))
        await scene.wire.until("session.updated")
        return scene

    async def step(
        self, name: str, *commands: Event, until: str = "", hide: tuple[str, ...] = (), count: int = 1
    ) -> list[Event]:
        """Send commands and read: to the `count`th event of the type `until`, or until all of it is answered."""
        for command in commands:
            await self.wire.send(command)
        seen: list[Event] = []
        while count:
            if not until:
                seen += await self._answered()
                break
            event = await self.wire.read()
            seen.append(event)
            count -= event["type"] == until
        self.steps[name] = [event["type"] for event in seen if event["type"] not in hide]
        return seen

    async def _answered(self) -> list[Event]:
        """A question that waits its turn in the ordered input: what comes before its answer was asked for before."""
        probe = f"probe{next(_probes)}"  # its own: an answer that is replayed is not an answer to this one
        await self.wire.send({"type": "conversation.item.retrieve", "item_id": "nobody", "event_id": probe})
        seen: list[Event] = []
        while True:
            event = await self.wire.read()
            if event["type"] == "error" and event["error"].get("event_id") == probe:
                return seen
            seen.append(event)

    async def told(self) -> dict[str, Any]:
        """The session object as it is now."""
        await self.wire.send({"type": "session.update", "session": {}})
        session: dict[str, Any] = (await self.wire.until("session.updated"))["session"]
        return session

    async def ending(self, name: str, *commands: Event, codes: bool = False) -> list[Event]:
        """Send commands and read to the close frame, which is told last."""
        for command in commands:
            await self.wire.send(command)
        seen: list[Event] = []
        try:
            while True:
                seen.append(await self.wire.read())
        except ConnectionClosed:
            close = f"close {self.wire.ws.close_code} {self.wire.ws.close_reason}"
        self.steps[name] = [*map(told_as if codes else _type, seen), close]
        return seen

    async def leave(self) -> None:
        await self.wire.cut()


def _type(event: Event) -> str:
    return str(event["type"])


def told_as(event: Event) -> str:
    """An error by its code too."""
    return f"error {event['error']['code']}" if event["type"] == "error" else _type(event)


def speech(ms: int = 1000, **more: Any) -> Event:
    return append(level(4000, ms), **more)


def silence(ms: int = 200) -> Event:
    return append(level(0, ms))


def command(name: str, **fields: Any) -> Event:
    return {"type": name, **fields}


COMMIT = command("input_audio_buffer.commit")
COMMIT_ASKING = command("input_audio_buffer.commit", response_create=True)
CREATE = command("response.create")
