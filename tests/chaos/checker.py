"""The checker: all rules over all recordings. It reads what clients recorded, and nothing else."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import msgspec
from chaos.answers import answered, cancels, sound_is_accounted
from chaos.order import lives, numbers, terminals
from chaos.recording import Line, read, recordings
from chaos.sound import sound_rules
from chaos.violations import Rule, Violation, history

HEARD: Final = ("response.output_audio.delta", "response.listen")
"""Of these there is one for each unit of 80 ms."""


class Verdict(msgspec.Struct):
    """Of a session, or of a whole run."""

    violations: list[Violation] = []
    """In the order of time."""
    first: str = ""
    """The history of the first of them."""
    counts: Counter[str] = msgspec.field(default_factory=Counter)
    """Events, commands, resumes, gaps told."""
    ends: Counter[str] = msgspec.field(default_factory=Counter)
    """Ends of responses, by status and reason."""
    heard: list[Sequence[float]] = []
    """Of each recording, when its model was heard."""

    def count(self, rule: str) -> int:
        return sum(violation.counts for violation in self.violations if violation.rule == rule)


def rules_for(sessions: int) -> tuple[Rule, ...]:
    return lives, numbers, terminals, answered, cancels, sound_is_accounted, *sound_rules(sessions)


def check(folder: Path, sessions: int, faults: Sequence[tuple[float, str]] = (), began: float = 0.0) -> Verdict:
    """`faults` and `began` are for histories. `sessions`: how many clients there were."""
    whole = Verdict()
    one = partial(check_session, sessions, faults, began)
    given = recordings(folder)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a process for each core already
    with ProcessPoolExecutor(os.cpu_count() or 1, get_context("spawn")) as pool:
        for verdict in pool.map(one, given):
            _join(whole, verdict)
    return whole


def check_session(
    sessions: int, faults: Sequence[tuple[float, str]], began: float, recording: tuple[int, Path]
) -> Verdict:
    """One recording, with the number of its client."""
    session, path = recording
    lines = tuple(read(path))
    found = [violation for rule in rules_for(sessions) for violation in rule(session, lines)]
    found.sort(key=lambda violation: violation.at)
    verdict = Verdict(found, heard=[_heard(lines)])
    if found:
        verdict.first = f"{path.stem}:\n{history(found[0], lines, faults, began)}"
    for line in lines:
        _count(verdict, line)
    return verdict


def _heard(lines: Sequence[Line]) -> Sequence[float]:
    """When the model was heard, until the client itself cut its line."""
    dropped = next((line.at for line in lines if "dropped" in line.frame), float("inf"))
    return array("d", (line.at for line in lines if line.type in HEARD and line.at < dropped))


def _join(whole: Verdict, verdict: Verdict) -> None:
    if verdict.violations and (not whole.violations or verdict.violations[0].at < whole.violations[0].at):
        whole.first = verdict.first
    whole.violations = sorted(whole.violations + verdict.violations, key=lambda violation: violation.at)
    whole.counts += verdict.counts
    whole.ends += verdict.ends
    whole.heard += verdict.heard


def _count(verdict: Verdict, line: Line) -> None:
    if line.mark == ">":
        verdict.counts["commands"] += "event_id" in line.frame
    if line.mark != "<":
        return
    verdict.counts["events"] += 1
    verdict.counts["resumes"] += line.type == "session.resumed"
    verdict.counts["gaps told"] += line.type == "session.resync_required"
    if line.type == "response.done":
        response = line.frame["response"]
        reason = (response.get("status_details") or {}).get("reason", "")
        verdict.ends[f"{response['status']} {reason}".strip()] += 1
