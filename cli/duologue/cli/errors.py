"""What a user can cause: one clear line that says what to do, and exit code 2. Never a traceback."""

from __future__ import annotations


class UserError(Exception):
    """The command cannot be carried out as given. The message is the whole output."""

    exit_code = 2
