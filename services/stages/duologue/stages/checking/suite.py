"""The conformance suite of one model: every check in order, one result each, whatever happens in one of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from duologue.model.engine import StageRefused
from duologue.model.pipeline import PipelineError, PipelineSpec
from duologue.protocol.duplex import RealtimeProtocolError
from duologue.stages.checking import engine_checks as engines
from duologue.stages.checking import export_checks as exports
from duologue.stages.checking import plugin_checks as plugin
from duologue.stages.checking import talk_checks as talks
from duologue.stages.checking.report import Report, Result
from duologue.stages.checking.subject import CheckFailed, Declared, Subject


class Check(NamedTuple):
    name: str
    run: Callable[[Subject], str]


#: A conversation comes first: the plugin's checks make the calls of it again.
FIRST = Check("answers", talks.answers)
CHECKS = (
    Check("says what it is", plugin.says_what_it_is),
    Check("imports no engine", plugin.imports_nothing_heavy),
    Check("pure", plugin.is_pure),
    Check("deterministic state and plans", plugin.is_deterministic),
    Check("state survives checkpoints", plugin.state_survives),
    Check("usage adds up", plugin.usage_adds_up),
    Check("unknown options are named", plugin.unknown_options_are_named),
    Check("answers turns", talks.answers_turns),
    Check("repeats itself", talks.repeats_itself),
    Check("batch equals solo", talks.batch_equals_solo),
    Check("cancel at each step", talks.cancels_at_each_step),
    Check("goes on after a failed unit", talks.goes_on_after_a_failed_unit),
    Check("a full context", talks.survives_a_full_context),
    Check("rebuilt after a loss", talks.is_rebuilt),
    Check("goes on elsewhere", exports.goes_on_elsewhere),
    Check("close is idempotent", engines.closes_twice),
    Check("refuses when full", engines.refuses_when_full),
    Check("refuses a bad configuration", engines.refuses_what_it_cannot_read),
    Check("reads only when woken", engines.reads_only_when_woken),
    Check("all slots back", engines.gives_everything_back),
    Check("fences and lasts", engines.keeps_the_contract),
)


def check(
    pipeline: PipelineSpec,
    folder: Path,
    on_result: Callable[[Result], None] = lambda result: None,
    only: Collection[str] | None = None,
) -> Report:
    """Load the model and run everything, or `only` the checks of these names. `folder`: where files of the `[check]`
    table are."""
    results: list[Result] = []

    def note(result: Result) -> bool:
        results.append(result)
        on_result(result)
        return result.verdict != "failed"

    started = time.monotonic()
    try:
        subject = Subject(pipeline, folder)
    except (PipelineError, ImportError) as error:
        note(Result("loads", "failed", str(error), time.monotonic() - started))
        return Report(pipeline.name, tuple(results))
    note(Result("loads", "passed", f"{len(pipeline.stages)} stages, warm", time.monotonic() - started))
    try:
        if note(_run(FIRST, subject)):  # everything else needs a conversation
            for one in CHECKS:
                if only is None or one.name in only:
                    note(_run(one, subject))
    finally:
        subject.stack.shut_down()
    return Report(pipeline.name, tuple(results))


def _run(one: Check, subject: Subject) -> Result:
    started = time.monotonic()
    try:
        detail = one.run(subject)
    except Declared as declared:
        return Result(one.name, "declared", str(declared), time.monotonic() - started)
    except (CheckFailed, StageRefused, RealtimeProtocolError, PipelineError, AssertionError) as failed:
        return Result(one.name, "failed", str(failed), time.monotonic() - started)
    except Exception as error:
        # The model's own code, whatever it raises: the other checks are still of use.
        return Result(one.name, "failed", f"{type(error).__name__}: {error}", time.monotonic() - started)
    return Result(one.name, "passed", detail, time.monotonic() - started)
