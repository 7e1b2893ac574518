"""Run by the interpreter of another environment, as a file: what is missing there. Standard library only.

    python -P environment_probe.py REQUIREMENT... -- MODULE...

The last line of its output is one JSON object: `version`, `missing`, `failed` (`environments.Probed`).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
from collections.abc import Iterator, Sequence


def missing(requirements: Sequence[str]) -> Iterator[str]:
    """A line for each `name==version` that is not what is installed. A local version (`+cpu`) is no other one."""
    for requirement in requirements:
        name, _, wanted = requirement.partition("==")
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield f"{requirement} is not installed"
            continue
        if wanted and wanted not in (found, found.partition("+")[0]):
            yield f"{name} is {found}, not {wanted}"


def failed(modules: Sequence[str]) -> Iterator[str]:
    """A line for each module that cannot be imported: whatever a library raises then is the answer."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            yield f"{module}: {type(error).__name__}: {error}"


def main(arguments: Sequence[str]) -> int:
    at = arguments.index("--")
    found = {
        "version": ".".join(map(str, sys.version_info[:3])),
        "missing": list(missing(arguments[:at])),
        "failed": list(failed(arguments[at + 1 :])),
    }
    sys.stdout.write("\n" + json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
