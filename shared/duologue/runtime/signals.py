"""SIGTERM and SIGINT as one event: the first asks to stop, the second insists."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from types import TracebackType
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
INSISTED_EXIT: Final = 130


class StopSignals:
    """`async with StopSignals() as stop: await stop.wait()`. The handlers are removed at the end."""

    def __init__(self, insist: Callable[[], None] | None = None) -> None:
        self._insist = insist or (lambda: os._exit(INSISTED_EXIT))
        self._asked = asyncio.Event()
        self.received: signal.Signals | None = None

    async def __aenter__(self) -> StopSignals:
        loop = asyncio.get_running_loop()
        for sig in _SIGNALS:
            loop.add_signal_handler(sig, self._on_signal, sig)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for sig in _SIGNALS:
            loop.remove_signal_handler(sig)

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def ask(self) -> None:
        """Stop for a reason of our own, as if a signal had come."""
        self._asked.set()

    async def wait(self) -> None:
        await self._asked.wait()

    def _on_signal(self, sig: signal.Signals) -> None:
        if self._asked.is_set():
            self._insist()
        self.received = sig
        self._asked.set()
