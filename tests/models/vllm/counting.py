"""vLLM's own scheduler, counting what it schedules: one JSON line for each request of each step, in the file that
COUNTS names. It runs in the process of the engine's core."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

COUNTS = "DUOLOGUE_TEST_COUNTS"


class CountingScheduler(AsyncScheduler):  # type: ignore[misc, unused-ignore]
    def schedule(self, *arguments: Any, **named: Any) -> Any:
        scheduled = super().schedule(*arguments, **named)
        with open(os.environ[COUNTS], "a") as file:
            for request, tokens in scheduled.num_scheduled_tokens.items():
                # After scheduling they count as computed.
                computed = self.requests[request].num_computed_tokens - tokens
                file.write(json.dumps([request, tokens, computed]) + "\n")
        return scheduled


class Scheduled(NamedTuple):
    request: str
    tokens: int
    computed: int


class Counts:
    """Reads them, from another process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def read(self, name: str = "") -> list[Scheduled]:
        """Those of one request, oldest first; vLLM's own names begin with the one that was given."""
        lines = [Scheduled(*json.loads(line)) for line in self._path.read_text().splitlines()]
        return [line for line in lines if line.request.startswith(f"{name}-") or not name]
