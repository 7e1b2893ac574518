"""What the first message of a socket may be, and how much nonsense a socket may send. SANS-I/O."""

from __future__ import annotations

from collections import deque
from typing import Final, Literal

MAX_UNDECODABLE: Final = 50
UNDECODABLE_WINDOW_S: Final = 10.0

First = Literal["open", "open_default", "resume", "refused"]


def first_message(type_: str, *, resume_only: bool, no_autostart: bool) -> First:
    """What a decodable first message does.

    `open`: its session object opens. `open_default`: a default session is opened, then the command is
    carried out. `refused`: the query forbids it; the socket is closed with 1008.
    """
    if type_ == "session.resume":
        return "resume"
    if resume_only:
        return "refused"
    if type_ == "session.update":
        return "open"
    return "refused" if no_autostart else "open_default"


class Undecodable:
    """Counts frames that yield no command; bounded by its own limit."""

    def __init__(self, limit: int = MAX_UNDECODABLE, window_s: float = UNDECODABLE_WINDOW_S) -> None:
        self._window_s = window_s
        self._times: deque[float] = deque(maxlen=limit)

    def add(self, now: float) -> bool:
        """Count one at `now` (monotonic seconds). True: that was one too many within the window."""
        self._times.append(now)
        return len(self._times) == self._times.maxlen and now - self._times[0] <= self._window_s
