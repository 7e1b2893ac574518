"""Who may use an engine next: a live step goes before background work, which yields after every piece of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turnstile:
    """A lock with two doors. Whoever comes by the live one waits for at most what is under way."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy = False
        self._live = 0

    @contextmanager
    def live(self) -> Iterator[None]:
        with self._changed:
            self._live += 1
            while self._busy:
                self._changed.wait()
            self._live -= 1
            self._busy = True
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def background(self) -> Iterator[None]:
        with self._changed:
            while self._busy or self._live:
                self._changed.wait()
            self._busy = True
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._changed:
            self._busy = False
            self._changed.notify_all()
