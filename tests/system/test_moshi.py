"""Moshi and PersonaPlex through gateway, shard and worker: each session as if it were alone, whoever is beside it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
from system.frames import LISTENED, Answer, Part, answered, answers, python_of_environment, write_checkpoint
from system.running import RunningSystem, eventually
from system.wire import Wire, pick, transcript

pytestmark = [
    pytest.mark.system,
    pytest.mark.models,
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        not python_of_environment().exists(), reason="the environment `moshi` is not here: `make env NAME=moshi`"
    ),
]

FRAMES = 36
PERSONAS = (
    (("voice", "NATF0"), ("instructions", "the quick fox")),
    (("voice", "VARM1"), ("instructions", "nobody minds")),
    (("voice", "VARM1"), ("instructions", "")),
    (("instructions", "rain falls"),),
)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    moshi = write_checkpoint(tmp_path_factory.mktemp("moshi"), "--slots", "3")
    personaplex = write_checkpoint(tmp_path_factory.mktemp("personaplex"), "--personaplex")
    home = tmp_path_factory.mktemp("system")
    with RunningSystem(home, "--pipelines", f"{moshi},{personaplex}") as running:
        yield running


async def alone(url: str, part: Part) -> list[Answer]:
    wire = await part.open_when_free(url)
    await part.say(wire)
    told = await answered(wire, part.frames)
    await wire.end()
    return told


def parts_of(model: str) -> list[Part]:
    """Four sessions that differ in what they say, how they draw, and in what pieces they send."""
    personas = PERSONAS if model == "personaplex" else ((),) * 4
    pieces, temperatures = (1920, 1200, 4800, 1920), (0.0, 0.8, 0.0, 0.9)
    return [Part(model, n + 1, FRAMES, pieces[n], temperatures[n], persona) for n, persona in enumerate(personas)]


@pytest.mark.parametrize("model", ["moshi", "personaplex"])
async def test_three_desynchronised_sessions_and_a_reused_slot_equal_solo_runs(
    system: RunningSystem, model: str
) -> None:
    parts = parts_of(model)
    wires: list[Wire] = []
    for part in parts[:3]:
        wires.append(await part.open_when_free(system.url))
        await part.say(wires[-1])
        await answered(wires[-1], 5)  # the next one comes when this one is on its way
    told = list(await asyncio.gather(*(answered(wire, FRAMES) for wire in wires[:2])))
    await wires[0].end()
    again = await parts[3].open_when_free(system.url)  # in the slot that was the first one's
    await parts[3].say(again)
    told += await asyncio.gather(answered(wires[2], FRAMES), answered(again, FRAMES))
    for wire in (wires[1], wires[2], again):
        await wire.end()
    for part, together in zip(parts, told, strict=True):
        assert together == await alone(system.url, part)
    assert all(any(text for text, _ in one if text != "listened") for one in told), "each says something"
    assert len({str(one) for one in told}) == 4


async def test_a_session_from_opening_to_close(system: RunningSystem) -> None:
    """Every kind of event of a PersonaPlex session, in order."""
    part = Part("personaplex", 5, 60, session=PERSONAS[0])
    wire = await part.open(system.url)
    await part.say(wire)
    told = await answered(wire, 60)
    closed = await wire.end()
    assert closed["type"] == "session.closed"
    created = wire.log[0]["session"]
    assert (created["model"], created["voice"], created["instructions"]) == ("personaplex", "NATF0", "the quick fox")
    assert created["capabilities"]["implementation_level"] == "model_native_duplex"
    assert created["capabilities"]["chunk_period_ms"] == 80
    assert told.count(LISTENED) > 3, "it listens"
    assert all(len(sound) == 3840 for answer in told if answer != LISTENED for sound in answer[1:]), "80 ms at 24 kHz"
    done = pick(wire.log, "response.done")
    begun = pick(wire.log, "response.created")
    assert len(begun) == len(done) == len(pick(wire.log, "response.speak")) > 1, "it speaks more than once"
    assert all(event["response"]["status"] in ("completed", "cancelled") for event in done)
    assert done[0]["response"]["status"] == "completed"
    usage = done[0]["response"]["usage"]
    assert usage["input_token_details"]["text_tokens"] > 5, "the role"
    assert usage["output_token_details"]["audio_tokens"] > 0 and usage["input_token_details"]["audio_tokens"] > 0
    assert transcript(wire.log).strip()
    assert not pick(wire.log, "error")


async def test_a_hard_stop_is_silence_until_the_model_pauses(system: RunningSystem) -> None:
    part = Part("personaplex", 6, 60, session=PERSONAS[1])
    straight = await alone(system.url, part)
    at = next(n for n in range(10, 50) if straight[n][0].strip() and straight[n] != LISTENED)
    wire = await part.open_when_free(system.url)
    await part.say(wire, 0, at + 1)
    await answered(wire, at + 1)
    response = pick(wire.log, "response.created")[-1]["response"]["id"]
    await wire.send({"type": "response.cancel"})
    done = await wire.until("response.done")
    assert (done["response"]["id"], done["response"]["status"]) == (response, "cancelled")
    before = len(answers(wire.log))
    await part.say(wire, at + 1)
    await answered(wire, before + 1)
    assert answers(wire.log)[before] == LISTENED, "what it goes on to say is not heard"
    await wire.end()


@pytest.mark.parametrize(
    ("session", "param"),
    [
        ({"voice": "../../etc/passwd"}, "session.voice"),
        ({"voice": "NATM3"}, "session.voice"),
        ({"extra_body": {"auto_response": True, "personaplex": {"voice_path": "x"}}}, "extra_body.personaplex"),
        ({"extra_body": {}}, "session.extra_body.auto_response"),
    ],
)
async def test_what_is_wrong_is_named_before_anything_starts(
    system: RunningSystem, session: dict[str, object], param: str
) -> None:
    wire = await Wire.dial(system.url, autostart="0")
    await wire.send({"type": "session.update", "session": {**Part("personaplex", 1, 1).object, **session}})
    while (event := await wire.read())["type"] != "error":
        pass
    assert event["error"]["param"] == param
    await wire.cut()


async def test_one_more_session_than_slots_is_refused(system: RunningSystem) -> None:
    part = Part("moshi", 1, 4)
    wires = [await part.open_when_free(system.url) for _ in range(3)]
    fourth = await Wire.dial(system.url, autostart="0")
    await fourth.send({"type": "session.update", "session": part.object})
    while (event := await fourth.read())["type"] != "error":
        pass
    assert event["error"]["code"] == "resource_exhausted"
    await fourth.cut()
    for wire in wires:
        await wire.end()


async def test_after_the_loss_of_its_worker_a_session_goes_on_with_its_context(system: RunningSystem) -> None:
    """The opening is made again, what was heard is heard again, and what follows is as if nothing had happened."""
    part = Part("personaplex", 7, 60, session=PERSONAS[0])
    straight = await alone(system.url, part)
    at = next(n for n in range(20, 50) if straight[n - 2 : n] == [LISTENED] * 2)
    wire = await part.open(system.url)
    await part.say(wire, 0, at)
    assert await answered(wire, at) == straight[:at]
    victim = system.pid_of("stages personaplex") or next(
        process.pid for process in system.state.processes if "personaplex" in process.name
    )
    os.kill(victim, signal.SIGKILL)
    await eventually(lambda: victim not in {process.pid for process in system.state.processes}, "another one is there")
    await part.say(wire, at)
    assert (await answered(wire, 60))[at:] == straight[at:]
    await wire.end()
