"""What a check found: one named result each, as a table or as JSON."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Verdict = Literal["passed", "failed", "declared"]
FAILED: Final = 1


class Result(msgspec.Struct, frozen=True):
    """`declared`: the pipeline says that it cannot promise this, and the check looked at what is left of it."""

    name: str
    verdict: Verdict
    detail: str = ""
    seconds: float = 0.0


class Report(msgspec.Struct, frozen=True):
    pipeline: str
    results: tuple[Result, ...]

    @property
    def exit_code(self) -> int:
        return FAILED if any(result.verdict == "failed" for result in self.results) else 0


def line(result: Result) -> str:
    """For a person."""
    detail = f"  {result.detail}" if result.detail else ""
    return f"  {result.verdict:<8}  {result.name:<30}  {result.seconds:6.2f} s{detail}"


def summary(report: Report) -> str:
    counts = {"passed": 0, "failed": 0}
    for result in report.results:
        counts[result.verdict] = counts.get(result.verdict, 0) + 1
    return "  " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def as_json(report: Report) -> str:
    return msgspec.json.encode(report).decode()
