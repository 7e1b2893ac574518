"""The deadlines of all sessions of a shard on one timer, run with other work where there is any.

A process that is woken for one small thing pays ten times what the thing costs. A busy shard wakes often
enough for its inputs and outputs: a deadline that has come is carried out then, and the timer is only for a
shard that has nothing else to do.

Rule 1. Nothing runs before its time, and nothing more than `slack_s` after it.
Rule 2. Calls run one after the other, in the order of their times; one that calls in again does not nest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Final

SLACK_S: Final = 0.015


class Alarm:
    """One call at one time, until `cancel`."""

    __slots__ = ("call", "when")

    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self.when = when
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Forget the call, and whatever it holds."""
        self.call = None


class Clockwork:
    """See the module. Times are the loop's."""

    def __init__(self, slack_s: float = SLACK_S) -> None:
        self._slack_s = slack_s
        self._alarms: list[tuple[float, int, Alarm]] = []
        """A heap by time and order of arrival: tuples, which are compared without a call of ours."""
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._running = False
        self.next = inf
        """When the first of them is due."""

    def at(self, when: float, call: Callable[[], None]) -> Alarm:
        self._count += 1
        alarm = Alarm(when, call)
        heappush(self._alarms, (when, self._count, alarm))
        if when < self.next:
            self.next = when
            self._arm()
        return alarm

    def run_due(self, now: float) -> None:
        """Carry out what is due. To be called whenever the process is awake anyway."""
        if now < self.next or self._running:
            return
        alarms = self._alarms
        due: list[tuple[float, int, Alarm]] = []
        while alarms and alarms[0][0] <= now:
            due.append(heappop(alarms))
        self._running = True
        due.reverse()
        try:
            while due:  # what they set anew is for the next time, due or not
                call = due.pop()[2].call
                if call is not None:
                    call()
        finally:
            self._running = False
            for alarm in due:  # one has raised: the others' turn comes
                heappush(alarms, alarm)
            self.next = alarms[0][0] if alarms else inf
            self._arm()

    def _arm(self) -> None:
        """The timer is for the first alarm; one that rings too early would be a wake-up for nothing."""
        due = self.next + self._slack_s
        if self._running or due == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = due
        if due < inf:
            self._timer = asyncio.get_running_loop().call_at(due, self._ring)

    def _ring(self) -> None:
        self._timer, self._timer_at = None, inf
        self.run_due(asyncio.get_running_loop().time())
        self._arm()
