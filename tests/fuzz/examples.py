"""Examples of a msgspec type, made from its schema: the corpus cannot fall behind the product.

`pick` chooses among the kinds of a union and the values of a literal, so a few picks show every spelling once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fuzz.trees import Pairs
from msgspec import inspect as mi

Known = Mapping[str, Callable[[int], Any]]
"""What a field of this name holds where its type says only that it is an object."""

PICKS = 4


def examples(kind: Any, known: Known, *, encoded: bool) -> list[Any]:
    """Trees of this type: with every field, and with the required ones alone. `encoded`: bytes are base64 text."""
    shapes = [shape for shape in _members(mi.type_info(kind)) if not isinstance(shape, mi.NoneType)]
    maker = _Maker(known, encoded)
    return [maker.make(shape, pick, full) for shape in shapes for pick, full in _variants()]


def _variants() -> list[tuple[int, bool]]:
    return [(0, False), *((pick, True) for pick in range(PICKS))]


def _members(shape: mi.Type) -> tuple[mi.Type, ...]:
    if isinstance(shape, mi.Metadata):
        return _members(shape.type)
    return shape.types if isinstance(shape, mi.UnionType) else (shape,)


class _Maker:
    def __init__(self, known: Known, encoded: bool) -> None:
        self._known, self._encoded = known, encoded

    def make(self, shape: mi.Type, pick: int, full: bool, name: str = "", depth: int = 0) -> Any:
        kinds = [one for one in _members(shape) if not isinstance(one, mi.NoneType)] or [mi.NoneType()]
        kind = kinds[pick % len(kinds)]
        match kind:
            case mi.StructType():
                return self._struct(kind, pick, full, depth + 1)
            case mi.ListType() | mi.VarTupleType() | mi.SetType() | mi.FrozenSetType():
                return [] if depth > 6 else [self.make(kind.item_type, pick + n, full, name, depth) for n in range(2)]
            case mi.TupleType():
                return [self.make(one, pick, full, name, depth) for one in kind.item_types]
            case mi.DictType() | mi.AnyType() if name in self._known:
                return self._known[name](pick)
            case mi.DictType():
                key = self.make(kind.key_type, pick, full, "", depth)
                return Pairs([(key, self.make(kind.value_type, pick, full, name, depth + 1))])
            case mi.LiteralType():
                return kind.values[pick % len(kind.values)]
            case mi.EnumType():
                return [one.value for one in kind.cls][pick % len(kind.cls)]
        return self._leaf(kind, pick, name)

    def _struct(self, kind: mi.StructType, pick: int, full: bool, depth: int) -> Any:
        written = full and depth < 6
        fields = [field for field in kind.fields if written or field.required or kind.array_like]
        values = [(field.encode_name, self.make(field.type, pick, full, field.name, depth)) for field in fields]
        if kind.array_like:
            return [*([] if kind.tag is None else [kind.tag]), *(value for _, value in values)]
        tag = [] if kind.tag is None or kind.tag_field is None else [(kind.tag_field, kind.tag)]
        return Pairs([*tag, *values])

    def _leaf(self, kind: mi.Type, pick: int, name: str) -> Any:
        match kind:
            case mi.BoolType():
                return bool(pick % 2)
            case mi.IntType():
                return max(int(kind.ge or 0), pick)
            case mi.FloatType():
                return max(float(kind.ge or 0.0), 0.25 * (pick + 1))
            case mi.StrType():
                return name or "text"
            case mi.BytesType() | mi.ByteArrayType() | mi.MemoryViewType():
                return "AAABAAIAAwA=" if self._encoded else b"\0\0\1\0\2\0\3\0"
            case mi.RawType():
                return Pairs()
            case mi.NoneType():
                return None
        return pick
