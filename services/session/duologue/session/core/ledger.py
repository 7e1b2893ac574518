"""The playback ledger of one response: what was generated, sent, played and committed of its audio. SANS-I/O.

Rule 1. The cursors are cumulative milliseconds, never go back, and each is at most the one before it.
Rule 2. Audio counts as playing until it is acknowledged or its duration has passed since its first delta was
        written: a client that never acknowledges cannot hold the session.
Rule 3. A hard truncation only lowers; text that was cut never grows back.
"""

from __future__ import annotations

import msgspec

from duologue.protocol.duplex import Playback, TextMark, truncate_text


class PlaybackLedger(msgspec.Struct, array_like=True):
    response_id: str
    generated_ms: float = 0.0
    sent_ms: float = 0.0
    played_ms: float = 0.0
    committed_ms: float = 0.0
    first_sent_at: float = -1.0
    acked: bool = False
    complete: bool = False
    """Generation is over."""
    commits_all: bool = False
    """It ended normally under `commit_all_on_done`."""
    cap_ms: float = -1.0
    """Hard truncation; -1: none."""
    text: str = ""
    marks: list[tuple[int, int]] = []
    """(characters, ms), both cumulative."""

    def cursors(self) -> Playback:
        return Playback(
            generated_ms=round(self.generated_ms),
            sent_ms=round(self.sent_ms),
            played_ms=round(self.played_ms),
            committed_ms=round(self.committed_ms),
        )

    def sent(self, through_ms: float, now: float) -> None:
        """Audio up to `through_ms` is on the socket or in the journal."""
        if self.first_sent_at < 0:
            self.first_sent_at = now
        self.sent_ms = max(self.sent_ms, through_ms)

    def acknowledge(self, played_ms: float, committed_ms: float | None) -> bool:
        """Monotonic, clamped to what was sent. Whether anything moved."""
        before = self.acked, self.played_ms, self.committed_ms
        played = min(max(played_ms, 0.0), self.sent_ms)
        wanted = played if committed_ms is None else min(max(committed_ms, 0.0), self.sent_ms)
        self.acked = True
        self.played_ms = max(self.played_ms, played)
        self.committed_ms = max(self.committed_ms, min(wanted, self.played_ms))
        return before != (self.acked, self.played_ms, self.committed_ms)

    def elapsed_ms(self, now: float) -> float:
        """How far a client that plays without pause can have come."""
        if self.first_sent_at < 0:
            return 0.0
        return min((now - self.first_sent_at) * 1000, self.sent_ms)

    def ends_at(self) -> float:
        """When its audio has passed in real time; -1 if none was written yet."""
        return -1.0 if self.first_sent_at < 0 else self.first_sent_at + self.generated_ms / 1000

    def playing(self, now: float) -> bool:
        if self.cap_ms >= 0 or self.generated_ms <= 0:
            return False
        if self.first_sent_at < 0:
            return True
        return self.played_ms < self.generated_ms and now < self.ends_at()

    def heard_ms(self, now: float) -> float:
        """What counts as heard: acknowledged, or without acknowledgements the time that has passed."""
        heard = self.committed_ms if self.acked else self.elapsed_ms(now)
        if self.complete and self.commits_all and not self.acked:
            heard = self.generated_ms
        return heard if self.cap_ms < 0 else min(heard, self.cap_ms)

    def truncate(self, ms: float) -> float:
        """Cap it for good; returns the effective value."""
        effective = min(max(ms, 0.0), self.generated_ms)
        self.cap_ms = effective if self.cap_ms < 0 else min(self.cap_ms, effective)
        return effective

    def text_at(self, ms: float) -> str:
        """The text that had been said at `ms`."""
        if self.generated_ms <= 0:
            return self.text
        return truncate_text(self.text, self.text_marks(), ms, self.generated_ms)

    def text_marks(self) -> tuple[TextMark, ...]:
        return tuple(TextMark(chars, at_ms) for chars, at_ms in self.marks)
