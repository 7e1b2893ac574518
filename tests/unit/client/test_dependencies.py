"""The client library needs websockets, msgspec and the protocol: nothing else is imported, of ours or of others."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import duologue.client

pytestmark = pytest.mark.unit

#: Imported by websockets itself where they are installed.
OPTIONAL = {"python_socks", "typing_extensions"}
PROGRAM = """
import sys
import duologue.client, duologue.client.presets
print(*sorted(name for name in sys.modules if not name.startswith("_")))
"""


def imported() -> list[str]:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=30)
    return ran.stdout.split()


def test_importing_it_imports_nothing_else() -> None:
    names = imported()
    others = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) - OPTIONAL - {"sitecustomize"}
    assert others <= {"duologue", "msgspec", "websockets"}
    rooms = {name.split(".")[1] for name in names if name.startswith("duologue.")}
    assert rooms == {"client", "protocol"}


def test_the_extra_names_what_it_needs() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["client"]]
    assert {re.split(r"[<>=\[]", line)[0] for line in wanted} == {"msgspec", "websockets"}


def test_it_tells_type_checkers_that_it_is_typed() -> None:
    assert Path(duologue.client.__file__).with_name("py.typed").exists()
