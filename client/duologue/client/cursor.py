"""What a client must remember to come back: SANS-I/O.

Rule 1. An event whose number was seen before is dropped; an event without a number is always passed on.
Rule 2. Commands are kept, within a bound, until a resume says which of them the server holds: what came later
        is sent again, in order. The server ignores none and applies none twice, since it names the last one.
Rule 3. The token stays good when the server has lost events (`session.resync_required`): the client goes on from
        the server's head, and is told the conversation.
"""

from __future__ import annotations

from collections import deque
from typing import Any

#: Commands kept for a resume. Beyond it the oldest are given up: a resume then starts at what is left.
KEEP_BYTES = 4 * 1024 * 1024

#: Not part of the conversation: never sent again.
TRANSIENT = frozenset({"session.event_ack", "session.heartbeat", "session.resume", "playback.ack"})


class ResumeCursor:
    def __init__(self, keep_bytes: int = KEEP_BYTES) -> None:
        self.session_id = ""
        self.token = ""
        self.last_seq = 0
        self.given_up = 0
        """Commands that were dropped from the kept ones because there were too many."""
        self._keep_bytes = keep_bytes
        self._kept: deque[tuple[str, str]] = deque()
        self._bytes = 0

    @property
    def resumable(self) -> bool:
        return bool(self.session_id and self.token)

    def sent(self, event_id: str, kind: str, frame: str) -> None:
        """Remember a command that went out; of a transient one only its id, which the server may name."""
        kept = "" if kind in TRANSIENT else frame
        self._kept.append((event_id, kept))
        self._bytes += len(kept) + len(event_id)
        while self._bytes > self._keep_bytes and len(self._kept) > 1:
            self._drop_oldest()
            self.given_up += 1

    def _drop_oldest(self) -> None:
        event_id, frame = self._kept.popleft()
        self._bytes -= len(frame) + len(event_id)

    def is_new(self, seq: int | None) -> bool:
        """Take the number of an event, if it has one; False if it was seen before."""
        if seq is None:
            return True
        if seq <= self.last_seq:
            return False
        self.last_seq = seq
        return True

    def learn(self, session_id: str, token: str) -> None:
        """Identity and the newest token, of `session.created` and `session.resumed`."""
        self.session_id = session_id or self.session_id
        self.token = token or self.token

    def claim(self) -> dict[str, Any]:
        """The `session.resume` that continues here."""
        return {
            "type": "session.resume",
            "session_id": self.session_id,
            "resume_token": self.token,
            "last_received_server_event_seq": self.last_seq,
        }

    def to_resend(self, last_client_event_id: str | None) -> list[str]:
        """The frames after the last command that the server holds.

        A name that is not among the kept ones is older than them if some were given up; otherwise it was
        another client's, and nothing of ours is known to be missing.
        """
        ids = [event_id for event_id, _ in self._kept]
        if last_client_event_id in ids:
            for _ in range(ids.index(last_client_event_id) + 1):
                self._drop_oldest()
        elif last_client_event_id is not None and not self.given_up:
            return []
        return [frame for _, frame in self._kept if frame]

    def skip_to(self, seq: int) -> None:
        """The server no longer has what comes before `seq`: go on from there."""
        self.last_seq = max(self.last_seq, seq)
