"""A rolling restart under sessions that speak: `PYTHONPATH=tests python -m system.rolling --sessions 30`.

Every gateway, shard and worker is stopped by SIGTERM, one after the other (a gateway is drained first, which takes it
off the shared port), and started again by the supervisor; the next one follows when the whole system is ready and
every session has been answered again. Rule: what a client saw is counted, and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Self

from system.running import PATIENCE_S, RunningSystem, duologue, eventually, status
from system.talkers import HZ, SCRIPT
from system.wire import INPUT_RATE_HZ, UNIT_MS, breaks, level

from duologue.client import AudioFormat, DuplexClient, DuplexClientError, ReconnectPolicy, SessionConfig

KINDS: Final = ("gateway", "shard", "worker")
POLICY: Final = ReconnectPolicy(max_attempts=60, low_s=0.1, high_s=1.0, deadline_s=PATIENCE_S)
DRAIN_S: Final = 3
CONFIG: Final = SessionConfig(
    input_audio=AudioFormat("pcm16", INPUT_RATE_HZ), extra_body={"loopback": {"script": SCRIPT, "audio": f"tone:{HZ}"}}
)


class Speaker:
    """One session of a client that comes back by itself: what it was sent, on whatever socket."""

    def __init__(self, url: str) -> None:
        self.seqs: list[int] = []
        self.statuses: list[str] = []
        self.reasons: list[str] = []
        """Of responses that failed."""
        self.errors: list[str] = []
        self.resumes = 0
        self.sound = bytearray()
        self.client = DuplexClient(url, model="loopback", config=CONFIG, reconnect=POLICY, trace=self._frame)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> Self:
        await self.client.connect()
        self._task = asyncio.create_task(self._speak())
        return self

    async def _speak(self) -> None:
        sound = level(6000)
        while True:
            await self.client.append_audio(sound)
            await asyncio.sleep(UNIT_MS / 1000)

    def _frame(self, direction: str, frame: str) -> None:
        if direction != "<":
            return
        event: dict[str, Any] = json.loads(frame)
        if "server_event_seq" in event:
            self.seqs.append(event["server_event_seq"])
        match event["type"]:
            case "session.resumed":
                self.resumes += 1
            case "error" | "session.closed" | "session.expired" | "session.resync_required":
                self.errors.append(f"{event['type']}: {event.get('error', event.get('reason', ''))}")
            case "response.output_audio.delta":
                self.sound += base64.b64decode(event["delta"])
            case "response.done":
                self.statuses.append(event["response"]["status"])
                if event["response"]["status"] == "failed":
                    self.reasons.append(event["response"]["status_details"]["reason"])

    @property
    def completed(self) -> int:
        return self.statuses.count("completed")

    @property
    def holes(self) -> int:
        """Numbers that are missing, doubled or out of order."""
        return sum(a + 1 != b for a, b in zip([0, *self.seqs], self.seqs, strict=False))

    @property
    def breaks(self) -> int:
        """Samples at which its tone does not go on: of units that are missing, doubled or foreign."""
        return len(breaks(bytes(self.sound), HZ))

    def check(self) -> None:
        """Its session lives. Raises what ended it."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        with contextlib.suppress(DuplexClientError):
            await self.client.close()


@contextlib.asynccontextmanager
async def speaking(url: str, count: int) -> AsyncIterator[list[Speaker]]:
    """So many of them, each of which has been answered once."""
    speakers = [await Speaker(url).start() for _ in range(count)]
    try:
        await answered(speakers)
        yield speakers
    finally:
        await asyncio.gather(*(speaker.stop() for speaker in speakers), return_exceptions=True)


async def answered(speakers: list[Speaker], more: int = 1) -> None:
    """Until each has been answered so many times more."""
    due = [speaker.completed + more for speaker in speakers]
    async with asyncio.timeout(PATIENCE_S):
        while any(speaker.completed < least for speaker, least in zip(speakers, due, strict=True)):
            for speaker in speakers:
                speaker.check()
            await asyncio.sleep(0.1)


def system_of_twos(home: Path) -> RunningSystem:
    """Two gateways on one port, two shards, two workers of each group."""
    text = (files("duologue.models.loopback") / "loopback.toml").read_text()
    for group in ("loopback-a", "loopback-b"):
        text = text.replace(f'worker = "{group}"\n', f'worker = "{group}"\nreplicas = 2\n')
    (home / "loopback.toml").write_text(text)
    return RunningSystem(home, "--pipelines", str(home / "loopback.toml"), "--shards", "2", "--gateway-workers", "2")


def members(system: RunningSystem) -> dict[str, dict[str, Any]]:
    """Every registered process by its name."""
    found: list[dict[str, Any]] = status("--home", str(system.home))["members"]
    return {one["id"]: one for one in found if one["kind"] in KINDS}


def in_order(system: RunningSystem) -> list[str]:
    """All of them, kind by kind."""
    found = members(system)
    return sorted(found, key=lambda name: (KINDS.index(found[name]["kind"]), name))


async def restart(system: RunningSystem, name: str) -> None:
    """Stop one process in the documented way; it is back, as another life of itself, and ready."""
    before = await asyncio.to_thread(members, system)
    if before[name]["kind"] == "gateway":
        done = await asyncio.to_thread(
            duologue, "drain", name, "--home", str(system.home), "--deadline-s", str(DRAIN_S)
        )
        assert done.returncode == 0, done.stdout + done.stderr
    pid = system.pid_of(name)
    os.kill(pid, signal.SIGTERM)
    await eventually(lambda: system.pid_of(name) not in (0, pid), f"{name} is started again")
    await eventually(lambda: members(system).keys() >= before.keys(), f"{name} is registered")
    await eventually(system.ready, "the system is ready")


async def roll(system: RunningSystem, speakers: list[Speaker], told: Callable[[str], None] = lambda line: None) -> None:
    """Restart every process, one after the other."""
    for name in await asyncio.to_thread(in_order, system):
        began, failed = time.monotonic(), sum(len(speaker.reasons) for speaker in speakers)
        await restart(system, name)
        await answered(speakers)
        lost = sum(len(speaker.reasons) for speaker in speakers) - failed
        told(f"{name}: restarted in {time.monotonic() - began:.1f} s, {lost} responses failed")


async def run(sessions: int) -> bool:
    with tempfile.TemporaryDirectory(prefix="rolling") as folder, system_of_twos(Path(folder)) as system:
        async with speaking(system.url, sessions) as speakers:
            await roll(system, speakers, print)
            failed = [reason for speaker in speakers for reason in speaker.reasons]
            errors = [error for speaker in speakers for error in speaker.errors]
            holes, resumes = sum(speaker.holes for speaker in speakers), [speaker.resumes for speaker in speakers]
            completed = sum(speaker.completed for speaker in speakers)
            print(f"{sessions} sessions: {completed} responses completed, {len(failed)} failed {sorted(set(failed))}")
            broken = sum(speaker.breaks for speaker in speakers)
            print(f"{broken} breaks of a tone, {holes} holes, {min(resumes)} to {max(resumes)} resumes each")
            print(f"errors {errors[:5]}")
            return not failed and not errors and not holes and not broken and min(resumes) >= 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=30)
    return 0 if asyncio.run(run(parser.parse_args().sessions)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
