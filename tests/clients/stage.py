"""One scene with one client: its program runs against the system, and the world does what the program asks.

A scene has passed when the program says so, what the server wrote breaks no rule, the session ended as it should,
and its place is free again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from clients.environments import HERE, Client
from clients.relay import Relay
from clients.served import STUBBED, Places, Served
from clients.sounds import FOLDER
from clients.wire_log import read, violations


@dataclass(frozen=True)
class Scene:
    name: str
    model: str
    ends: str = ""
    """The reason under which the server must count the end of the session; empty: any."""


SCENES = (
    Scene("conversation", "loopback-talk"),
    Scene("interruption", "loopback-talk"),
    Scene("tools", "loopback-talk"),
    Scene("reconnect", "loopback-talk"),
    Scene("dropped", "loopback-talk", ends="disconnect_grace_expired"),
    Scene("leave", "loopback-talk", ends="client_close"),
    Scene("conversation", "cascade"),
    Scene("interruption", "cascade"),
    Scene("tools", STUBBED),
)


@dataclass(frozen=True)
class Outcome:
    scene: str
    model: str
    passed: bool
    note: str
    seconds: float


def scenes_of(client: Client) -> list[Scene]:
    """A client that cannot come back shows that it notices instead."""
    absent = "dropped" if client.reconnects else "reconnect"
    return [scene for scene in SCENES if scene.name != absent]


async def perform(served: Served, client: Client, scene: Scene, *, patience: float, logs: Path) -> Outcome:
    started = time.monotonic()
    before = served.places()
    async with Relay(served.ports).open() as relay:
        passed, note = await _program(served, client, scene, relay, patience, logs)
    if passed:
        # Without TLS only: under it nobody between the two can read.
        broken = [] if served.tls else [v for line in relay.lines for v in violations(read(bytes(line.written)))]
        passed, note = (False, "; ".join(broken[:5])) if broken else (True, note)
    if not passed:
        _keep(relay, logs / f"{client.folder}-{scene.model}-{scene.name}.wire.jsonl", served.tls)
    try:
        places = await served.until_free()
        passed, note = _ended_right(scene, before, places, passed, note)
    except AssertionError as error:
        passed, note = False, f"{note}; {error}"
    return Outcome(scene.name, scene.model, passed, note, round(time.monotonic() - started, 1))


def _ended_right(scene: Scene, before: Places, after: Places, passed: bool, note: str) -> tuple[bool, str]:
    ended = after.ended - before.ended
    if passed and scene.ends and set(ended) != {scene.ends}:
        return False, f"the session ended as {dict(ended)}, not as {scene.ends}; {note}"
    return passed, note


async def _program(
    served: Served, client: Client, scene: Scene, relay: Relay, patience: float, logs: Path
) -> tuple[bool, str]:
    scheme = "wss" if served.tls else "ws"
    command = [*client.command, "--scene", scene.name, "--model", scene.model, "--sounds", str(FOLDER)]
    command += ["--url", f"{scheme}://127.0.0.1:{relay.port}", "--patience", f"{patience:g}"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environment |= {"PYTHONPATH": str(HERE), "PYTHONDONTWRITEBYTECODE": "1", "OPENAI_API_KEY": "k", **served.trust}
    with (logs / f"{client.folder}-{scene.model}-{scene.name}.log").open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=errors, env=environment, limit=2**20
        )
        try:
            async with asyncio.timeout(patience * 5):
                return await _listen(process, served, relay)
        except TimeoutError:
            return False, "the program did not end"
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _listen(process: asyncio.subprocess.Process, served: Served, relay: Relay) -> tuple[bool, str]:
    """Do what the program asks, until its word and its end."""
    assert process.stdout is not None
    told: tuple[bool, str] = (False, "the program ended without a word")
    async for line in process.stdout:
        try:
            message = json.loads(line)
        except ValueError:
            continue  # what a client prints by itself
        if not isinstance(message, dict):
            continue
        if message.get("do") == "cut":
            relay.cut()
        elif message.get("do") == "restart":
            served.stop_gateway(relay.turn())
        elif "passed" in message:
            told = bool(message["passed"]), str(message["note"])
    code = await process.wait()
    if told[0] and code:
        return False, f"the program ended with code {code}"
    return told


def _keep(relay: Relay, path: Path, sealed: bool) -> None:
    """What the server wrote, for whoever looks into a failure."""
    if sealed:
        return
    with path.open("w") as file:
        for number, line in enumerate(relay.lines):
            received = read(bytes(line.written))
            for event in received.events:
                if isinstance(event.get("delta"), str) and len(event["delta"]) > 200:
                    event["delta"] = f"<{len(event['delta'])} characters>"
                file.write(json.dumps({"line": number, **event}) + "\n")
            end = {"line": number, "status": received.status, "close": received.close_code, "cut": line.cut}
            file.write(json.dumps(end) + "\n")
