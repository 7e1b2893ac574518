"""What the model counted: for each response, and for the session as a whole. SANS-I/O.

Rule 1. Nothing is counted here: a model tells tokens of its own, with an output or when it is asked at the end of a
        response. So a unit of audio costs nothing, and a model that counts nothing has no `usage`.
Rule 2. What is told while no response is open belongs to the session alone. The totals are in every checkpoint.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from duologue.model.outputs import Usage
from duologue.protocol.duplex import JsonObject
from duologue.session.core.context import SessionContext
from duologue.session.core.engine_session import OpenResponse


def add(one: Usage | None, other: Usage) -> Usage:
    if one is None:
        return other
    return Usage(**{name: getattr(one, name) + getattr(other, name) for name in Usage.__struct_fields__})


def count(ctx: SessionContext, told: Usage) -> None:
    """The model tells what it took since it last told."""
    if ctx.state.response is not None:
        ctx.state.response.usage = add(ctx.state.response.usage, told)
    _total(ctx, told)


def of_response(ctx: SessionContext, response: OpenResponse) -> JsonObject | UnsetType:
    """The `usage` of a response that ends now, in OpenAI's shape."""
    last = ctx.plugin.take_usage(ctx.model)
    if last is not None:
        response.usage = add(response.usage, last)
        _total(ctx, last)
    return UNSET if response.usage is None else shape(response.usage)


def _total(ctx: SessionContext, told: Usage) -> None:
    ctx.state.used = add(ctx.state.used, told)
    for kind, tokens in msgspec.structs.asdict(told).items():
        if tokens:
            ctx.observed.tokens[kind] = ctx.observed.tokens.get(kind, 0) + tokens


def shape(usage: Usage) -> JsonObject:
    """As OpenAI's API has it."""
    came = usage.input_text_tokens + usage.input_audio_tokens
    went = usage.output_text_tokens + usage.output_audio_tokens
    return {
        "total_tokens": came + went,
        "input_tokens": came,
        "output_tokens": went,
        "input_token_details": {
            "text_tokens": usage.input_text_tokens,
            "audio_tokens": usage.input_audio_tokens,
            "cached_tokens": usage.cached_tokens,
        },
        "output_token_details": {
            "text_tokens": usage.output_text_tokens,
            "audio_tokens": usage.output_audio_tokens,
        },
    }
