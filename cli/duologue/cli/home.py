"""Where one running system keeps its things.

    <home>/valkey/       the embedded store's append-only file
    <home>/run/          the generated configuration, the state for `duologue status`, the lock
    <sockets>/           ipc sockets, in a folder with a short path: the kernel allows 107 bytes

The home is `--home`, else $DUOLOGUE_HOME, else `.duologue` in the current folder. One system per home: the
lock is held by the supervisor and freed by the kernel when it dies, whatever way.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO

import msgspec

from duologue.cli.errors import UserError


class ProcessState(msgspec.Struct, frozen=True):
    name: str
    kind: str
    pid: int
    restarts: int = 0
    metrics_url: str = ""


class SystemState(msgspec.Struct, frozen=True):
    """What a running supervisor says of itself in `run/state.json`."""

    supervisor: int
    url: str
    redis_url: str
    processes: tuple[ProcessState, ...]

    def pids(self, kind: str) -> list[int]:
        return [process.pid for process in self.processes if process.kind == kind]


class Home:
    def __init__(self, path: Path | None = None) -> None:
        self.path = (path or Path(os.environ.get("DUOLOGUE_HOME") or ".duologue")).absolute()
        self.store_dir = self.path / "valkey"
        self.run_dir = self.path / "run"
        name = hashlib.blake2b(str(self.path).encode(), digest_size=5).hexdigest()
        self.socket_dir = Path(tempfile.gettempdir()) / f"duologue-{os.getuid()}-{name}"
        self.store_socket = self.socket_dir / "store.sock"
        self._lock: IO[str] | None = None

    def take(self) -> None:
        """Become the one system of this home, and sweep what a dead one left. Raises UserError."""
        try:
            for folder in (self.store_dir, self.run_dir):
                folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.run_dir / "lock").open("w")
        except OSError as error:
            raise UserError(f"cannot use {self.path} as home: {error.strerror}; name another with --home") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"a system is already running in {self.path}; stop it, or use another --home") from None
        shutil.rmtree(self.socket_dir, ignore_errors=True)
        self.socket_dir.mkdir(mode=0o700)

    def leave(self) -> None:
        """Nothing of a stopped system remains but the store's data."""
        shutil.rmtree(self.socket_dir, ignore_errors=True)
        (self.run_dir / "state.json").unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.close()

    def write_state(self, state: SystemState) -> None:
        part = self.run_dir / "state.json.part"
        part.write_bytes(msgspec.json.encode(state))
        part.replace(self.run_dir / "state.json")

    def read_state(self) -> SystemState | None:
        """The state of the system that runs here; None if none does."""
        try:
            state = msgspec.json.decode((self.run_dir / "state.json").read_bytes(), type=SystemState)
            os.kill(state.supervisor, 0)
        except (OSError, msgspec.DecodeError):
            return None
        return state
