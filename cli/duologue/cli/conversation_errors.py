"""What went wrong in a conversation, as one line for a person: several tasks hold it, and may fail together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from duologue.cli.errors import UserError
from duologue.client import DuplexClientError
from duologue.model.pipeline import PipelineError

_TOLD = (DuplexClientError, PipelineError)


@contextmanager
def told_in_one_line() -> Iterator[None]:
    """Turns what a server, a network or a missing model causes into `UserError`; our own faults pass."""
    try:
        yield
    except _TOLD as error:
        raise UserError(str(error)) from None
    except BaseExceptionGroup as group:
        for cause in _leaves(group):
            if isinstance(cause, UserError):
                raise cause from None
            if isinstance(cause, _TOLD):
                raise UserError(str(cause)) from None
        raise


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
