"""The table of codes and the product: what is not reserved is sent by something, what is reserved by nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from duologue.protocol.realtime import errors

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
#: Who may send an error. A client only knows them.
ROOTS = ("shared", "services", "models", "inline")
ANSWER = re.compile(r"return \{ '([a-z_]+)'")
"""What a script of the store refuses with."""
MIN_KNOWN = 12
"""Letters that must be known of a code that is put together, for it to count."""


def product() -> Iterator[tuple[Path, ast.Module]]:
    for root in ROOTS:
        for path in sorted((ROOT / root).rglob("*.py")):
            if path != Path(errors.__file__):
                yield path, ast.parse(path.read_text(encoding="utf-8"))


def told(tree: ast.AST) -> Iterator[str]:
    """Patterns of the strings that are handed on: not those that are only compared or looked up."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Compare | ast.Set | ast.MatchValue):
            continue
        if isinstance(node, ast.Dict):
            for value in node.values:
                yield from told(ast.Expr(value))
            continue
        if isinstance(node, ast.JoinedStr):
            parts = [re.escape(str(part.value)) if isinstance(part, ast.Constant) else r"\w+" for part in node.values]
            if sum(len(part) for part in parts if part != r"\w+") >= MIN_KNOWN:
                yield "".join(parts)
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[a-z_]+", node.value):
            yield node.value
        yield from told(node)


@pytest.fixture(scope="module")
def sent() -> set[str]:
    """The codes that something sends."""
    patterns = {pattern for _, tree in product() for pattern in told(tree)}
    patterns |= {code for path in (ROOT / "shared").rglob("*.lua") for code in ANSWER.findall(path.read_text("utf-8"))}
    plain = patterns & errors.ERROR_CODES.keys()
    built = [re.compile(pattern) for pattern in patterns if r"\w" in pattern]
    return plain | {code for code in errors.ERROR_CODES for pattern in built if pattern.fullmatch(code)}


def test_a_code_that_is_not_reserved_is_sent(sent: set[str]) -> None:
    assert [row.code for row in errors.ERROR_CODES.values() if not row.reserved and row.code not in sent] == []


def test_a_reserved_code_is_sent_by_nothing(sent: set[str]) -> None:
    assert [row.code for row in errors.ERROR_CODES.values() if row.reserved and row.code in sent] == []


def test_a_reserved_code_says_why() -> None:
    reserved = [row.reserved for row in errors.ERROR_CODES.values() if row.reserved]
    assert reserved and all(len(why) > 20 and "|" not in why for why in reserved)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('raise E("bad_event", "no")', {"bad_event", "no"}),
        ('x = {"bad_event": "worker_lost"}', {"worker_lost"}),
        ('if code in {"bad_event"} or code == "worker_lost": pass', set()),
        ('self.fail(f"{kind}_function_call_output")', {r"\w+_function_call_output"}),
        ('f"{a}_{b}"', set()),
    ],
)
def test_what_counts_as_sent(source: str, found: set[str]) -> None:
    assert set(told(ast.parse(source))) == found
