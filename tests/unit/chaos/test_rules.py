"""Each rule of the checker, by a recording that breaks it: a rule that finds nothing proves nothing."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from chaos.checker import rules_for
from chaos.recording import Line
from chaos.violations import history
from unit.chaos.recorded import Recorded, good, tone

pytestmark = pytest.mark.unit

SESSIONS = 4


def found(it: Recorded) -> list[str]:
    """The broken rules, in the order of the rules."""
    lines = tuple(it.lines)
    return [violation.rule for rule in rules_for(SESSIONS) for violation in rule(it.session, lines)]


@pytest.mark.parametrize("session", range(SESSIONS))
def test_a_session_in_which_all_is_well_breaks_no_rule(session: int) -> None:
    it = good(session)
    it.close()
    assert found(it) == []


def test_what_is_covered_by_failures_breaks_no_rule() -> None:
    it = good()
    it.event("response.created", response={"id": "r3"}, response_id="r3")
    it.audio("r3", tone(0, 5))
    it.done("r3", "failed", "shard_lost")
    it.speak("r4", range(9, 11))  # the failure was reported: the sine may go on elsewhere
    it.sent("response.cancel", "c2")
    it.event("response.created", response={"id": "r5"}, response_id="r5")
    it.done("r5", "cancelled", "client_cancelled")
    it.unnumbered("session.resync_required", head_seq=it.seq + 7)
    it.seq += 7
    it.speak("r6", range(40, 42))
    it.close()
    assert found(it) == []


def doubled(it: Recorded) -> None:
    it.lines.append(it.lines[-1])


def skipped(it: Recorded) -> None:
    it.seq += 1


def swapped(it: Recorded) -> None:
    it.event("response.listen")
    it.event("rate_limits.updated")
    it.lines[-1], it.lines[-2] = it.lines[-2], it.lines[-1]


def spoken_after_its_end(it: Recorded) -> None:
    it.audio("r2", tone(0, 5))


def ended_twice(it: Recorded) -> None:
    it.done("r2")


def never_ended(it: Recorded) -> None:
    it.event("response.created", response={"id": "r9"}, response_id="r9")


def told_after_the_close(it: Recorded) -> None:
    it.event("session.closed", reason="client_close")
    it.event("response.listen")


def unanswered(it: Recorded) -> None:
    it.create("i9", "item_9")


def covered_and_unanswered(it: Recorded) -> None:
    it.create("i9", "item_9")
    it.append("a9")
    it.resumed("a9", 240.0)


def applied_twice(it: Recorded) -> None:
    it.added("item_2")


def refused(it: Recorded) -> None:
    it.create("i9", "item_9")
    it.unnumbered("error", error={"code": "internal_error", "event_id": "i9"})


def deleted_never(it: Recorded) -> None:
    it.sent("conversation.item.delete", "d9", item_id="item_2")


def cancelled_in_silence(it: Recorded) -> None:
    it.sent("response.cancel", "c9")


def cancelled_twice(it: Recorded) -> None:
    it.sent("response.cancel", "c9")
    it.event("response.created", response={"id": "r8"}, response_id="r8")
    it.done("r8", "cancelled", "client_cancelled")
    it.unnumbered("error", error={"code": "response_not_active", "event_id": "c9"})


def sound_lost(it: Recorded) -> None:
    it.append("a9")
    it.resumed("a9", 160.0)


def sound_heard_twice(it: Recorded) -> None:
    it.append("a9")
    it.resumed("a9", 320.0)


def somebody_elses_unit(it: Recorded) -> None:
    it.event("response.created", response={"id": "r8"}, response_id="r8")
    it.audio("r8", tone(2, 5))
    it.done("r8", "failed", "worker_lost")  # so that the sine is not expected to go on


def a_unit_lost(it: Recorded) -> None:
    it.speak("r8", range(6, 8))


def a_unit_doubled(it: Recorded) -> None:
    it.speak("r8", range(4, 6))


def a_unit_lost_within(it: Recorded) -> None:
    it.event("response.created", response={"id": "r8"}, response_id="r8")
    it.audio("r8", tone(0, 5))
    it.audio("r8", tone(0, 7))
    it.done("r8", "failed", "worker_lost")  # what came before the failure must be whole all the same


@pytest.mark.parametrize(
    ("plant", "rules"),
    [
        (doubled, ["doubled", "after the end"]),
        (skipped, ["lost"]),
        (swapped, ["lost", "doubled"]),
        (spoken_after_its_end, ["after the end"]),
        (ended_twice, ["after the end"]),
        (never_ended, ["never ended"]),
        (told_after_the_close, ["after the end", "after the end"]),
        (unanswered, ["command lost"]),
        (covered_and_unanswered, ["covered command lost"]),
        (applied_twice, ["applied twice"]),
        (refused, ["command lost"]),
        (deleted_never, ["command lost"]),
        (cancelled_in_silence, ["command lost"]),
        (cancelled_twice, ["applied twice"]),
        (sound_lost, ["covered command lost"]),
        (sound_heard_twice, ["applied twice"]),
        (somebody_elses_unit, ["foreign tone", "phase jump"]),
        (a_unit_lost, ["phase jump"]),
        (a_unit_doubled, ["phase jump"]),
        (a_unit_lost_within, ["phase jump"]),
    ],
)
def test_a_planted_fault_is_found_by_its_rule(plant: Callable[[Recorded], None], rules: list[str]) -> None:
    it = good()
    plant(it)
    it.close()
    assert found(it) == rules


def test_a_session_that_ends_otherwise_is_lost() -> None:
    it = good()
    it.event("session.closed", reason="poison_input")
    it.ended("DuplexSessionClosedError: poison_input", expected=True)
    assert found(it) == ["session lost"]

    gone = good()
    gone.ended("DuplexReconnectError: 60 attempts", expected=False)
    assert found(gone) == ["session lost"]

    cut_while_closing = good()
    cut_while_closing.sent("session.close", "z1")
    cut_while_closing.ended("DuplexConnectionError: 1006", expected=False)
    assert found(cut_while_closing) == []

    cut_off = good()
    assert found(cut_off) == ["session lost"]
    assert [v.rule for rule in rules_for(1) for v in rule(0, ())] == ["session lost"]


def test_a_lost_event_counts_for_each_that_is_missing() -> None:
    it = good()
    it.seq += 5
    it.close()
    (lost,) = [v for rule in rules_for(SESSIONS) for v in rule(0, tuple(it.lines))]
    assert (lost.rule, lost.counts) == ("lost", 5)


def test_the_history_shows_the_lines_around_and_the_faults_between() -> None:
    it = good()
    skipped(it)
    it.close()
    (lost,) = [v for rule in rules_for(SESSIONS) for v in rule(0, tuple(it.lines))]
    told = history(
        lost, it.lines, [(it.lines[4].at, "kill gateway gateway-1"), (1e9, "another")], began=10.0
    ).splitlines()
    mark = next(n for n, row in enumerate(told) if "^^^ lost: session.closed" in row)
    assert "session.closed" in told[mark - 1] and "* kill gateway gateway-1" in "\n".join(told[:mark])
    assert "another" not in "\n".join(told)


def test_a_line_is_told_from_what_is_in_it() -> None:
    created = Line(0.0, "<", {"type": "session.created", "server_event_seq": 9})
    assert created.seq is None
    assert msgspec.structs.replace(created, frame={"type": "response.listen", "server_event_seq": 9}).seq == 9
