"""Changes that know the form of a message. What cannot be read as one is left to changes of its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from random import Random
from typing import Any

from fuzz import hostile, trees
from fuzz.target import Mutator


def of_json(seeds: Callable[[], Iterable[bytes]]) -> Mutator:
    return _mutator(seeds, trees.read_json, trees.write_json, hostile.JSON)


def of_msgpack(seeds: Callable[[], Iterable[bytes]]) -> Mutator:
    return _mutator(seeds, trees.read_msgpack, trees.write_msgpack, hostile.MSGPACK)


def of_lines(seeds: Callable[[], Iterable[bytes]]) -> Mutator:
    """A conversation: one message a line. Lines are changed, dropped, doubled and swapped."""
    one = of_json(lambda: (line for seed in seeds() for line in seed.split(b"\n")))

    def mutate(data: bytes, rng: Random) -> bytes | None:
        lines = data.split(b"\n")
        at = rng.randrange(len(lines))
        match rng.randrange(6):
            case 0 if len(lines) > 1:
                del lines[at]
            case 1:
                lines.insert(at, rng.choice(lines))
            case 2:
                other = rng.randrange(len(lines))
                lines[at], lines[other] = lines[other], lines[at]
            case _:
                changed = one(lines[at], rng)
                if changed is None:
                    return None
                lines[at] = changed
        return b"\n".join(lines)

    return mutate


def _mutator(
    seeds: Callable[[], Iterable[bytes]],
    read: Callable[[bytes], Any],
    write: Callable[[Any], bytes],
    leaves: list[Any],
) -> Mutator:
    @cache
    def names() -> list[str]:
        found = {"type": None, "": None}
        for seed in seeds():
            tree = _read(read, seed)
            for parent, index in trees.places([tree]):
                if isinstance(parent, trees.Pairs) and isinstance(parent[index][0], str):
                    found[parent[index][0]] = None
        return list(found)

    def mutate(data: bytes, rng: Random) -> bytes | None:
        tree = _read(read, data)
        if tree is None:
            return None
        try:
            return write(trees.change(tree, rng, leaves, names()))
        except (UnicodeError, RecursionError, OverflowError, TypeError):
            return None

    return mutate


def _read(read: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return read(data)
    except (ValueError, RecursionError):
        return None
