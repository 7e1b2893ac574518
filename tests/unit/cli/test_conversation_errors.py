"""What goes wrong in a conversation is told in one line, whichever task it went wrong in."""

from __future__ import annotations

import asyncio

import pytest

from duologue.cli.conversation_errors import told_in_one_line
from duologue.cli.errors import UserError
from duologue.client import DuplexConnectionError

pytestmark = pytest.mark.unit


async def _failing(error: Exception) -> None:
    raise error


async def _together(*errors: Exception) -> None:
    async with asyncio.TaskGroup() as group:
        for error in errors:
            group.create_task(_failing(error))


def test_the_first_cause_in_a_group_is_told() -> None:
    with pytest.raises(UserError, match="^no connection$"), told_in_one_line():
        asyncio.run(_together(DuplexConnectionError("no connection"), ValueError("what came of it")))


def test_a_user_error_in_a_group_passes_as_it_is() -> None:
    with pytest.raises(UserError, match="^no answer$"), told_in_one_line():
        asyncio.run(_together(UserError("no answer")))


def test_a_plain_one_is_told_too() -> None:
    with pytest.raises(UserError, match="^no connection$"), told_in_one_line():
        raise DuplexConnectionError("no connection")


def test_our_own_faults_are_not_hidden() -> None:
    with pytest.raises(ExceptionGroup), told_in_one_line():
        asyncio.run(_together(ZeroDivisionError("a fault")))
