"""Writes the folder of a new model from the template beside this file."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from pathlib import Path
from string import Template

from duologue.cli.errors import UserError

_SUFFIX = ".txt"
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def write_model(name: str, into: Path) -> list[Path]:
    """The files of a model that works, in a new folder of its name. Raises UserError."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UserError(f"{name!r} is no name of a Python package: small letters, digits and _, a letter first")
    folder = into / name
    if folder.exists():
        raise UserError(f"{folder} is there already")
    title = "".join(part.capitalize() for part in name.split("_"))
    written = []
    folder.mkdir(parents=True)
    template = files("duologue.cli") / "model_template"
    for entry in sorted(template.iterdir(), key=lambda entry: entry.name):
        if not entry.name.endswith(_SUFFIX):
            continue
        path = folder / entry.name.removesuffix(_SUFFIX).replace("model.toml", f"{name}.toml")
        path.write_text(_filled(entry.read_text(encoding="utf-8"), name, title), encoding="utf-8")
        written.append(path)
    return written


def _filled(text: str, name: str, title: str) -> str:
    return Template(text.replace("$titleEngine", "${title}Engine")).substitute(name=name, title=title)
