"""A value of any type of ours, with something in every field that no default has. The same in every run."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import inspect


def full(kind: type[msgspec.Struct]) -> Any:
    """Every field is given."""
    return _struct(inspect.type_info(kind), kind.__name__, least=False)


def least(kind: type[msgspec.Struct]) -> Any:
    """Only the fields that have no default are given."""
    return _struct(inspect.type_info(kind), kind.__name__, least=True)


def _struct(info: Any, path: str, *, least: bool) -> Any:
    fields = [field for field in info.fields if field.required or not least]
    return info.cls(**{field.name: _value(field.type, f"{path}.{field.name}") for field in fields})


def _value(info: Any, path: str) -> Any:
    """`path` makes it differ from the values of other fields."""
    number = sum(map(ord, path)) % 97 + 1
    match info:
        case inspect.Metadata():
            return _value(info.type, path)
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return number
        case inspect.FloatType():
            return number + 0.5
        case inspect.StrType():
            return path
        case inspect.BytesType():
            return path.encode()
        case inspect.LiteralType():
            return info.values[0]
        case inspect.EnumType():
            return next(iter(info.cls))
        case inspect.StructType():
            return _struct(info, path, least=False)
        case inspect.VarTupleType():
            return tuple(_value(info.item_type, f"{path}.{n}") for n in range(2))
        case inspect.TupleType():
            return tuple(_value(item, f"{path}.{n}") for n, item in enumerate(info.item_types))
        case inspect.ListType():
            return [_value(info.item_type, f"{path}.{n}") for n in range(2)]
        case inspect.DictType():
            return {_value(info.key_type, f"{path}.key"): _value(info.value_type, f"{path}.value")}
        case inspect.UnionType():
            return _value(next(one for one in info.types if not isinstance(one, inspect.NoneType)), path)
        case inspect.NoneType():
            return None
    raise TypeError(f"{path}: no sample of {info}")
