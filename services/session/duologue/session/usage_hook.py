"""Accounts sent to a URL: one POST of JSON each, in order, until it is taken.

Rule 1. A session's end never waits for it. What waits is bounded; beyond it the newest is dropped, counted and
        written to the log instead, so that nothing is lost without a word.
Rule 2. An answer of 2xx takes an account. What may pass (no answer, 408, 429, 5xx) is tried again with growing,
        jittered pauses; what will not (other 4xx, 3xx) or has failed `ATTEMPTS` times is given up, and logged.
Rule 3. At least once: an answer may be lost on its way. `Idempotency-Key` is the session's id.
"""

from __future__ import annotations

import asyncio
import logging
import random
import urllib.error
import urllib.request
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from duologue.session.background import Background

_log = logging.getLogger("duologue.usage")

MAX_WAITING: Final = 1024
ATTEMPTS: Final = 8
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
PASSING: Final = frozenset({408, 425, 429})

Post = Callable[[str, bytes], Awaitable[int]]
"""The session's id and the account: the status, or 0 for no answer."""
Sleep = Callable[[float], Awaitable[None]]


class UsageHook:
    """See the module. `put` is all that a session does."""

    def __init__(
        self,
        post: Post,
        background: Background,
        *,
        capacity: int = MAX_WAITING,
        sleep: Sleep = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.outcomes: Counter[str] = Counter()
        """Accounts by what became of them: sent, dropped, given_up."""
        self.retries = 0
        self._post = post
        self._background = background
        self._capacity = capacity
        self._sleep = sleep
        self._jitter = jitter
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._running = False

    def __len__(self) -> int:
        """Accounts that wait, the one that is being sent included."""
        return len(self._waiting)

    def put(self, session_id: str, body: bytes) -> None:
        if len(self._waiting) >= self._capacity:
            self._lose("dropped", session_id, body)
            return
        self._waiting.append((session_id, body))
        if not self._running:
            self._running = True
            self._background.start(self._run(), "usage")

    async def _run(self) -> None:
        try:
            while self._waiting:
                session_id, body = self._waiting[0]
                taken = await self._deliver(session_id, body)
                self._waiting.popleft()
                if taken:
                    self.outcomes["sent"] += 1
                else:
                    self._lose("given_up", session_id, body)
        finally:
            self._running = False

    async def _deliver(self, session_id: str, body: bytes) -> bool:
        pause_s = FIRST_PAUSE_S
        for attempt in range(ATTEMPTS):
            if attempt:
                self.retries += 1
                await self._sleep(pause_s * (0.5 + self._jitter() / 2))
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            status = await self._post(session_id, body)
            if 200 <= status < 300:
                return True
            if status and status < 500 and status not in PASSING:
                return False
        return False

    def close(self) -> None:
        """The process ends: what is left goes to the log."""
        while self._waiting:
            self._lose("given_up", *self._waiting.popleft())

    def _lose(self, outcome: str, session_id: str, body: bytes) -> None:
        self.outcomes[outcome] += 1
        _log.warning("usage of session %s is not told (%s): %s", session_id, outcome, body.decode())


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would turn the POST into a GET, and may lead anywhere."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> None:
        return None


class HttpPost:
    """One POST in a thread, with a time limit. `token`: sent as a bearer token, if there is one."""

    def __init__(self, url: str, *, token: str = "", timeout_s: float = 5.0) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._headers = {"Content-Type": "application/json", "User-Agent": "duologue"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._opener = urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({}))

    async def __call__(self, session_id: str, body: bytes) -> int:
        return await asyncio.to_thread(self._send, session_id, body)

    def _send(self, session_id: str, body: bytes) -> int:
        headers = {**self._headers, "Idempotency-Key": session_id}
        request = urllib.request.Request(self._url, data=body, headers=headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except (OSError, ValueError):  # no connection, no answer in time, or none that is HTTP
            return 0
