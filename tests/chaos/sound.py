"""What a session heard is its own tone without a break; a response that failed or was cut short may end in one."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np
from chaos.canary import breaks, levels, pitch, samples_of
from chaos.recording import Line
from chaos.violations import Violation

FOREIGN: Final = 0.02
"""Of the amplitude of the own tone."""
AUDIBLE: Final = 100.0

SoundRule = Callable[[int, Sequence[Line]], Iterator[Violation]]


def deltas(lines: Sequence[Line]) -> Iterator[tuple[Line, bytes]]:
    """Each piece of sound, with its line."""
    for line in lines:
        if line.mark == "<" and line.type == "response.output_audio.delta":
            yield line, base64.b64decode(line.frame["delta"])


def foreign(sessions: int, session: int, lines: Sequence[Line]) -> Iterator[Violation]:
    """No piece holds the tone of another session."""
    pitches = tuple(pitch(n) for n in range(sessions))
    for line, pcm in deltas(lines):
        found = levels(samples_of(pcm), pitches)
        others = np.delete(found, session)
        if others.size and others.max() > max(AUDIBLE, FOREIGN * found[session]):
            whose = int(np.argmax(np.where(np.arange(sessions) == session, 0.0, found)))
            yield Violation("foreign tone", session, line.at, f"the tone of session {whose} at {found[whose]:.0f}")


def unbroken(session: int, lines: Sequence[Line]) -> Iterator[Violation]:
    """The sine goes on from piece to piece, from one answer to the next."""
    hz = pitch(session)
    run: list[tuple[float, bytes]] = []
    for line in lines:
        if line.mark != "<":
            continue
        if line.type == "response.output_audio.delta":
            run.append((line.at, base64.b64decode(line.frame["delta"])))
        elif line.type == "session.resync_required" or (
            line.type == "response.done" and line.frame["response"]["status"] != "completed"
        ):
            yield from _breaks(session, hz, run)
            run = []
    yield from _breaks(session, hz, run)


def _breaks(session: int, hz: float, run: Sequence[tuple[float, bytes]]) -> Iterator[Violation]:
    """Once for each piece in which, or before which, the sine breaks."""
    if not run:
        return
    ends = np.cumsum([len(pcm) // 2 for _, pcm in run])
    found = breaks(samples_of(b"".join(pcm for _, pcm in run)), hz)
    # A break at a seam shows on both sides of it: it belongs to the piece that begins there.
    pieces = {int(np.searchsorted(ends, at + 1, side="right")) for at in found}
    for piece in sorted(min(n, len(run) - 1) for n in pieces):
        yield Violation(
            "phase jump", session, run[piece][0], f"in piece {piece + 1} of {len(run)} since the last report"
        )


def sound_rules(sessions: int) -> tuple[SoundRule, ...]:
    """The rules of sound, for so many sessions."""
    return partial(foreign, sessions), unbroken
