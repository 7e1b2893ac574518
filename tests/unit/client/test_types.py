"""What a type checker says of programs that use the client: nothing of right ones, and each mistake by its kind.

A line of `WRONG` ends with the code of the error that mypy must report there, and nowhere else.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.unit, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[3]

RIGHT = """
import asyncio
from pathlib import Path
from typing import assert_type

from duologue.client import (
    AudioFormat, ConnectionResumed, DuplexClient, DuplexClientBase, DuplexClientError, DuplexProtocolError, DuplexTrace,
    Event, EventCollector, Observer, ReconnectPolicy, ResponseHandle, SessionConfig, Spread, TimingSummary,
)
from duologue.inline import DuplexOmni, DuplexSessionHandle, InlineDuplexClient
from duologue.protocol.duplex import AppendAudio, AudioDelta, ResponseDone


class Counter(Observer):
    def __init__(self) -> None:
        self.count = 0

    def received(self, event: Event) -> None:
        self.count += 1

    def sent(self, command: dict[str, object]) -> None: ...


async def talk(client: DuplexClientBase, trace: DuplexTrace) -> None:
    assert_type(await client.append_audio(b"", is_speech=True, force_listen=True), str)
    assert_type(await client.stream_pcm(b""), int)
    async for event in client.events():
        if isinstance(event, AudioDelta):
            assert_type(event.delta, bytes)
        elif isinstance(event, ResponseDone):
            assert_type(event.response_id, str)
        elif isinstance(event, ConnectionResumed):
            assert_type(event.gap, bool)
    async for response in client.responses():
        assert_type(response, ResponseHandle)
        async for pcm in response.audio():
            assert_type(pcm, bytes)
    collector = EventCollector()
    client.observe(collector)
    assert_type(collector.timing_summary(), TimingSummary)
    assert_type(collector.timing_summary().first_audio_ms, Spread)
    assert_type(trace.write(Path("t.jsonl")), int)


async def main() -> None:
    trace = DuplexTrace(max_entries=10)
    config = SessionConfig(input_audio=AudioFormat("pcm16", 24_000), tools=({"type": "function"},))
    policy = ReconnectPolicy(max_attempts=2, deadline_s=None)
    try:
        async with DuplexClient("ws://h", model="m", config=config, reconnect=policy, trace=trace) as client:
            assert_type(client, DuplexClient)
            await talk(client, trace)
        async with DuplexOmni("loopback") as omni, InlineDuplexClient(omni, reconnect=None) as inline:
            await talk(inline, trace)
            session = await omni.open_session(config)
            assert_type(session, DuplexSessionHandle)
            assert_type(await session.submit(AppendAudio(audio=b"")), str)
    except DuplexProtocolError as error:
        assert_type(error.code, str)
        assert_type(error.retry_after_ms, int | None)
    except DuplexClientError as error:
        assert_type(error.retryable, bool)
"""

WRONG = """
from duologue.client import DuplexClient, DuplexTrace, EventCollector, Observer, ReconnectPolicy, SessionConfig
from duologue.inline import DuplexOmni, InlineDuplexClient


async def wrong(client: DuplexClient, omni: DuplexOmni) -> None:
    DuplexClient()  # E: call-arg
    DuplexClient("ws://h", "m")  # E: call-arg
    DuplexClient("ws://h", reconnect=5)  # E: arg-type
    DuplexClient("ws://h", config={"voice": "x"})  # E: arg-type
    DuplexClient("ws://h", trace=print)
    InlineDuplexClient("ws://h")  # E: arg-type
    InlineDuplexClient(omni, api_key="k")  # E: call-arg
    SessionConfig(input_audio="pcm16")  # E: arg-type
    SessionConfig(voise="x")  # E: call-arg
    ReconnectPolicy(max_attempts="5")  # E: arg-type
    ReconnectPolicy().max_attempts = 5  # E: misc
    await client.append_audio("sound")  # E: arg-type
    await client.ack_playback()  # E: call-arg
    await client.ack_playback(100, "resp_1")  # E: call-arg
    await client.send("session.close")  # E: arg-type
    client.session_id = "mine"  # E: misc
    client.observe(print)  # E: arg-type
    for event in client.events():  # E: attr-defined
        pass
    async for response in client.responses():
        response.audio.delta  # E: attr-defined
    client.say("hello")  # E: attr-defined
    session = await omni.open_session(7)  # E: arg-type
    await session.submit({"type": "session.close"})  # E: arg-type
    await session.append_audio("sound")  # E: arg-type
    omni.detach_session(session)  # E: arg-type
    DuplexTrace(max_entries="many")  # E: arg-type
    EventCollector().timing_summary().first_audio_ms + 1  # E: operator
    Observer()  # E: abstract
"""


def said(program: str, folder: Path) -> list[tuple[int, str]]:
    """(line, code) of each error that mypy reports."""
    path = folder / "program.py"
    path.write_text(program)
    roots = ("shared", "models", "services/gateway", "services/session", "services/stages", "client", "inline")
    environment = {**os.environ, "MYPYPATH": os.pathsep.join(str(ROOT / root) for root in roots)}
    config = folder / "mypy.ini"
    config.write_text(
        "[mypy]\nstrict = True\nnamespace_packages = True\nexplicit_package_bases = True\n"
        "[mypy-lupa.*,uvloop.*,hiredis.*,onnxruntime.*,soxr.*,numpy.*,uvicorn.*]\nignore_missing_imports = True\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", str(folder / "cache")]
    command += ["--follow-imports", "silent", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=220, cwd=folder, env=environment)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^program\.py:(\d+): error: .*\[([a-z-]+)\]$", done.stdout, re.MULTILINE)
    assert len(found) == done.stdout.count("error:"), done.stdout
    return [(int(line), code) for line, code in found]


def test_a_right_program_is_right_and_each_mistake_is_found_where_it_is(tmp_path: Path) -> None:
    program = RIGHT + WRONG
    expected = [
        (number, match[1])
        for number, line in enumerate(program.splitlines(), 1)
        if (match := re.search(r"# E: ([a-z-]+)$", line))
    ]
    found = said(program, tmp_path)
    assert found == expected, sorted(set(found) ^ set(expected))
