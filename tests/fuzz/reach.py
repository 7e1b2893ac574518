"""How much of its modules a corpus reaches: `python -m fuzz.reach NAME CORPUS`, lines inside functions that were run.

In a process of its own: the search runs the product in another form.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from fuzz.registry import TARGETS

Line = tuple[str, int]


def main(name: str, corpus: str) -> None:
    target = TARGETS[name]
    wanted = {line for module in target.modules for line in lines_of(module)}
    files, seen = {file for file, _ in wanted}, set[Line]()

    def line(frame: FrameType, event: str, arg: Any) -> Any:
        seen.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    def call(frame: FrameType, event: str, arg: Any) -> Any:
        return line if frame.f_code.co_filename in files else None

    sys.settrace(call)
    for file in Path(corpus).iterdir():
        with suppress(Exception):  # what breaks a promise has been told of
            target.check(file.read_bytes())
    sys.settrace(None)
    print(f"{len(seen & wanted)} of {len(wanted)} lines")
    for path in sorted(files):
        missed = sorted(number for one, number in wanted - seen if one == path)
        if missed:
            print(f"  {Path(path).name}: not {', '.join(map(str, missed))}", file=sys.stderr)


def lines_of(module: str) -> set[Line]:
    path = str(importlib.import_module(module).__file__)
    whole = compile(Path(path).read_text(), path, "exec")
    return {(path, number) for code in _functions(whole) for number in _lines(code)}


def _functions(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & 0x2:  # it has locals of its own: a function, no class body
                yield constant
            yield from _functions(constant)


def _lines(code: CodeType) -> set[int]:
    return {number for _, _, number in code.co_lines() if number and number != code.co_firstlineno}


if __name__ == "__main__":
    main(*sys.argv[1:])
