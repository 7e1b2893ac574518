"""How a lost connection is tried again: how often, how soon, and when it is given up. SANS-I/O.

Rule 1. Pauses are drawn, so that the clients of a server that has died do not come back all at once.
Rule 2. `retry_after_ms` of the server is a lower bound: nobody comes earlier, and nobody exactly then.
Rule 3. What cannot succeed is not tried again: a session that is gone, a key that is refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from duologue.client.errors import DuplexClientError, DuplexConnectionError, DuplexResumeError

Draw = Callable[[float, float], float]
"""A number between two, as `random.uniform` draws it."""


class ReconnectPolicy(msgspec.Struct, frozen=True):
    """A lost connection is resumed at most `max_attempts` times in a row, within `deadline_s` of its loss."""

    max_attempts: int = 5
    low_s: float = 0.25
    """The shortest pause before an attempt."""
    high_s: float = 4.0
    """The bound of a pause that doubles with each attempt."""
    deadline_s: float | None = 60.0
    """No attempt begins later than this after the loss. None: only the number of attempts counts."""

    def pause_s(self, attempt: int, retry_after_ms: int | None = None, draw: Draw = random.uniform) -> float:
        """Before attempt 1, 2, ...: between `low_s` and a bound that doubles up to `high_s`, and after what the
        server asked for."""
        jittered = draw(self.low_s, max(self.low_s, min(self.high_s, self.low_s * 2**attempt)))
        asked = 0.0 if retry_after_ms is None else retry_after_ms / 1000
        return jittered if jittered > asked else asked + draw(0.0, self.low_s)

    def is_final(self, error: DuplexClientError) -> bool:
        """Whether trying again makes no sense after this."""
        if isinstance(error, DuplexConnectionError):
            return not error.retryable
        return isinstance(error, DuplexResumeError)


class Attempts:
    """The attempts after one loss, which was at `lost_at` (seconds of any clock)."""

    def __init__(self, policy: ReconnectPolicy, lost_at: float) -> None:
        self.made = 0
        self._policy = policy
        self._lost_at = lost_at

    def next_pause_s(self, now: float, last: DuplexClientError) -> float | None:
        """How long to wait for the next attempt, or None: it is given up. `last` is what happened last."""
        policy = self._policy
        if self.made >= policy.max_attempts or policy.is_final(last):
            return None
        pause_s = policy.pause_s(self.made + 1, last.retry_after_ms)
        if policy.deadline_s is not None and now + pause_s - self._lost_at > policy.deadline_s:
            return None
        self.made += 1
        return pause_s
