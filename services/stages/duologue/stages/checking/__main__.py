"""`python -m duologue.stages.checking NAME|PATH.toml [--json]`: the conformance suite, in this environment.

`duologue model check` runs it with the interpreter of the pipeline's environment. Exit code 1: a check failed;
2: there is no such pipeline.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from duologue.model.catalog import find_pipeline, pipeline_path
from duologue.model.pipeline import PipelineError
from duologue.stages.checking.report import Report, Result, as_json, line, summary
from duologue.stages.checking.suite import check


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        pipeline = find_pipeline(options.pipeline)
        folder = pipeline_path(options.pipeline).parent
    except PipelineError as error:
        sys.stderr.write(f"duologue model check: {error}\n")
        return 2
    logging.basicConfig(level=logging.CRITICAL, stream=sys.stderr)  # what engines log of planned failures
    if not options.json:
        _say(f"{pipeline.name}")
    report: Report = check(pipeline, folder, lambda result: None if options.json else _show(result))
    _say(as_json(report) if options.json else summary(report))
    return report.exit_code


def _show(result: Result) -> None:
    _say(line(result))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="duologue model check", description="The conformance suite of a model.")
    parser.add_argument("pipeline", help="the name of an installed pipeline, or a TOML file")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    return parser


if __name__ == "__main__":
    sys.exit(main())
