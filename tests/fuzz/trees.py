"""Messages as trees, JSON or msgpack, and changes to them that a decoder's first check does not stop.

A tree is a list, a `Pairs` (an object: keys may come twice), or a leaf. A `Token` is a leaf that is written as it is:
so a tree can hold what no encoder writes.
"""

from __future__ import annotations

import json
import struct
from random import Random
from typing import Any

import msgspec

MAX_PLACES = 5000


class Pairs(list[Any]):
    """The members of an object in order: (key, value)."""


class Token(bytes):
    """The encoded form of a value, or of no value at all."""


# -- JSON -------------------------------------------------------------------------------------------------


def read_json(data: bytes) -> Any:
    """Raises ValueError, RecursionError."""
    text = data.decode("utf-8", "surrogatepass")

    def number(digits: str) -> Token:
        return Token(digits.encode())

    return json.loads(text, object_pairs_hook=Pairs, parse_int=number, parse_float=number, parse_constant=number)


def write_json(tree: Any) -> bytes:
    if isinstance(tree, Token):
        return bytes(tree)
    if isinstance(tree, Pairs):
        return b"{%b}" % b",".join(write_json(key) + b":" + write_json(value) for key, value in tree)
    if isinstance(tree, list):
        return b"[%b]" % b",".join(map(write_json, tree))
    return json.dumps(tree, ensure_ascii=False).encode("utf-8", "surrogatepass")


# -- msgpack ----------------------------------------------------------------------------------------------


def read_msgpack(data: bytes) -> Any:
    """Raises ValueError, RecursionError."""
    return _paired(msgspec.msgpack.decode(data))


def _paired(value: Any) -> Any:
    if isinstance(value, dict):
        return Pairs([(key, _paired(one)) for key, one in value.items()])
    return [_paired(one) for one in value] if isinstance(value, list) else value


def write_msgpack(tree: Any) -> bytes:
    if isinstance(tree, Token):
        return bytes(tree)
    if isinstance(tree, Pairs):
        members = b"".join(write_msgpack(key) + write_msgpack(value) for key, value in tree)
        return struct.pack(">BI", 0xDF, len(tree)) + members
    if isinstance(tree, list):
        return struct.pack(">BI", 0xDD, len(tree)) + b"".join(map(write_msgpack, tree))
    return msgspec.msgpack.encode(tree)


# -- changes ----------------------------------------------------------------------------------------------


def places(tree: Any) -> list[tuple[Any, int]]:
    """Every place in the tree, up to a bound: its parent and its index there."""
    found: list[tuple[Any, int]] = []
    todo = [tree]
    while todo and len(found) < MAX_PLACES:
        parent = todo.pop()
        for index, child in enumerate(parent):
            found.append((parent, index))
            value = child[1] if isinstance(parent, Pairs) else child
            if isinstance(value, list):
                todo.append(value)
    return found


def value_at(parent: Any, index: int) -> Any:
    return parent[index][1] if isinstance(parent, Pairs) else parent[index]


def put(parent: Any, index: int, value: Any) -> None:
    parent[index] = (parent[index][0], value) if isinstance(parent, Pairs) else value


def change(tree: Any, rng: Random, leaves: list[Any], keys: list[str]) -> Any:
    """One to three changes. `leaves`: hostile values; `keys`: names that mean something."""
    box = [tree]
    for _ in range(rng.randint(1, 3)):
        found = places(box)
        parent, index = rng.choice(found)
        match rng.randrange(8):
            case 0 | 1 | 2:
                put(parent, index, rng.choice(leaves))
            case 3:
                other, at = rng.choice(found)
                put(parent, index, _copy(value_at(other, at)))
            case 4 if parent is not box:
                del parent[index]
            case 5:
                parent.insert(index, _copy(parent[index]) if parent is not box else rng.choice(leaves))
            case 6 if isinstance(parent, Pairs):
                parent[index] = (rng.choice(keys), parent[index][1])
            case _:
                put(parent, index, _altered(value_at(parent, index), rng))
    return box[0]


def _copy(value: Any) -> Any:
    if isinstance(value, Pairs):
        return Pairs([(key, _copy(one)) for key, one in value])
    if isinstance(value, tuple):
        return (value[0], _copy(value[1]))
    return [_copy(one) for one in value] if isinstance(value, list) else value


def _altered(value: Any, rng: Random) -> Any:
    """Something near it."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return max(-(2**63), min(2**64 - 1, value + rng.choice((-1, 1, 255, -256, 2**31, -(2**31), 2**53))))
    if isinstance(value, float):
        return value * rng.choice((-1.0, 0.0, 1e300, 1e-300))
    if isinstance(value, (str, bytes)) and not isinstance(value, Token):
        at = rng.randint(0, len(value))
        return rng.choice((value[:at], value[at:], value * 2, value[at:] * 3))
    if isinstance(value, Pairs):
        return Pairs([*value, *_copy(value)])
    return [value]
