"""Each session has a word and a tone of its own: whatever dies meanwhile, nobody hears those of another."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
from system.running import RunningSystem, eventually
from system.talkers import Talker, go_on
from system.wire import Event, Wire, audio, breaks, pick, session_object, transcript

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

WORDS = ("alder", "birch", "cedar", "dogwood", "elder", "fir", "ginkgo", "hazel")
SESSIONS = 24
VICTIMS = ("worker-loopback-a", "shard-1", "worker-loopback-b")


@pytest.fixture
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    with RunningSystem(tmp_path_factory.mktemp("canaries"), "--pipelines", "loopback", "--shards", "2") as running:
        yield running


def word_of(number: int) -> str:
    return f"{WORDS[number % len(WORDS)]}{number}"


def tone_of(number: int) -> float:
    return 400 + 7 * number + 0.3


async def _open(system: RunningSystem, number: int) -> Talker:
    word = word_of(number)
    script = [{"listen": 2}, {"speak": {"units": 4, "text": f"{word} {word} {word} {word}"}}] * 100
    return Talker(await Wire.open(system.url, session_object(script=script, audio=f"tone:{tone_of(number)}")))


async def test_sec_07_nobody_hears_anything_of_another_session_while_processes_die(system: RunningSystem) -> None:
    talkers = [await _open(system, number) for number in range(SESSIONS)]
    try:
        await go_on(talkers, 1)
        for victim in VICTIMS:
            pid = system.pid_of(victim)
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda: system.pid_of(victim) not in (0, pid), f"{victim} is back")  # noqa: B023 - awaited here
            await go_on(talkers, 2)
    finally:
        await asyncio.gather(*(talker.stop() for talker in talkers))
    for number, talker in enumerate(talkers):
        assert transcript(talker.log).replace(word_of(number), "").strip() == ""
        whole = _completed(talker.log)
        assert len(whole) >= 1 + 2 * len(VICTIMS)
        for response_id in whole:
            sound = audio(_of(talker.log, response_id))
            assert sound and breaks(sound, tone_of(number)) == [], (number, response_id)


def _completed(log: list[Event]) -> list[str]:
    done = [event["response"] for event in pick(log, "response.done")]
    return [response["id"] for response in done if response["status"] == "completed"]


def _of(log: list[Event], response_id: str) -> list[Event]:
    return [event for event in pick(log, "response.output_audio.delta") if event["response_id"] == response_id]
