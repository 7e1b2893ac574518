"""A stage worker or a shard dies in the middle of a conversation, and the model goes on with what it had heard."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from system.running import RunningSystem, eventually, status
from system.wire import Wire, append, level, pick, session_object

from duologue.models.loopback.memory import checksum

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

PIPELINE = Path(__file__).parents[1] / "pipelines" / "loopback-heard.toml"
BEFORE, AFTER, SPOKEN = 25, 20, 3
LITTLE = 5
"""What is said while a context may still be rebuilt: with what the gateway sends again, less than `max_rebuild_queue_s`
allows, whatever the machine takes for it."""
SCRIPT = [
    {"listen": 5},
    {"speak": {"units": SPOKEN, "text": "first"}},
    {"listen": BEFORE + AFTER - 5 - SPOKEN},
    {"speak": {"units": SPOKEN, "text": "second"}},
    {"listen": 1},
]


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    with RunningSystem(tmp_path_factory.mktemp("rebuild"), "--pipelines", str(PIPELINE), "--shards", "2") as running:
        yield running


class Conversation:
    """One session, each unit of its input told from all others by its level."""

    def __init__(self, wire: Wire, tone: int) -> None:
        self.wire = wire
        self.tone = tone
        self.said: list[bytes] = []

    @classmethod
    async def open(cls, url: str, tone: int) -> Conversation:
        return cls(await Wire.open(url, session_object("loopback-heard", script=SCRIPT, heard=200)), tone)

    async def say(self, units: int) -> None:
        for _ in range(units):
            pcm = level(self.tone + 37 * len(self.said))
            self.said.append(pcm)
            await self.wire.send(append(pcm))

    async def answered(self, listens: int) -> None:
        """Until the model has decided so often, in all, to go on listening."""
        while len(pick(self.wire.log, "response.listen")) < listens:
            await self.wire.until("response.listen")

    async def told(self) -> str:
        """What the next answer says of what was heard."""
        done = await self.wire.until("response.output_audio_transcript.done")
        return str(done["transcript"])

    def heard(self, units: int) -> str:
        sound = [(np.frombuffer(pcm, "<i2") / np.float32(32768)).astype("<f4").tobytes() for pcm in self.said[:units]]
        return f" (heard {units}: {checksum(sound):08x})"


@pytest.mark.parametrize("victim", ["worker-heard-a", "worker-heard-b"])
async def test_a_killed_worker_takes_nothing_along_that_was_heard(system: RunningSystem, victim: str) -> None:
    await eventually(system.ready, "the system is ready, after what was done to it before too")
    talk, other = await Conversation.open(system.url, 1000), await Conversation.open(system.url, 9000)
    for one in (talk, other):
        await one.say(BEFORE)
        assert await one.told() == f"first{one.heard(6)}"
    await talk.answered(BEFORE - SPOKEN)
    before = system.pid_of(victim)
    os.kill(before, signal.SIGKILL)
    for one in (talk, other):
        await one.say(AFTER + 1)
    await eventually(lambda: system.pid_of(victim) not in (0, before), f"{victim} is started again")
    for one in (talk, other):
        assert await one.told() == f"second{one.heard(BEFORE + AFTER + 1)}"
        assert not pick(one.wire.log, "error")
        await one.wire.end()


async def test_an_heir_gives_new_stages_what_the_killed_shards_sessions_had_heard(system: RunningSystem) -> None:
    await eventually(system.ready, "the system is ready, after what was done to it before too")
    talks = [await Conversation.open(system.url, 1000 + 4000 * n) for n in range(4)]
    # Looked up before anybody speaks: what was heard last has no time to be written when it is killed.
    await eventually(lambda: sum(loads(system).values()) == len(talks), "the shards have told of these sessions")
    victim = system.pid_of(max(loads(system).items(), key=lambda pair: pair[1])[0])
    for talk in talks:
        await talk.say(BEFORE)
        assert await talk.told() == f"first{talk.heard(6)}"
    for talk in talks:
        await talk.answered(BEFORE - SPOKEN)
    os.kill(victim, signal.SIGKILL)
    for talk in talks:
        await talk.say(LITTLE)
    for talk in talks:
        await talk.answered(BEFORE - SPOKEN + LITTLE)
        await talk.say(AFTER + 1 - LITTLE)
    for talk in talks:
        assert await talk.told() == f"second{talk.heard(BEFORE + AFTER + 1)}"
        await talk.wire.end()
    assert "goes on here" in system.log.read_text(errors="replace")


def loads(system: RunningSystem) -> dict[str, int]:
    """How many sessions each shard has."""
    members = status("--home", str(system.home))["members"]
    return {member["id"]: member["load"] for member in members if member["kind"] == "shard"}
