"""Where one running system keeps its things.

    <home>/valkey/       the embedded store's append-only file
    <home>/run/          the generated configuration, the state for `duologue status`, the lock
    <home>/tls/          the certificate of `duologue up --tls`
    <sockets>/           ipc sockets, in a folder with a short path: the kernel allows 107 bytes

The home is `--home`, else $DUOLOGUE_HOME, else `.duologue` in the current folder. One system per home: the
lock is held by the supervisor and freed by the kernel when it dies, whatever way. The folder of sockets has
a lock of its own: what a killed system left is swept by the next one that starts, in whatever home.
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

SOCKET_LOCK = "lock"


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
    ca: str = ""
    """The authority (PEM file) of a certificate made here; empty: none was."""

    def pids(self, kind: str) -> list[int]:
        return [process.pid for process in self.processes if process.kind == kind]


def sweep_sockets() -> None:
    """Remove the folders of sockets whose system is dead: nobody holds their lock."""
    for lock in Path(tempfile.gettempdir()).glob(f"duologue-{os.getuid()}-*/{SOCKET_LOCK}"):
        try:
            with lock.open() as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
        except OSError:  # its system lives, or somebody else swept it just now
            continue


class Home:
    def __init__(self, path: Path | None = None) -> None:
        self.path = (path or Path(os.environ.get("DUOLOGUE_HOME") or ".duologue")).absolute()
        self.store_dir = self.path / "valkey"
        self.run_dir = self.path / "run"
        name = hashlib.blake2b(str(self.path).encode(), digest_size=5).hexdigest()
        self.socket_dir = Path(tempfile.gettempdir()) / f"duologue-{os.getuid()}-{name}"
        self.store_socket = self.socket_dir / "store.sock"
        self.tls_dir = self.path / "tls"
        self._lock: IO[str] | None = None
        self._socket_lock: IO[str] | None = None

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
        sweep_sockets()
        self._make_socket_dir()

    def _make_socket_dir(self) -> None:
        """It appears with its lock held, so that nobody takes it for a dead one's."""
        shutil.rmtree(self.socket_dir, ignore_errors=True)
        new = Path(tempfile.mkdtemp(prefix="duologue-new-"))
        self._socket_lock = (new / SOCKET_LOCK).open("w")
        fcntl.flock(self._socket_lock, fcntl.LOCK_EX)
        new.rename(self.socket_dir)

    def leave(self) -> None:
        """Nothing of a stopped system remains but the store's data."""
        shutil.rmtree(self.socket_dir, ignore_errors=True)
        (self.run_dir / "state.json").unlink(missing_ok=True)
        for lock in (self._socket_lock, self._lock):
            if lock is not None:
                lock.close()

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
