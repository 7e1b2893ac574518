"""What the owner before told beyond the checkpoint that we began with, and we would tell again. SANS-I/O.

Its checkpoint was late, so structural events left without one (see `outbox`), and it died. Clients have them. An heir
does again what caused them: commands are sent again, input is heard again. Each of these events is an echo then.

Rule 1. An echo is dropped where events are emitted, before it has a number: once for each time that it was told.
Rule 2. What is known again by an id keeps the id that was told: an item that is made again takes the told one.
Rule 3. An answer that was told is not made again.
Rule 4. What was not claimed after `VALID_S` never will be: then it must not silence anything else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

VALID_S: Final = 30.0
"""Gateways send again within seconds; a client that comes back has no longer than this."""
MAX_TOLD: Final = 4096
"""Events beyond a checkpoint that are remembered; more is a gap."""
NEAR_MS: Final = 1000.0
"""Speech that begins so near to where it was told to begin is the same speech."""

_STREAMED: Final = ("response.speak", "overlap.decision")
_NO_ID: Final = ("output_audio_buffer.cleared",)
"""Answers to a command, whatever they name."""


class _Named(msgspec.Struct):
    id: str = ""


class _Error(msgspec.Struct):
    code: str | None = None
    event_id: str | None = None


class _Shown(msgspec.Struct):
    """As much of a rendered event as tells it from others of its type."""

    type: str
    response_id: str | None = None
    item_id: str | None = None
    item: _Named | None = None
    response: _Named | None = None
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Shown).decode


def key_of(body: bytes) -> str | None:
    """What tells a rendered structural event from others, whichever owner made it; None of one that streams. Raises
    msgspec.MsgspecError."""
    event = _decode(body)
    kind = event.type
    if kind in _STREAMED or (kind.endswith(".delta") and not kind.startswith("response.function_call")):
        return None
    if kind in _NO_ID:
        return kind
    if event.error is not None:
        return f"{kind} {event.error.event_id or event.error.code}"
    named = event.response_id or event.item_id
    for part in (event.item, event.response):
        named = named or (part.id if part is not None else "")
    if kind == "response.listen" and not named:
        return None
    return f"{kind} {named}" if named else kind


def call_key(name: str, arguments: str) -> str:
    """What a function call is known by when its model makes it again."""
    return f"call {name} {arguments}"


class Named(msgspec.Struct, array_like=True, gc=False):
    """An item of the conversation that was told, and is made again under that id."""

    item_id: str
    speech: bool = False
    """Speech was told to begin for it, and has not begun again."""
    at_ms: float = 0.0
    """Where in the input."""
    turn: bool = False
    """It was committed."""
    item: bool = False
    """It is in the conversation."""


class Answer(msgspec.Struct, array_like=True, gc=False):
    """A response that a turn or a command asked for; it has ended since."""

    response_id: str
    after: str
    """The last item of a turn that was told before it; empty: none."""


def _made(item_id: str) -> bool:
    """A server has made this id."""
    return item_id.startswith("item_") and len(item_id) == len("item_") + 32


class Echoes(msgspec.Struct):
    """Part of the session's state; empty but in an heir, for a while."""

    told: dict[str, int] = {}
    named: list[Named] = []
    answers: list[Answer] = []
    until: float = 0.0
    silent: bool = False
    """While what was told is folded: nothing of it is told by us."""
    gap: bool = False
    """Not all of it is known: whoever attaches next has to be told of a gap."""

    def begin(self, now: float) -> None:
        self.until = now + VALID_S

    def expire(self, now: float) -> None:
        if self.told and now >= self.until:
            self.told, self.named, self.answers = {}, [], []

    def add(self, key: str) -> None:
        self.told[key] = self.told.get(key, 0) + 1

    def claim(self, key: str) -> bool:
        """It was told, and counts as told once less."""
        left = self.told.get(key, 0)
        if left > 1:
            self.told[key] = left - 1
        elif left:
            del self.told[key]
        return left > 0

    def untold(self, bodies: Iterable[bytes], now: float) -> list[bytes]:
        """Without echoes."""
        self.expire(now)
        return [] if self.silent else [body for body in bodies if not self._is_echo(body)]

    def _is_echo(self, body: bytes) -> bool:
        key = key_of(body)
        return key is not None and self.claim(key)

    # -- ids --------------------------------------------------------------------------------------------

    def name(self, item_id: str) -> Named:
        """An item that was told; what was told of it is for the caller to note."""
        known = next((one for one in self.named if one.item_id == item_id), None)
        if known is None:
            known = Named(item_id)
            self.named.append(known)
        return known

    def names(self, item_id: str) -> bool:
        return any(one.item_id == item_id for one in self.named)

    def same_item(self, item_id: str) -> bool:
        """An item that is there was put there by the fold, and is made again now."""
        for at, one in enumerate(self.named):
            if one.item_id == item_id:
                del self.named[at]
                return True
        return False

    def speech(self, at_ms: float) -> str:
        """The item of speech that begins again; empty: it is other speech."""
        for one in self.named:
            if one.speech and abs(one.at_ms - at_ms) <= NEAR_MS:
                one.speech = False
                if not one.item:
                    self.named.remove(one)
                return one.item_id
        return ""

    def turn(self) -> str:
        """The item of a turn that is committed again; empty: it is another turn."""
        return next((one.item_id for one in self.named if one.turn), "")

    def unnamed(self) -> str:
        """The id that an item got which its client had given none, where that is made again."""
        return next((one.item_id for one in self.named if one.item and not one.turn and _made(one.item_id)), "")

    def answered(self, now: float) -> bool:
        """The answer that is being asked for again was given."""
        self.expire(now)
        for at, answer in enumerate(self.answers):
            if not self.names(answer.after):
                del self.answers[at]
                return True
        return False
