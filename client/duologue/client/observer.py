"""Whoever must see everything, at once: told from inside the reader, before any queue."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from duologue.client.events import Event


class Observer(ABC):
    """Called from the event loop; must be quick, and must not raise."""

    @abstractmethod
    def received(self, event: Event) -> None:
        """An event that is new to this client."""

    @abstractmethod
    def sent(self, command: dict[str, Any]) -> None:
        """A command of the caller is about to be sent. What a resume sends again is not told twice."""
