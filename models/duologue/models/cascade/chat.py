"""The conversation as a language model wants it: roles and text, within the context. Pure.

Rule 1. The system prompt and the newest turn always stay; the oldest turns go first.
        They go several at a time, so that the prompt begins alike for some turns and is not read again.
Rule 2. Tokens are estimated from characters, high rather than low: the session half has no tokenizer.
Rule 3. Every function call is followed at once by its results, whenever they came, and never goes without them: a
        call that nobody answered has a result that says so. Strict servers refuse anything else.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from duologue.models.cascade.wire import Ask, Called, ChatTurn
from duologue.protocol.duplex import Item

_CHARS_PER_TOKEN = 3.0
_TOKENS_PER_TURN = 8
_TOKENS_PER_IMAGE = 300
_BLOCK = 6
"""Turns that are left out together."""
_ROLES = ("user", "assistant", "system")
NO_RESULT = "There is no result: the call was not answered."


def estimated_tokens(text: str) -> int:
    return _TOKENS_PER_TURN + int(len(text.encode()) / _CHARS_PER_TOKEN) + 1


def weight(turn: ChatTurn) -> int:
    """What a turn takes of the context, in estimated tokens."""
    calls = sum(estimated_tokens(call.name + call.arguments) for call in turn.calls)
    return estimated_tokens(turn.content) + calls + _TOKENS_PER_IMAGE * len(turn.images)


def tools_weight(ask: Ask) -> int:
    """What the functions take, described."""
    return sum(estimated_tokens(tool.name + tool.description) + len(tool.schema) // 3 for tool in ask.tools)


def asked_weight(ask: Ask) -> int:
    """The whole prompt."""
    return tools_weight(ask) + sum(map(weight, ask.messages))


def chat_turns(items: Sequence[Item], *, tools: bool = False, vision: bool = False) -> list[ChatTurn]:
    """What was said, seen and called, neighbours of one role joined. Items of which nothing is left for the model
    are left out: a silent turn, an image without `vision`, a call or its result without `tools`."""
    turns: list[ChatTurn] = []
    results = _results(items)
    open_calls: list[Called] = []
    for item in items:
        if item.type == "function_call_output":
            _close_calls(turns, open_calls, results)
        elif item.type == "function_call" and tools:
            open_calls.append(Called(str(item.call_id), str(item.name), str(item.arguments)))
        elif item.type == "message" and item.role in _ROLES:
            turn = _said(item, vision)
            if turn is not None:
                _close_calls(turns, open_calls, results)
                _join(turns, turn)
    _close_calls(turns, open_calls, results)
    return turns


def _said(item: Item, vision: bool) -> ChatTurn | None:
    text = item.text.strip()
    parts = item.content if vision and isinstance(item.content, tuple) else ()
    images = tuple(part.image_url for part in parts if part.type == "input_image" and isinstance(part.image_url, str))
    return ChatTurn(str(item.role), text, images=images) if text or images else None


def _join(turns: list[ChatTurn], turn: ChatTurn) -> None:
    last = turns[-1] if turns else None
    if last is None or last.role != turn.role:
        turns.append(turn)
    else:
        turns[-1] = ChatTurn(turn.role, f"{last.content} {turn.content}".strip(), images=last.images + turn.images)


def _results(items: Sequence[Item]) -> dict[str, list[str]]:
    """The results by call, oldest first: a server may use the id of a call again."""
    results: dict[str, list[str]] = {}
    for item in items:
        if item.type == "function_call_output":
            results.setdefault(str(item.call_id), []).append(str(item.output))
    return results


def _close_calls(turns: list[ChatTurn], calls: list[Called], results: dict[str, list[str]]) -> None:
    """Calls that were made together are one turn of the assistant, with what it said before them."""
    if not calls:
        return
    said = turns.pop().content if turns and turns[-1].role == "assistant" else ""
    turns.append(ChatTurn("assistant", said, tuple(calls)))
    for call in calls:
        given = results.get(call.call_id)
        turns.append(ChatTurn("tool", given.pop(0) if given else NO_RESULT, call_id=call.call_id))
    calls.clear()


# -- within the context ---------------------------------------------------------------------------------------


def within(ask: Ask, context_tokens: int) -> Ask:
    """The same request with the oldest turns left out, so that prompt and answer fit."""
    system = [turn for turn in ask.messages[:1] if turn.role == "system"]
    groups = _groups(ask.messages[len(system) :])
    room = context_tokens - ask.max_tokens - ask.call_tokens - tools_weight(ask) - sum(map(weight, system))
    fitting, used = 0, 0
    for group in reversed(groups):
        used += sum(map(weight, group))
        if used > room:
            break
        fitting += 1
    first = len(groups) - fitting
    if 0 < first < len(groups):
        aligned = -(-first // _BLOCK) * _BLOCK
        first = aligned if aligned < len(groups) else first
    kept = groups[first:] or [_squeezed(group, room) for group in groups[-1:]]
    if len(kept) > 1 and kept[0][0].role == "assistant" and not kept[0][0].calls:
        kept = kept[1:]
    return msgspec.structs.replace(ask, messages=(*system, *(turn for group in kept for turn in group)))


def _groups(turns: Sequence[ChatTurn]) -> list[list[ChatTurn]]:
    """Turns that only go together: calls and their results."""
    groups: list[list[ChatTurn]] = []
    for turn in turns:
        if turn.role == "tool" and groups:
            groups[-1].append(turn)
        else:
            groups.append([turn])
    return groups


def _squeezed(group: list[ChatTurn], room: int) -> list[ChatTurn]:
    """A group that alone is too long: of each text the last part, of a tool's result the first."""
    fixed = sum(weight(msgspec.structs.replace(turn, content="")) for turn in group)
    share = max(room - fixed, 0) // len(group)
    return [msgspec.structs.replace(turn, content=_part(turn, share)) for turn in group]


def _part(turn: ChatTurn, tokens: int) -> str:
    encoded, size = turn.content.encode(), int(max(tokens, 16) * _CHARS_PER_TOKEN)
    return (encoded[:size] if turn.role == "tool" else encoded[-size:]).decode(errors="ignore")
