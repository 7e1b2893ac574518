"""How settings are read and what is said when they are wrong: file or variable, key, what is allowed.

Rule 1. Values are never shown: one of them may be a key.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec

PREFIX: Final = "DUOLOGUE_"
_SEPARATOR: Final = "__"
_PLACE: Final = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(?P<key>.*)`")
_INDEX: Final = re.compile(r"\[(\d+|\.\.\.)\]")

Section = type[msgspec.Struct]


class SettingsError(ValueError):
    """What is wrong, where, and what is allowed: one line for a person."""


def explain(problem: str, root: Section) -> str:
    """A msgspec complaint about a document of type `root`, in the words of the file."""
    found = _PLACE.match(problem)
    assert found is not None  # matches every text
    what, path = found["what"], (found["path"] or "").lstrip(".")
    unknown = _UNKNOWN.match(what)
    if unknown is not None:
        return _explain_unknown(path, unknown["key"], root)
    if what.startswith("Invalid enum value"):
        return f"`{path}`: must be one of {', '.join(_choices(path, root))}"
    lowered = what[:1].lower() + what[1:] if what[1:2].islower() else what
    return f"`{path}`: {lowered}" if path else lowered


def _explain_unknown(path: str, key: str, root: Section) -> str:
    names = list(_section_at(path, root).__struct_fields__)
    close = difflib.get_close_matches(key, names, n=1)
    hint = f"did you mean `{close[0]}`? " if close else ""
    where = f"{path}.{key}" if path else key
    return f"`{where}` is unknown: {hint}allowed here: {', '.join(names)}"


def _choices(path: str, root: Section) -> list[str]:
    section, _, key = path.rpartition(".")
    return [repr(choice) for choice in get_args(get_type_hints(_section_at(section, root))[key])]


def _section_at(path: str, root: Section) -> Section:
    section = root
    for name in filter(None, _INDEX.sub("", path).split(".")):
        annotation = get_type_hints(section)[name]
        section = annotation.__args__[0] if get_origin(annotation) is tuple else annotation
    return section


def with_environment(document: dict[str, Any], environment: Mapping[str, str], root: Section) -> dict[str, Any]:
    """`document` with every `DUOLOGUE_<SECTION>__<KEY>` put over it; the same object if there is none."""
    given = {name: text for name, text in sorted(environment.items()) if name.startswith(PREFIX) and _SEPARATOR in name}
    if not given:
        return document
    merged = {key: dict(value) if isinstance(value, dict) else value for key, value in document.items()}
    sections = {name: hint for name, hint in get_type_hints(root).items() if get_origin(hint) is None}
    for variable, text in given.items():
        section, _, key = variable.removeprefix(PREFIX).lower().partition(_SEPARATOR)
        if section not in sections:
            raise SettingsError(f"{variable}: there is no section `{section}`; there are {', '.join(sections)}")
        hint = get_type_hints(sections[section], include_extras=True).get(key)
        if hint is None:
            raise SettingsError(f"{variable}: {_explain_unknown(section, key, root)}")
        merged.setdefault(section, {})[key] = _parse(variable, text, hint, root)
    return merged


def _parse(variable: str, text: str, hint: Any, root: Section) -> object:
    value: object = text
    try:
        if get_origin(hint) is tuple:
            value = _list_of(text)
        parsed: object = msgspec.convert(value, hint, strict=False)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        what = str(error)
        if what.startswith("Invalid enum value"):
            what = f"must be one of {', '.join(repr(choice) for choice in get_args(hint))}"
        raise SettingsError(f"{variable}: {explain(what, root)}") from None
    return list(parsed) if isinstance(parsed, tuple) else parsed


def _list_of(text: str) -> object:
    if text.lstrip().startswith("["):
        decoded: object = msgspec.json.decode(text)
        return decoded
    return [part.strip() for part in text.split(",") if part.strip()]
