"""Every fuzzed decoder keeps its promises for its own seeds, and for every input that once broke one."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from fuzz import trees
from fuzz.__main__ import Result, line
from fuzz.bounds import PRODUCT, TooLarge, TooSlow, bounded
from fuzz.quoted import MOST_CHARACTERS, quoted, unquoted
from fuzz.registry import TARGETS
from fuzz.replay import FOUND, replay, target_of
from fuzz.target import Target

from duologue.protocol.realtime import json_places
from duologue.protocol.realtime.json_places import find_not_finite

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def untraced() -> Iterator[None]:
    yield
    tracemalloc.stop()


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds_break_no_promise_and_some_are_taken(name: str) -> None:
    target, taken = TARGETS[name], 0
    for seed in list(target.seeds())[::3]:
        with bounded(target, len(seed)):
            taken += target.check(seed)
    assert taken > 0


@pytest.mark.parametrize("name", TARGETS)
def test_changes_keep_the_form_of_a_message(name: str) -> None:
    """Of what is changed by its form some is still taken: else the search would stay outside."""
    target, rng = TARGETS[name], Random(1)
    seeds = list(target.seeds())
    changed = [target.mutate(rng.choice(seeds), rng) for _ in range(120)]
    if not any(changed):
        pytest.skip("its form is a few bytes: nothing is known of it")
    assert any(target.check(data) for data in changed if data is not None)


@pytest.mark.parametrize("file", sorted(FOUND.iterdir()), ids=lambda file: file.name)
def test_what_was_found_stays_mended(file: Path) -> None:
    assert target_of(file).name in TARGETS
    replay(file)


def _of(target: str, **bounds: int) -> Target:
    known = TARGETS[target]
    return Target("tried", known.check, known.seeds, known.mutate, known.modules, **bounds)


def test_what_runs_too_long_is_stopped() -> None:
    """The bound is lines of the product, so it is the same on every machine."""
    slow = _of("client-frames", base_lines=50, lines_per_byte=0)
    with pytest.raises(TooSlow), bounded(slow, 10_000):
        find_not_finite([0.0] * 1000)


def test_only_the_product_is_counted_wherever_the_checkout_is() -> None:
    """A checkout in a folder called duologue has that name in the path of every file, and of its environment."""
    assert json_places.__file__.startswith(PRODUCT)
    assert not __file__.startswith(PRODUCT) and not pytest.__file__.startswith(PRODUCT)
    assert not any(Path(root).parent.name in ("", "tests", "site-packages") for root in PRODUCT)


def test_an_input_comes_back_from_a_log() -> None:
    whole = quoted("checkpoints", bytes(range(256)) * 8)
    assert whole is not None and len(whole.split()) == 1
    assert unquoted(whole) == ("checkpoints", bytes(range(256)) * 8)
    for cut in (
        whole[:-8],
        whole[:-1],
        "checkpoints:",
        "checkpoints",
        "checkpoints:!!!!",
        whole[:13] + "AAAA" + whole[13:],
    ):
        with pytest.raises(ValueError):
            unquoted(cut)
    assert quoted("checkpoints", Random(1).randbytes(MOST_CHARACTERS)) is None


def test_a_search_that_ended_without_a_word_has_failed(tmp_path: Path) -> None:
    """The machine may kill it: for what it takes of memory, say."""
    assert line(Result("checkpoints")).startswith("clean")
    assert line(Result("checkpoints", code=-9)).startswith("FAILED")
    (left := tmp_path / "checkpoints.crash-1").write_bytes(b"hostile")
    told = line(Result("checkpoints", code=77, told="KeyError", left=[left]))
    assert f"REPLAY={quoted('checkpoints', b'hostile')}" in told and "KeyError" in told


def test_what_takes_too_much_is_told() -> None:
    large = _of("client-frames", base_bytes=1000, bytes_per_byte=1)
    with pytest.raises(TooLarge), bounded(large, 10):
        bytearray(100_000)


def test_trees_are_written_as_they_were_read() -> None:
    for text in (b'{"a":1,"a":[2.50,null,true,"\xc3\xa9"],"b":{}}', b"[1e400,NaN]"):
        assert trees.write_json(trees.read_json(text)) == text
    packed = trees.write_msgpack(trees.Pairs([("a", [1, b"x", None])]))
    assert trees.write_msgpack(trees.read_msgpack(packed)) == packed
