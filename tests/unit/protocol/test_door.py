"""What the room imports, and that its door holds what it promises."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import duologue.protocol.duplex as door

pytestmark = pytest.mark.unit

ROOM = Path(door.__file__).parents[1]
ALLOWED = sys.stdlib_module_names | {"msgspec", "numpy"}


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("path", sorted(ROOM.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOM)))
def test_the_room_imports_nothing_but_computation(path: Path) -> None:
    for name in _imports(path):
        assert name.split(".")[0] in ALLOWED or name.startswith(("duologue.protocol.", "duologue.fence")), name
        assert name.split(".")[0] not in {
            "asyncio",
            "logging",
            "random",
            "uuid",
            "time",
            "socket",
            "threading",
        }
        if "realtime" in path.parts:
            assert not name.startswith("duologue.protocol.duplex"), "Tier 1 does not know Tier 2"


def test_the_door_opens_first_by_either_name() -> None:
    for name in ("duologue.protocol.dialects", "duologue.protocol.duplex.events", "duologue.protocol.duplex"):
        subprocess.run([sys.executable, "-c", f"import {name}"], check=True, timeout=30)


def test_the_door_holds_what_it_lists() -> None:
    assert all(hasattr(door, name) for name in door.__all__)
    from duologue.protocol import dialects

    assert dialects.project is door.project
