"""DuplexOmni: full-duplex sessions in this process. No server, no Redis, no socket; the same sessions.

    async with DuplexOmni("loopback") as omni:
        session = await omni.open_session(SessionConfig(instructions="be brief"))
        await session.append_audio(pcm)
        async for event in session.events():
            ...

Rule 1. The system allocates every session id, and never uses one again.
Rule 2. A detached session waits for its grace (`[session] disconnect_grace_s`) and can be resumed within it; it keeps
        working meanwhile.
Rule 3. Whoever resumes is the only one attached: an earlier connection is told `session.replaced`.
"""

from __future__ import annotations

import asyncio
import json
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from duologue.client.config import SessionConfig
from duologue.client.errors import DuplexClientError, DuplexConnectionError, DuplexSessionClosedError
from duologue.inline.handle import DuplexSessionHandle
from duologue.inline.local_socket import LocalSocket
from duologue.inline.system import InlineSystem
from duologue.runtime.settings import SystemSettings

CLOSE_S: Final = 20.0
_MAX_GAPS: Final = 2
"""Resumes that may be told of a gap, one after the other."""


class UnknownSessionError(DuplexClientError):
    """There is no such session, or it has ended."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"there is no session {session_id!r}", code="unknown_session", param="session_id")


class DuplexOmni:
    """The models `pipelines`, the first of which is the default. Use it as a context manager, or call `start` and
    `stop`. In one event loop; engines have threads of their own."""

    def __init__(self, *pipelines: str, settings: SystemSettings | None = None) -> None:
        """Names of installed pipelines or paths of TOML files; without any those of `settings`, of which `[session]`,
        `[stages]`, `[gateway]` and the times of `[bus]` and `[store]` count here. Raises PipelineError."""
        settings = settings or SystemSettings()
        if pipelines:
            settings = msgspec.structs.replace(settings, pipelines=pipelines)
        self._system = InlineSystem(settings)
        self._handles: dict[str, DuplexSessionHandle] = {}

    # -- life ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the models. Raises PipelineError, ImportError for a model's missing package, OSError."""
        await self._system.start()

    async def stop(self) -> None:
        """End every session (`session.closed` with the reason `shutdown`) and let go of everything."""
        if self._system.open:
            await self._system.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    def connect(self, model: str | None = None) -> LocalSocket:
        """A connection as a WebSocket client has one, in the duplex dialect (see `InlineDuplexClient`).

        Raises DuplexConnectionError when the system is not running."""
        if not self._system.open:
            raise DuplexConnectionError("the system is not running", code="engine_dead", retryable=False)
        return self._system.connect(model or "")

    # -- sessions -----------------------------------------------------------------------------------------

    async def open_session(
        self, session: SessionConfig | dict[str, Any] | None = None, *, model: str | None = None
    ) -> DuplexSessionHandle:
        """A new session. `session`: a configuration, or a session object as `session.update` has it.

        Raises DuplexProtocolError: the configuration is wrong, or there is no free place.
        """
        asked = session.to_realtime(model) if isinstance(session, SessionConfig) else dict(session or {})
        if model:
            asked["model"] = model
        handle = DuplexSessionHandle()
        await handle.begin(self.connect(model), json.dumps({"type": "session.update", "session": asked}))
        self._prune()
        self._handles[handle.session_id] = handle
        return handle

    def get_session(self, session_id: str) -> DuplexSessionHandle:
        """The handle of a session that has not ended, attached or not. Raises UnknownSessionError."""
        handle = self._handles.get(session_id)
        if handle is None or not self._system.lives(session_id):
            raise UnknownSessionError(session_id)
        return handle

    async def resume_session(
        self, session_id: str, *, resume_token: str = "", last_received_server_event_seq: int | None = None
    ) -> DuplexSessionHandle:
        """Attach to a session again: its handle goes on after the last event that was read, and nothing is missed.

        Token and number are those of the handle unless they are given, as for a session that a client opened. The
        events begin with `session.resumed`; after a loss of events that carries the conversation. Raises
        UnknownSessionError, DuplexResumeError.
        """
        known = self._handles.get(session_id)
        if known is None and not resume_token:
            raise UnknownSessionError(session_id)
        handle = known or DuplexSessionHandle()
        if last_received_server_event_seq is not None:
            handle.last_seq = last_received_server_event_seq
        await self._resume(handle, session_id, resume_token or handle.resume_token)
        self._prune()
        self._handles[session_id] = handle
        return handle

    async def _resume(self, handle: DuplexSessionHandle, session_id: str, token: str) -> None:
        for gaps in range(_MAX_GAPS + 1):
            claim = {
                "type": "session.resume",
                "session_id": session_id,
                "resume_token": token,
                "last_received_server_event_seq": handle.last_seq,
            }
            try:
                return await handle.begin(self.connect(), json.dumps(claim))
            except DuplexConnectionError as error:
                if error.code != "session_resync_required" or gaps == _MAX_GAPS:
                    raise
        return None

    def detach_session(self, session_id: str, *, generation: int = 0) -> bool:
        """Leave a session without ending it. False: it is not attached, or by a newer `generation` than this one.

        Raises UnknownSessionError."""
        handle = self.get_session(session_id)
        if not handle.attached or (generation and generation != handle.generation):
            return False
        handle.detach()
        return True

    async def close_session(self, session_id: str, reason: str = "client_close", *, timeout_s: float = CLOSE_S) -> None:
        """End a session, attached or not, and wait until it has ended. What was not read of it is still to be read,
        `session.closed` last. Raises UnknownSessionError, TimeoutError."""
        handle = self.get_session(session_id)
        async with asyncio.timeout(timeout_s):
            if not handle.attached:
                await self.resume_session(session_id)
            try:
                await handle.close(reason)
            except DuplexSessionClosedError:
                return  # it has ended meanwhile
            await handle.gone()

    def _prune(self) -> None:
        """Forget the handles of sessions that have ended."""
        for session_id in [name for name in self._handles if not self._system.lives(name)]:
            del self._handles[session_id]
