"""A Duologue in front of a second one: a conversation through both, and what each does about the other's end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import conformance
import pytest
from system.running import RunningSystem
from system.wire import Wire, append, audio, breaks, level, pick, session_object, transcript

pytestmark = pytest.mark.system

HZ = 440.3


@contextlib.contextmanager
def bridged(home: Path, dialect: str) -> Iterator[tuple[RunningSystem, RunningSystem]]:
    with RunningSystem(home / "upstream", "--pipelines", "loopback") as upstream:
        pipeline = home / "loopback.toml"
        pipeline.write_text(conformance.bridge_pipeline("loopback", upstream.port, dialect, 80))
        with RunningSystem(home / "front", "--pipelines", str(pipeline)) as front:
            yield upstream, front


async def spoken(wire: Wire) -> None:
    """Feed silence until an answer is over."""

    async def pump() -> None:
        while True:
            await wire.send(append(level(0)))
            await asyncio.sleep(0.02)

    feeding = asyncio.create_task(pump())
    try:
        await wire.until("response.done")
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)


@pytest.mark.parametrize("dialect", ["duplex", "openai"])
async def test_a_conversation_goes_through_both_and_is_resumed_at_the_front(tmp_path: Path, dialect: str) -> None:
    with bridged(tmp_path, dialect) as (_, front):
        first, second = {"units": 6, "text": "good morning to you"}, {"units": 4, "text": "and to you"}
        script = [{"listen": 2}, {"speak": first}, {"listen": 60}, {"speak": second}, {"listen": 1}]
        wire = await Wire.open(front.url, session_object(script=script, audio=f"tone:{HZ}"))
        created = wire.log[0]
        await spoken(wire)
        assert transcript(wire.log) == "good morning to you"
        assert breaks(audio(wire.log), HZ) == []
        assert len(audio(wire.log)) == 6 * 80 * 48
        last = max(event.get("server_event_seq", 0) for event in wire.log[1:])
        await wire.cut()
        again = await Wire.resume(front.url, created["session"]["id"], created["resume_token"], last)
        await again.until("session.resumed")
        await spoken(again)
        assert transcript(again.log) == "and to you"
        assert breaks(audio(again.log), HZ) == []
        assert (await again.end())["type"] == "session.closed"


async def test_an_upstream_that_is_gone_ends_a_new_session_by_name(tmp_path: Path) -> None:
    with bridged(tmp_path, "duplex") as (upstream, front):
        upstream.__exit__()
        wire = await Wire.open(front.url, session_object())
        while wire.log[-1]["type"] != "session.closed":
            await wire.read()
        (error,) = pick(wire.log, "error")
        assert error["error"]["code"] == "upstream_unavailable"
        assert wire.log[-1]["reason"] == "upstream_unavailable"
