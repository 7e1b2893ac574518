"""The conversation of one session as the engine keeps it, and as a chat request tells it. SANS-I/O.

Rule 1. A turn of the user keeps its sound: the model hears it again with every later turn.
Rule 2. Bounded: the oldest turns go when there are too many or their sound is too long; of one turn that is too long
        the end is kept. The newest turn always stays. Whoever adds is told that something went.
Rule 3. What was not heard of an answer is not in it. Every call is followed at once by its result, or by a word that
        there is none.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from duologue.models.qwen3_omni.options import RATE_HZ, Options
from duologue.models.qwen3_omni.sounds import write_wav

BYTES_PER_S: Final = RATE_HZ * 2
NO_RESULT: Final = "There is no result: the call was not answered."
MS_PER_CHAR: Final = 65
"""How long a letter is spoken, about: of words whose sound is still to come."""


class Called(msgspec.Struct, frozen=True, gc=False):
    call_id: str
    name: str
    arguments: str


class Turn(msgspec.Struct, frozen=True, gc=False):
    """`sound`: mono PCM16 at 16 kHz. Of an assistant's turn `calls`, whose results are kept beside the turns."""

    role: str
    text: str = ""
    sound: bytes = b""
    images: tuple[str, ...] = ()
    calls: tuple[Called, ...] = ()


class Talk:
    def __init__(self, options: Options) -> None:
        self._max_turns = options.history_turns
        self._max_bytes = round(options.history_audio_s * BYTES_PER_S)
        self._max_turn_bytes = round(options.turn_audio_s * BYTES_PER_S)
        self._turns: list[Turn] = []
        self._results: dict[str, str] = {}
        self._sound = bytearray()

    @property
    def size_bytes(self) -> int:
        return len(self._sound) + sum(len(turn.sound) for turn in self._turns)

    def hear(self, pcm: bytes) -> bool:
        """More of the turn that is being spoken. False: its beginning had to go."""
        self._sound += pcm
        excess = len(self._sound) - self._max_turn_bytes
        if excess > 0:
            del self._sound[:excess]
        return excess <= 0

    def end_turn(self) -> bool:
        """The user's turn is over. False: older ones had to go."""
        sound, self._sound = bytes(self._sound), bytearray()
        return self._add(Turn("user", sound=sound)) if sound else True

    def forget_unended(self) -> None:
        """What was heard of a turn that is not over belongs to nothing."""
        self._sound.clear()

    def item(self, item: dict[str, Any]) -> bool:
        """An item that was written into the conversation. False: older turns had to go."""
        kind = item.get("type")
        if kind == "function_call_output":
            self._results[str(item.get("call_id"))] = str(item.get("output"))
            return True
        if kind == "function_call":
            call = Called(str(item.get("call_id")), str(item.get("name")), str(item.get("arguments")))
            return self._add(Turn("assistant", calls=(call,)))
        parts = [part for part in item.get("content") or () if isinstance(part, dict)]
        text = " ".join(filter(None, ((part.get("text") or part.get("transcript") or "").strip() for part in parts)))
        images = tuple(part["image_url"] for part in parts if part.get("type") == "input_image")
        if not text and not images:
            return True
        return self._add(Turn(str(item.get("role") or "user"), text, images=images))

    def said(self, text: str, calls: Sequence[Called] = ()) -> bool:
        """The assistant's answer, as far as it was heard. False: older turns had to go."""
        return self._add(Turn("assistant", text, calls=tuple(calls))) if text or calls else True

    def cut(self, text: str) -> None:
        """Less was heard of the latest answer: it becomes this."""
        for at in range(len(self._turns) - 1, -1, -1):
            turn = self._turns[at]
            if turn.role == "assistant":
                if text or turn.calls:
                    self._turns[at] = msgspec.structs.replace(turn, text=text)
                else:
                    del self._turns[at]
                return

    def turns(self) -> tuple[Turn, ...]:
        return tuple(self._turns)

    def results(self) -> dict[str, str]:
        return dict(self._results)

    def _add(self, turn: Turn) -> bool:
        self._turns.append(turn)
        whole = True
        while len(self._turns) > 1 and (len(self._turns) > self._max_turns or self.size_bytes > self._max_bytes):
            gone = self._turns.pop(0)
            for call in gone.calls:
                self._results.pop(call.call_id, None)
            whole = False
        return whole


def heard_of(text: str, sound_ms: float, heard_ms: float) -> str:
    """The words that had been said by then, in proportion: of those whose sound is not there yet it is guessed."""
    total_ms = max(sound_ms, len(text) * MS_PER_CHAR)
    if heard_ms >= total_ms or not text:
        return text
    kept = text[: int(len(text) * max(heard_ms, 0.0) / total_ms)]
    return kept.rpartition(" ")[0].rstrip() if len(kept) < len(text) and " " in kept else kept


def messages(instructions: str, turns: Sequence[Turn], results: dict[str, str]) -> list[dict[str, Any]]:
    """The `messages` of a chat request. Sound becomes `input_audio`, so this takes its time."""
    told: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    for turn in turns:
        if turn.role == "user":
            parts = _parts(turn)
            if told and told[-1]["role"] == "user":
                told[-1]["content"] += parts  # strict servers want roles to alternate
            else:
                told.append({"role": "user", "content": parts})
            continue
        told.append({"role": turn.role, "content": turn.text or None if turn.calls else turn.text})
        if turn.calls:
            told[-1]["tool_calls"] = [
                {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in turn.calls
            ]
            told += [
                {"role": "tool", "tool_call_id": call.call_id, "content": results.get(call.call_id, NO_RESULT)}
                for call in turn.calls
            ]
    return told


def _parts(turn: Turn) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in turn.images]
    if turn.sound:
        data = base64.b64encode(write_wav(turn.sound, RATE_HZ)).decode("ascii")
        parts.append({"type": "input_audio", "input_audio": {"data": data, "format": "wav"}})
    if turn.text:
        parts.append({"type": "text", "text": turn.text})
    return parts
