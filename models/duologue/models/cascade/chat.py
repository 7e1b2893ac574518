"""The conversation as a language model wants it: roles and text, within the context. Pure.

Rule 1. The system prompt and the newest turn always stay; the oldest turns go first.
        They go several at a time, so that the prompt begins alike for some turns and is not read again.
Rule 2. Tokens are estimated from characters, high rather than low: the session half has no tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from duologue.models.cascade.wire import Ask, ChatTurn
from duologue.protocol.duplex import Item

_CHARS_PER_TOKEN = 3.0
_TOKENS_PER_TURN = 8
_BLOCK = 6
"""Turns that are left out together."""
_ROLES = ("user", "assistant", "system")


def estimated_tokens(text: str) -> int:
    return _TOKENS_PER_TURN + int(len(text.encode()) / _CHARS_PER_TOKEN) + 1


def chat_turns(items: Sequence[Item]) -> list[ChatTurn]:
    """What was said, neighbours of one role joined. Items without text (a tool call, a silent turn) are left
    out."""
    turns: list[ChatTurn] = []
    for item in items:
        text = item.text.strip()
        if item.type != "message" or item.role not in _ROLES or not text:
            continue
        role = str(item.role)
        if turns and turns[-1].role == role:
            turns[-1] = ChatTurn(role, f"{turns[-1].content} {text}")
        else:
            turns.append(ChatTurn(role, text))
    return turns


def within(ask: Ask, context_tokens: int) -> Ask:
    """The same request with the oldest turns left out, so that prompt and answer fit."""
    system = [turn for turn in ask.messages[:1] if turn.role == "system"]
    turns = list(ask.messages[len(system) :])
    room = context_tokens - ask.max_tokens - sum(estimated_tokens(turn.content) for turn in system)
    fitting, used = 0, 0
    for turn in reversed(turns):
        used += estimated_tokens(turn.content)
        if used > room:
            break
        fitting += 1
    first = len(turns) - fitting
    if 0 < first < len(turns):
        aligned = -(-first // _BLOCK) * _BLOCK
        first = aligned if aligned < len(turns) else first
    kept = turns[first:] or [ChatTurn(t.role, _tail(t.content, room - _TOKENS_PER_TURN - 1)) for t in turns[-1:]]
    if len(kept) > 1 and kept[0].role == "assistant":
        kept = kept[1:]
    return msgspec.structs.replace(ask, messages=(*system, *kept))


def _tail(text: str, tokens: int) -> str:
    """The last part of one turn that alone is too long."""
    encoded = text.encode()
    return encoded[-int(max(tokens, 16) * _CHARS_PER_TOKEN) :].decode(errors="ignore")
