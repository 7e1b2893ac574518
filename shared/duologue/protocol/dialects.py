"""The projection of a session's events onto what a client's dialect may contain; see `duplex.projection`."""

from __future__ import annotations

from duologue.protocol.duplex import Dialect, SessionView, project

__all__ = ["Dialect", "SessionView", "project"]
