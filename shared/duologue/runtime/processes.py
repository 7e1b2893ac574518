"""No orphans: a child ends when its parent does, even when that is killed.

Two ways, used together. `die_with_parent` asks the kernel (Linux): the signal comes the moment that the
parent's *thread* which started the child ends, so a supervisor starts its children from its main thread.
`ParentWatch` needs nothing of the kernel and also ends a child that does not stop when told.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Final

_log = logging.getLogger("duologue.runtime")
_PR_SET_PDEATHSIG: Final = 1
_PARENT_GONE_EXIT: Final = 1


def _load_prctl() -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        found: Callable[..., int] = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return None
    return found


# Found at import: a child between fork and exec must not load anything.
_prctl: Final = _load_prctl()


def die_with_parent(parent_pid: int, sig: int = signal.SIGKILL) -> bool:
    """Have `sig` sent to this process when its parent ends. False: this system cannot.

    `parent_pid` is the pid that the parent had when it decided to start us: if it has gone since, the signal
    would never come, so it is sent now. May be called between fork and exec (`preexec_fn`), for programs that
    are not ours; the setting outlives exec.
    """
    if _prctl is None or _prctl(_PR_SET_PDEATHSIG, sig, 0, 0, 0) != 0:
        return False
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), sig)
    return True


class ParentWatch:
    """Looks every `interval_s` whether the parent is still the one we had; a daemon thread.

    When it is gone: SIGTERM to ourselves, and `grace_s` later the process ends in any case.
    """

    def __init__(
        self,
        parent_pid: int,
        *,
        interval_s: float = 0.5,
        grace_s: float = 3.0,
        stop: Callable[[], None] | None = None,
        leave: Callable[[], None] | None = None,
    ) -> None:
        self._parent_pid = parent_pid
        self._interval_s, self._grace_s = interval_s, grace_s
        self._stop = stop or (lambda: os.kill(os.getpid(), signal.SIGTERM))
        self._leave = leave or (lambda: os._exit(_PARENT_GONE_EXIT))
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="parent-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def cancel(self) -> None:
        self._cancelled.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end, after `cancel`."""
        self._thread.join(timeout_s)

    def _watch(self) -> None:
        while os.getppid() == self._parent_pid:
            if self._cancelled.wait(self._interval_s):
                return
        _log.warning("the parent process is gone: stopping")
        self._stop()
        if not self._cancelled.wait(self._grace_s):
            self._leave()
