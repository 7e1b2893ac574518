"""One environment for each client, so that no client meets another's versions, nor ours.

Rule 1. Python clients: a virtual environment from the pinned `requirements.txt` beside their program; npm clients:
        `npm ci` from the lock file beside theirs. Both lie in `.clients/`, which git ignores.
Rule 2. An environment is built again when its pins change, and at no other time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
BUILT = ROOT / ".clients"
INSTALL_S = 900.0


@dataclass(frozen=True)
class Client:
    """One client: `folder` holds its program and its pins, `packages` are what its row in the table names."""

    name: str
    folder: str
    packages: tuple[str, ...]
    reconnects: str = ""
    """How it comes back after a lost socket; empty: it does not, and says so."""

    @property
    def node(self) -> bool:
        return (HERE / self.folder / "package.json").exists()

    @property
    def home(self) -> Path:
        return BUILT / self.folder

    @property
    def command(self) -> list[str]:
        """What runs its program."""
        if self.node:
            return [_found("node"), str(self.home / "program.mjs")]
        return [str(self.home / "venv" / "bin" / "python"), str(HERE / self.folder / "program.py")]

    def pins(self) -> list[Path]:
        folder = HERE / self.folder
        return [folder / "package.json", folder / "package-lock.json"] if self.node else [folder / "requirements.txt"]

    def build(self) -> None:
        """Make the environment what the pins say. Raises subprocess.CalledProcessError."""
        due = hashlib.sha256(b"".join(path.read_bytes() for path in self.pins())).hexdigest()
        stamp = self.home / "built-from"
        if not stamp.exists() or stamp.read_text() != due:
            shutil.rmtree(self.home, ignore_errors=True)
            self.home.mkdir(parents=True)
            (self._install_node if self.node else self._install_python)()
            stamp.write_text(due)
        if self.node:  # an ES module looks for packages from where it lies
            for program in (HERE / "scene.mjs", HERE / self.folder / "program.mjs"):
                shutil.copy(program, self.home)

    def _install_python(self) -> None:
        venv = self.home / "venv"
        _run([sys.executable, "-m", "venv", str(venv)])
        pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps"]
        _run([*pip, "-r", str(self.pins()[0])])

    def _install_node(self) -> None:
        for path in self.pins():
            shutil.copy(path, self.home)
        _run([_found("npm"), "ci", "--no-audit", "--no-fund", "--loglevel=error"], cwd=self.home)

    def versions(self) -> dict[str, str]:
        """What is installed, as the environment itself says."""
        if self.node:
            modules = self.home / "node_modules"
            return {
                name: json.loads((modules / name / "package.json").read_text())["version"] for name in self.packages
            }
        ask = "import sys, json, importlib.metadata as m; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
        python = self.home / "venv" / "bin" / "python"
        told: dict[str, str] = json.loads(_run([str(python), "-c", ask, *self.packages]))
        return told


CLIENTS = (
    Client("openai-python", "openai-python", ("openai",), "by query"),
    Client("openai-agents", "openai-agents", ("openai-agents", "openai")),
    Client(
        "livekit-plugins-openai", "livekit", ("livekit-plugins-openai", "livekit-agents", "openai"), "a new session"
    ),
    Client("pipecat-ai", "pipecat", ("pipecat-ai", "openai")),
    Client("@openai/agents", "agents-js", ("@openai/agents",)),
    Client("openai (npm)", "openai-node", ("openai", "ws")),
)


def chosen(names: str) -> list[Client]:
    """Clients by name or folder, with commas; all if empty. Raises KeyError naming who is unknown."""
    if not names:
        return list(CLIENTS)
    known = {key: client for client in CLIENTS for key in (client.name, client.folder)}
    return list(dict.fromkeys(known[name.strip()] for name in names.split(",")))


def _found(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise FileNotFoundError(f"{program} is not installed; the npm clients need Node 20 or newer")
    return path


def _run(command: list[str], cwd: Path | None = None) -> str:
    """Standard output. What went wrong is shown."""
    quiet = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env=quiet, capture_output=True, text=True, timeout=INSTALL_S)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        done.check_returncode()
    return done.stdout
