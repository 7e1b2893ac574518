"""Whether a process may be given work: named conditions, all of which must hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Verdict(NamedTuple):
    """`reasons`: one line for each condition that does not hold, by name."""

    ready: bool
    reasons: dict[str, str]


class Readiness:
    """A condition is declared unmet and becomes met; draining overrules them all.

    `/health` is not asked here: a process that can answer is alive.
    """

    def __init__(self, *conditions: str) -> None:
        self._unmet: dict[str, str] = dict.fromkeys(conditions, "not yet")
        self._names = set(conditions)
        self._probes: dict[str, Callable[[], str]] = {}
        self._draining = False

    def add_probe(self, name: str, probe: Callable[[], str]) -> None:
        """A condition that is asked for each time: `probe` answers why not, or nothing."""
        self._probes[name] = probe

    def meet(self, name: str) -> None:
        self._check(name)
        self._unmet.pop(name, None)

    def fail(self, name: str, reason: str) -> None:
        self._check(name)
        self._unmet[name] = reason

    def drain(self) -> None:
        """No new work from here on."""
        self._draining = True

    @property
    def draining(self) -> bool:
        return self._draining

    def verdict(self) -> Verdict:
        reasons = dict(self._unmet)
        for name, probe in self._probes.items():
            why_not = probe()
            if why_not:
                reasons[name] = why_not
        if self._draining:
            reasons["draining"] = "no new sessions"
        return Verdict(not reasons, reasons)

    def _check(self, name: str) -> None:
        if name not in self._names:
            raise KeyError(f"no readiness condition is called {name!r}")
