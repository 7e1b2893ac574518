"""Reading what a script replied: in the form that it has, or as an answer that is none.

The store may hold what somebody else put there, or what another version wrote. Nothing is known then, which is what
`StoreUnavailable` says; the caller has its way of going on without an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from duologue.store.ports import StoreUnavailable

P = ParamSpec("P")
R = TypeVar("R")


def reads_reply(read: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """`read` takes a reply, and is given nothing else that could be wrong. Raises StoreUnavailable."""

    @wraps(read)
    def reading(reply: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return read(reply, *args, **kwargs)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise StoreUnavailable(f"the reply is of another form: {error}") from error

    return reading
