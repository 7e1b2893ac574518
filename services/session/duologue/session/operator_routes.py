"""What an operator may ask of this shard about its sessions: who is here, the story of one, and the end of one.

    GET  /sessions              the sessions that are here, as they are now
    GET  /sessions/ID           one of them with its story, without anything that was said
    POST /sessions/ID/kill      end it; `?reason=` is told to its client

Rule 1. It needs the token that this incarnation has put into its registration: whoever reads the store may ask.
Rule 2. Nothing is waited for: a kill is taken (202), and the session ends as ever.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from duologue.runtime.exposition import NEEDS_TOKEN, Asked, may
from duologue.session.manager import DuplexSessionManager
from duologue.session.resident import Resident

KILLED: Final = "closed_by_operator"
CLOSE_CODE: Final = 1008
_REASON: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_PATH: Final = re.compile(r"/sessions(?:/([^/]+)(/kill)?)?")

Answer = tuple[HTTPStatus, bytes]


class OperatorRoutes:
    """See the module. `answer` is for the process's HTTP."""

    def __init__(self, manager: DuplexSessionManager) -> None:
        self.token = secrets.token_urlsafe(24)
        self._manager = manager

    def answer(self, asked: Asked) -> Answer | None:
        """None: this is none of ours."""
        path = _PATH.fullmatch(asked.path)
        if path is None:
            return None
        if not may(asked.bearer, self.token):
            return _error(HTTPStatus.UNAUTHORIZED, NEEDS_TOKEN)
        session_id, kill = path[1], path[2]
        if asked.method != ("POST" if kill else "GET"):
            return _error(HTTPStatus.METHOD_NOT_ALLOWED, "ask by GET, kill by POST")
        if session_id is None:
            return _json({"sessions": [_seen(resident) for resident in self._manager.residents]})
        if kill:
            return self._kill(session_id, asked.query.get("reason", KILLED))
        resident = self._manager.resident(session_id)
        if resident is None:
            return _error(HTTPStatus.NOT_FOUND, "the session is not here")
        return _json({**_seen(resident), "story": resident.runner.machine.story})

    def _kill(self, session_id: str, reason: str) -> Answer:
        if not _REASON.fullmatch(reason):
            return _error(HTTPStatus.BAD_REQUEST, "reason is a code: a-z, 0-9 and _, at most 64 characters")
        if not self._manager.kill(session_id, reason, CLOSE_CODE):
            return _error(HTTPStatus.NOT_FOUND, "the session is not here")
        return _json({"session_id": session_id, "reason": reason}, HTTPStatus.ACCEPTED)


def _seen(resident: Resident) -> Mapping[str, object]:
    runner = resident.runner
    machine = runner.machine
    return {
        "session_id": resident.session_id,
        "key_id": resident.who.principal,
        "model": resident.who.model,
        "dialect": resident.who.dialect,
        "owner": runner.owner.number,
        "generation": resident.attachment.generation,
        "attached": resident.attachment.attached,
        "state": f"closing ({runner.closing})" if runner.closing else "responding" if machine.responding else "open",
        "age_s": round(machine.time, 3),
        "lag_s": round(machine.observed.lag_s(machine.time), 3),
        "pending_input_bytes": machine.pending_input_bytes,
        "pending_output_events": runner.output.pending,
    }


def _json(answer: Mapping[str, object], status: HTTPStatus = HTTPStatus.OK) -> Answer:
    return status, json.dumps(answer).encode()


def _error(status: HTTPStatus, why: str) -> Answer:
    return status, json.dumps({"error": why}).encode()
