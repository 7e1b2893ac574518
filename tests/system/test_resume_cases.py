"""Faults that users reported of resumes elsewhere, at real sockets: each session is left at one gateway and taken up
at another."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from system.conftest import TwoGateways
from system.wire import OUTPUT_RATE_HZ, Event, Wire, append, audio, level, pick, seqs, session_object
from unit.session.core.cases.test_protocol_cases import unknown_to_a_client

from duologue.protocol.duplex import AudioFormat, OutputConverter

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

# -- AUD-03 -----------------------------------------------------------------------------------------------

CHIRP_MS, AROUND_MS = 240, 160


def chirp(rate: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    t = np.arange(rate * CHIRP_MS // 1000) / rate
    around = np.zeros(rate * AROUND_MS // 1000)
    return np.concatenate((around, 0.4 * np.sin(2 * np.pi * (300 * t + 2500 * t**2)), around))


def likeness(events: list[Event]) -> float:
    """How well the chirp is found in what the model gave back, wherever it is: 1 is the chirp itself."""
    heard = np.frombuffer(audio(events), "<i2").astype(np.float64)
    wanted = chirp(OUTPUT_RATE_HZ)
    wanted = wanted[OUTPUT_RATE_HZ * AROUND_MS // 1000 : -OUTPUT_RATE_HZ * AROUND_MS // 1000]
    if len(heard) < len(wanted):
        return 0.0
    products = np.correlate(heard, wanted)
    powers = np.convolve(heard**2, np.ones(len(wanted)), "valid")
    return float(np.max(products / np.sqrt(np.maximum(powers, 1.0) * np.sum(wanted**2))))


async def echoed(wire: Wire, sound: bytes) -> float:
    """Send the sound, without a word about its format, and read until it has been given back."""
    since, best = len(wire.log), 0.0
    await wire.send(append(sound))
    for _ in range(60):
        await wire.until("response.output_audio.delta")
        best = max(best, likeness(wire.log[since:]))
        if best > 0.97:
            break
    return best


@pytest.mark.parametrize(
    "source", [AudioFormat("pcm_f32le", 16_000), AudioFormat("g711_ulaw", 8_000)], ids=["f32le", "ulaw"]
)
async def test_aud_03_the_input_format_is_kept_at_another_gateway(served: TwoGateways, source: AudioFormat) -> None:
    """The model gives back what it hears, so what it hears can be compared."""
    script = [{"speak": {"units": 4000, "text": "echo"}}]
    session = session_object(script=script, audio="echo")
    del session["audio"]["input"], session["sample_rate_hz"]
    session["input_audio_format"] = {"type": source.name, "rate": source.rate}
    wire = await Wire.open(served.urls[0], session)
    pcm = (chirp(source.rate) * 32767).astype("<i2")
    sound = bytes(OutputConverter(source.rate, source).convert(pcm))
    assert await echoed(wire, sound) > 0.97
    created = wire.log[0]
    await wire.cut()
    again = await Wire.resume(served.urls[1], created["session"]["id"], created["resume_token"], seqs(wire.log)[-1])
    assert (await again.read())["type"] == "session.resumed"
    assert await echoed(again, sound) > 0.97
    await again.end()


# -- PRO-03 -----------------------------------------------------------------------------------------------

UNITS = 6
SCRIPT = [{"speak": {"units": UNITS, "text": "one two three four five six"}}, {"listen": 1}]
DELTAS = ("response.output_audio.delta", "response.output_audio_transcript.delta")


class Client:
    """One session over several sockets, in one dialect. `log` is what all of them gave."""

    def __init__(self, urls: tuple[str, ...], openai: bool) -> None:
        self.urls, self.openai = urls, openai
        self.query = {"duplex": "0"} if openai else {"autostart": "0"}
        self.log: list[Event] = []
        self.token = self.session_id = ""
        self.wire: Wire

    async def open(self) -> None:
        self.wire = await Wire.dial(self.urls[0], **self.query)
        session = session_object(script=SCRIPT)
        if self.openai:
            session |= {"input_audio_format": {"type": "audio/pcm", "rate": 24_000}}
            del session["sample_rate_hz"], session["audio"]
        await self.wire.send({"type": "session.update", "session": session})
        await self.read(lambda event: event["type"] == "session.updated")
        created = pick(self.log, "session.created")[0]
        self.session_id, self.token = created["session"]["id"], created["resume_token"]
        await self.wire.send(append(level(4000, 240)))

    async def read(self, last: Callable[[Event], bool]) -> Event:
        while True:
            event = await self.wire.read()
            self.log.append(event)
            if last(event):
                return event

    async def resume(self, url: str, after: int) -> Event:
        """Cut the socket and take the session up elsewhere; the first event there."""
        await self.wire.cut()
        if self.openai:
            claim = {"resume_session": self.session_id, "resume_token": self.token, "last_seq": str(after)}
            self.wire = await Wire.dial(url, **self.query, **claim)
        else:
            self.wire = await Wire.resume(url, self.session_id, self.token, after)
        answer = await self.wire.read()
        self.token = answer.get("resume_token", self.token)
        return answer


@asynccontextmanager
async def speaking(served: TwoGateways, openai: bool) -> AsyncIterator[Client]:
    client = Client(served.urls, openai)
    await client.open()
    try:
        yield client
    finally:
        await client.wire.cut()


@pytest.mark.parametrize("openai", [False, True], ids=["duplex", "openai"])
async def test_pro_03_a_cursor_in_the_middle_of_a_response_leaves_no_item_unknown(
    served: TwoGateways, openai: bool
) -> None:
    """A client that was cut after any event of the answer holds, or gets again, the item of every later one."""

    async def cut_after(seq: int) -> None:
        async with speaking(served, openai) as client:
            await client.read(lambda event: event.get("server_event_seq") == seq)
            await client.resume(served.urls[1], seq)
            await client.read(lambda event: event["type"] == "response.done")
            assert list(unknown_to_a_client(client.log)) == []
            assert seqs(client.log) == sorted(set(seqs(client.log))), "each number once"
            assert "response.output_item.added" in [event["type"] for event in client.log]
            assert len(pick(client.log, DELTAS[0])) == UNITS

    async with asyncio.TaskGroup() as group:
        for seq in range(2, 12):
            group.create_task(cut_after(seq))


@pytest.mark.parametrize("openai", [False, True], ids=["duplex", "openai"])
async def test_pro_03_a_client_with_a_gap_in_a_response_is_told_its_item(served: TwoGateways, openai: bool) -> None:
    """What the journal has let go of is told in `items`: every later event is about one of them."""
    async with speaking(served, openai) as client:
        heard = await client.read(lambda event: event["type"] in DELTAS)
        await client.wire.send({"type": "session.event_ack", "server_event_seq": heard["server_event_seq"]})
        await client.wire.send({"type": "conversation.item.retrieve", "item_id": heard["item_id"]})
        await client.read(lambda event: event["type"] == "conversation.item.retrieved")  # the acknowledgement counts
        gap = await client.resume(served.urls[1], 1)
        while gap["type"] in ("session.resumed", "session.created"):  # the journal is trimmed when there is time
            gap = await client.resume(served.urls[1], 1)
        head = gap["error"]["head_seq"] if openai else gap["head_seq"]
        assert gap["type"] == ("error" if openai else "session.resync_required")
        answer = await client.resume(served.urls[0], head)
        known = {item["id"] for item in answer["items"]}
        since = len(client.log)
        await client.read(lambda event: event["type"] == "response.done" or event.get("server_event_seq", 0) > head)
        about = {event["item_id"] for event in client.log[since:] if "item_id" in event}
        assert heard["item_id"] in known and about <= known


def test_the_chirp_is_not_found_in_what_is_read_wrongly() -> None:
    """The two ears of this page: sound read in another format is nothing like it."""
    floats = chirp(16_000).astype("<f4").tobytes()
    wrong = {"type": "response.output_audio.delta", "delta": base64.b64encode(floats).decode()}
    assert likeness([wrong]) < 0.5


# -- RES-01 -----------------------------------------------------------------------------------------------


async def answer_to(url: str, session_id: str, token: str, last_seq: int) -> tuple[Wire, Event]:
    wire = await Wire.resume(url, session_id, token, last_seq)
    return wire, await wire.read()


async def test_res_01_of_two_that_race_for_a_session_one_has_it_and_a_cut_resume_harms_nobody(
    served: TwoGateways,
) -> None:
    """Two gateways, one token, the same moment; then resumes that are cut at any moment of theirs."""
    chance = random.Random(4)
    wire = await Wire.open(served.urls[0], session_object(script=[{"speak": {"units": 4000, "text": "on"}}]))
    await wire.send(append(level(6000, 400)))
    await wire.until("response.output_audio.delta")
    session_id, token = wire.log[0]["session"]["id"], wire.log[0]["resume_token"]
    await wire.cut()
    again = None
    for _ in range(6):
        races = await asyncio.gather(*(answer_to(url, session_id, token, 1) for url in served.urls))
        won = [(there, told) for there, told in races if told["type"] == "session.resumed"]
        lost = [told for _, told in races if told["type"] == "error"]
        assert len(won) == 1 and len(lost) == 1, [told["type"] for _, told in races]
        assert lost[0]["error"]["code"] in ("invalid_resume_token", "session_resume_conflict"), lost
        there, told = won[0]
        await there.send({"type": "session.heartbeat"})
        await there.until("session.heartbeat_ack")
        token = told["resume_token"]
        await there.cut()
        for _ in range(3):
            cut = await Wire.resume(chance.choice(served.urls), session_id, token, 1)
            await asyncio.sleep(chance.random() * 0.05)
            await cut.cut()
            # It did not confirm what it may have been told, so the token before is good.
        for _ in range(100):
            again, told = await answer_to(chance.choice(served.urls), session_id, token, 1)
            if told["type"] == "session.resumed":
                break
            error = told["error"]  # a gateway may not know yet that its socket was cut, and holds the session
            assert error["retryable"] or error["code"] in ("invalid_resume_token", "session_resume_conflict"), told
            await again.cut()
            await asyncio.sleep(0.1)
        assert again is not None and told["type"] == "session.resumed", told
        await again.send({"type": "session.heartbeat"})
        await again.until("session.heartbeat_ack")
        numbers = seqs(again.log)
        assert numbers == list(range(2, numbers[-1] + 1)), "the replay, then what is new, each once"
        token = told["resume_token"]
        await again.cut()
    final, told = await answer_to(served.urls[0], session_id, token, 1)
    assert told["type"] == "session.resumed" and again is not final
    await final.end()


# -- RES-12 -----------------------------------------------------------------------------------------------

BACKLOG, HASTE = 375, 1.2
"""Units of 80 ms that wait in the journal: half a minute; and how much faster than that the client reads."""


async def test_res_12_a_client_that_is_hardly_faster_than_real_time_catches_up(served: TwoGateways) -> None:
    """It goes on talking while it reads, and is answered: what is new comes behind what is old, and all of it once.

    The journal has the backlog before the client comes back: a model without a pace that makes half a minute of sound
    while nobody has said yet where it is to go is a client that is too slow, and its session is closed for that."""
    wire = await Wire.open(served.urls[0], session_object(script=[{"speak": {"units": 4000, "text": "on"}}]))
    for _ in range(BACKLOG // 25):
        await wire.send(append(level(6000, 25 * 80)))
        for _ in range(25):
            await wire.until("response.output_audio.delta")
    created = wire.log[0]
    await wire.cut()
    again = await Wire.resume(served.urls[1], created["session"]["id"], created["resume_token"], 1)
    assert (await again.read())["type"] == "session.resumed"

    heard, said, due = 0, 0, asyncio.get_running_loop().time()
    while heard < BACKLOG * HASTE:
        if (await again.read())["type"] != "response.output_audio.delta":
            continue
        heard += 1
        if heard >= (said + 1) * HASTE:  # by what it has read, so that a machine that is slow is so on both sides
            said += 1
            await again.send(append(level(6000)))
        due += 0.08 / HASTE
        await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
    assert pick(again.log, "error") == []
    numbers = seqs(again.log)
    assert numbers == list(range(2, numbers[-1] + 1))
    await again.end()
