"""A session that is cut in the middle of a spoken answer goes on at another gateway: nothing missing, nothing twice.

Raw sockets: no client library hides a doubled event here.
"""

from __future__ import annotations

import asyncio
import os
import random

import pytest
from system.conftest import TwoGateways
from system.wire import Event, Wire, append, audio, breaks, level, pick, seqs, session_object, transcript

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

SESSIONS, CUTS = 10, 5
UNITS = 60
#: No whole number of periods in a unit: a lost unit changes the phase.
TONE_HZ = 443.1
TEXT = " ".join(f"word{n}" for n in range(UNITS))
UNIT_BYTES = 24_000 * 80 // 1000 * 2


class Cut:
    """One session over many sockets. `heard` is what all of them gave, in the order in which it came."""

    def __init__(self, urls: tuple[str, ...], chance: random.Random) -> None:
        self.urls, self.chance = urls, chance
        # Two events for each unit, between the opening of the answer and its end.
        self.cuts = sorted(chance.sample(range(12, 2 * UNITS), CUTS))
        self.heard: list[Event] = []
        self.answers: list[Event] = []
        self.resumed: list[Event] = []

    async def run(self) -> None:
        script = [{"speak": {"units": UNITS, "text": TEXT}}, {"listen": 1}]
        wire = await Wire.open(self.urls[0], session_object(script=script, audio=f"tone:{TONE_HZ}"))
        self.created = wire.log[0]
        await wire.send(append(level(4000)))
        for number, last in enumerate(self.cuts, 1):
            await self._read_through(wire, last)
            await wire.cut()
            await asyncio.sleep(self.chance.choice((0.0, 0.02, 0.3)))
            wire = await self._resume(self.urls[number % 2])
        await self._read_through(wire, None)
        await wire.end()
        self.heard += wire.log

    async def _read_through(self, wire: Wire, last: int | None) -> None:
        """Read to this number, or to the end of the answer; acknowledge now and then."""
        while True:
            event = await wire.read()
            assert event["type"] != "error", event
            seq = event.get("server_event_seq")
            if seq is not None and self.chance.random() < 0.2:
                await wire.send({"type": "session.event_ack", "server_event_seq": seq})
            if seq == last or (last is None and event["type"] == "response.done"):
                break
        if last is not None:
            self.heard += wire.log

    async def _resume(self, url: str) -> Wire:
        newest = self.resumed[-1] if self.resumed else self.created
        session_id, token = self.created["session"]["id"], newest["resume_token"]
        wire = await Wire.resume(url, session_id, token, seqs(self.heard)[-1])
        answer = await wire.read()
        assert answer["type"] == "session.resumed", answer
        assert "server_event_seq" not in answer
        self.resumed.append(answer)
        return wire


async def test_fifty_cuts_lose_nothing_and_double_nothing(served: TwoGateways) -> None:
    seed = int(os.environ.get("DUOLOGUE_SEED") or random.randrange(2**32))
    print(f"DUOLOGUE_SEED={seed}")
    sessions = [Cut(served.urls, random.Random(seed + n)) for n in range(SESSIONS)]
    async with asyncio.TaskGroup() as group:
        for session in sessions:
            group.create_task(session.run())
    for session in sessions:
        _check(session)


async def test_a_resume_whose_answer_was_never_seen_can_be_tried_again(served: TwoGateways) -> None:
    """The client has only the old token then, and it counts, once the gateway has let go of the lost socket."""

    async def one(delay_s: float) -> None:
        script = [{"speak": {"units": 30, "text": TEXT}}, {"listen": 1}]
        wire = await Wire.open(served.urls[0], session_object(script=script, audio=f"tone:{TONE_HZ}"))
        session_id, token = wire.log[0]["session"]["id"], wire.log[0]["resume_token"]
        await wire.send(append(level(4000)))
        while seqs(wire.log)[-1:] != [20]:
            await wire.read()
        await wire.cut()
        lost = await Wire.resume(served.urls[1], session_id, token, 20)
        await asyncio.sleep(delay_s)
        await lost.cut()
        await asyncio.sleep(0.25)  # the least that a client waits between two tries
        again = await Wire.resume(served.urls[0], session_id, token, 20)
        assert (await again.read())["type"] == "session.resumed", again.log
        await again.until("response.done")
        await again.end()
        heard = wire.log + again.log
        assert seqs(heard) == list(range(1, seqs(heard)[-1] + 1))
        assert breaks(audio(heard), TONE_HZ) == []

    async with asyncio.TaskGroup() as group:
        for n in range(12):
            group.create_task(one(n * 0.002))


def _check(session: Cut) -> None:
    numbers = seqs(session.heard)
    assert numbers == list(range(1, numbers[-1] + 1)), "each number once, in order, over all sockets"
    sound = audio(session.heard)
    assert len(sound) == UNITS * UNIT_BYTES
    assert breaks(sound, TONE_HZ) == []
    assert transcript(session.heard) == TEXT
    done = pick(session.heard, "response.done")
    assert [event["response"]["status"] for event in done] == ["completed"]
    generations = [event["attachment_generation"] for event in (session.created, *session.resumed)]
    assert generations == sorted(set(generations)), "every attachment has a number of its own"
    tokens = {event["resume_token"] for event in (session.created, *session.resumed)}
    assert len(tokens) == CUTS + 1, "every resume is given a token of its own"
    assert len({event["event_id"] for event in session.heard}) == len(session.heard)
