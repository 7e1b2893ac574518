"""The golden traces of the published contract, come out of a running system, except where a decision says otherwise."""

from __future__ import annotations

import asyncio
import re
import threading
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from system.conftest import TwoGateways
from system.golden_traces.scene import (
    COMMIT,
    COMMIT_ASKING,
    CREATE,
    DELTAS,
    Scene,
    command,
    silence,
    speech,
    told_as,
)
from system.running import RunningSystem
from system.wire import Wire, level, pick, seqs, session_object
from unit.session.core.fake_models import FakeModel
from unit.session.core.session_world import World, types
from unit.session.core.test_conversation import text

from duologue.inline import DuplexOmni, system
from duologue.models import loopback
from duologue.protocol.duplex import CreateItem, CreateResponse, ErrorEvent, SessionHeartbeat
from duologue.session.core import Detached, run_offload

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

DATA = tomllib.loads(Path(__file__).with_name("traces.toml").read_text(encoding="utf-8"))
STEPS: dict[str, dict[str, Any]] = {step["name"]: step for step in DATA["step"]}
Steps = dict[str, list[str]]


def written_out(line: list[str]) -> Iterator[str]:
    for name in line:
        if name in DATA["runs"]:
            yield from written_out(DATA["runs"][name])
        else:
            yield name


def due(name: str) -> list[str]:
    """What Duologue sends at a step."""
    step = STEPS[name]
    return list(written_out(step.get("instead", step["golden"])))


def hold(steps: Steps, *, trace: int) -> None:
    """These are all the steps of the trace, and each went as it must."""
    assert steps.keys() == {name for name in STEPS if name.split()[0] == str(trace)}
    assert steps == {name: due(name) for name in steps}


def speaks(units: int, words: str = "hello there") -> list[dict[str, Any]]:
    return [{"speak": {"units": units, "text": words}}]


LONG = speaks(60, " ".join(["word"] * 60))
AT_THE_END = "rate_limits.updated"


async def test_trace_1_open(served: TwoGateways) -> None:
    wire = await Wire.dial(served.urls[0], autostart="0")
    await wire.send(command("session.update", session=session_object(auto=False)))
    await wire.until("session.updated")
    hold({"1 open": types(wire.log)}, trace=1)
    assert [event.get("server_event_seq") for event in wire.log] == [None, 1]
    await wire.cut()


async def test_trace_2_a_turn_that_is_answered_when_asked(served: TwoGateways) -> None:
    scene = await Scene.open(served.urls[0], script=speaks(2))
    await scene.step("2 speech", speech())
    await scene.step("2 commit", COMMIT)
    await scene.step("2 response.create", CREATE, until=AT_THE_END)
    hold(scene.steps, trace=2)
    await scene.leave()


async def test_trace_3_a_commit_that_asks_for_a_response(served: TwoGateways) -> None:
    scene = await Scene.open(served.urls[0], script=LONG)
    await scene.step("2 speech", speech())
    del scene.steps["2 speech"]
    await scene.step("3 commit that asks for a response", COMMIT_ASKING, until="response.content_part.added")
    hold(scene.steps, trace=3)
    await scene.leave()


async def test_trace_4_a_model_that_decides_its_own_turns(served: TwoGateways) -> None:
    script = [{"listen": 1}, *speaks(2), {"listen": 1}]
    scene = await Scene.open(served.urls[0], "loopback-1s", auto=True, script=script)
    await scene.step("4 auto, less than a unit", *[speech(200)] * 4)
    seen = await scene.step("4 auto, the model listens", speech(200), until="response.listen")
    assert seen[0]["response"]["metadata"]["reason"] == "model_listen" and "response_id" not in seen[0]
    assert (await scene.told())["turn_id"] == 0
    await scene.step("4 auto, the model speaks", *[speech(200)] * 10, until=AT_THE_END)
    hold(scene.steps, trace=4)
    session = await scene.told()
    assert (session["turn_id"], session["turn_state"]) == (1, "idle")
    await scene.leave()


async def test_trace_5_cancel_before_any_audio(served: TwoGateways) -> None:
    scene = await Scene.open(served.urls[0], script=LONG, stage_ms=[1500])
    await scene.wire.send(speech(80))
    await scene.wire.send(COMMIT_ASKING)
    await scene.wire.until("response.content_part.added")
    seen = await scene.step("5 cancel before any audio", command("response.cancel"), until=AT_THE_END)
    hold(scene.steps, trace=5)
    ended = pick(seen, "response.done")[0]["response"]
    assert (ended["status"], ended["status_details"]["reason"]) == ("cancelled", "client_cancelled")
    assert (await scene.told())["epoch"] == 1
    await scene.leave()


async def test_trace_6_cancel_while_speaking(served: TwoGateways) -> None:
    steps: Steps = {}
    for name, sent in (
        ("6 cancel", "response.cancel"),
        ("6 barge_in", "barge_in"),
        ("6 output_audio_buffer.clear", "output_audio_buffer.clear"),
    ):
        scene = await Scene.open(served.urls[0], script=LONG)
        await scene.wire.send(speech(80))
        await scene.wire.send(COMMIT_ASKING)
        await scene.wire.until(DELTAS[1])
        seen = await scene.step(name, command(sent), until=AT_THE_END, hide=DELTAS)
        assert pick(seen, "response.done")[0]["response"]["status"] == "cancelled"
        assert (await scene.told())["epoch"] == 1
        steps |= scene.steps
        await scene.leave()
    hold(steps, trace=6)


async def test_trace_7_a_turn_over_an_answer(served: TwoGateways) -> None:
    scene = await Scene.open(served.urls[0], script=LONG)
    await scene.wire.send(speech(80))
    await scene.wire.send(COMMIT_ASKING)
    await scene.wire.until(DELTAS[1])
    seen = await scene.step("7 speech over an answer", speech(300), hide=DELTAS)
    (decided,) = pick(seen, "overlap.decision")
    assert (decided["action"], decided["reason"]) == ("listen", "policy_listen_only")
    seen = await scene.step("7 short commit", COMMIT, hide=DELTAS)
    assert pick(seen, "input_audio_buffer.committed")[0]["event"]["overlap_ack"] is True
    await scene.step("7 speech over an answer", speech(), hide=DELTAS)
    seen = await scene.step("7 long commit", COMMIT_ASKING, hide=DELTAS)
    assert pick(seen, "input_audio_buffer.committed")[0]["event"]["overlap_deferred"] is True
    await scene.step("7 end of the answer", until="response.content_part.added", hide=DELTAS)
    hold(scene.steps, trace=7)
    await scene.leave()


async def test_trace_8_an_append_that_fails(served: TwoGateways) -> None:
    fail = {"stage": 1, "unit": 0, "how": "error"}
    scene = await Scene.open(served.urls[0], script=speaks(2), fail=fail)
    await scene.step("2 speech", speech(80))
    seen = await scene.step("8 append that fails", COMMIT_ASKING, until="turn.event")
    (error,) = pick(seen, "error")
    assert (error["error"]["code"], error["error"]["retryable"]) == ("runtime_append_failed", False)
    assert pick(seen, "response.done")[0]["response"]["status"] == "failed"
    assert pick(seen, "turn.event")[0]["event"] == "user_started"
    await scene.step("2 speech", speech(80))
    await scene.step("8 next commit", COMMIT)
    del scene.steps["2 speech"]
    hold(scene.steps, trace=8)
    await scene.leave()


async def test_trace_9_silence_that_nobody_waits_for(served: TwoGateways) -> None:
    scene = await Scene.open(served.urls[0], "loopback-1s")
    seen = await scene.step("9 silence, turn-based", silence())
    assert seen[0]["response"]["metadata"]["reason"] == "silence_or_noise"
    auto = await Scene.open(served.urls[0], "loopback-1s", auto=True)
    await auto.step("9 silence, auto", silence())
    hold(scene.steps | auto.steps, trace=9)
    await scene.leave()
    await auto.leave()


async def test_trace_10_a_silent_commit(served: TwoGateways) -> None:
    scene = await Scene.open(served.urls[0], "loopback-1s", auto=True)
    seen = await scene.step("10 silent commit, auto", silence(), COMMIT)
    hold(scene.steps, trace=10)
    assert seen[0]["item"]["content"][0]["transcript"] == ""
    await scene.leave()


async def test_trace_11_streamed_text(served: TwoGateways) -> None:
    scene = await Scene.open(served.urls[0])
    seen = await scene.step("11 push_text", command("push_text", text="hello"))
    hold(scene.steps, trace=11)
    assert seen[0]["error"]["code"] == "native_text_append_unsupported"
    await scene.leave()


async def test_trace_12_a_turn_of_text(served: TwoGateways) -> None:
    scene = await Scene.open(served.urls[0], script=LONG)
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
    await scene.step("12 text item", command("conversation.item.create", item=item))
    await scene.step(
        "12 response.create, model with text turns", CREATE, until="response.content_part.added", hide=DELTAS
    )
    await scene.leave()
    deaf = FakeModel()  # no model that ships is like this
    deaf.text_turns = False
    world = World(deaf)
    world.send(CreateItem(item=text("hello")))
    seen = world.send(CreateResponse())
    assert [told_as(event) for event in seen] == ["error text_only_turn_unsupported"]
    hold(scene.steps | {"12 response.create, model without text turns": types(seen)}, trace=12)


async def test_trace_13_truncate(served: TwoGateways) -> None:
    scene = await Scene.open(served.urls[0], script=speaks(2))
    await scene.wire.send(speech(80))
    await scene.wire.send(COMMIT_ASKING)
    done = await scene.wire.until("response.done")
    await scene.wire.until(AT_THE_END)
    item = done["response"]["output"][0]["id"]
    seen = await scene.step("13 truncate", command("conversation.item.truncate", item_id=item, audio_end_ms=80))
    hold(scene.steps, trace=13)
    assert seen[1]["event"]["truncate"] is True
    await scene.leave()


async def test_trace_14_close(served: TwoGateways) -> None:
    scene = await Scene.open(served.urls[0])
    seen = await scene.ending("14 close", command("session.close", reason="enough"))
    hold(scene.steps, trace=14)
    assert (seen[0]["reason"], seen[0]["event"]) == ("enough", {})


async def test_trace_15_takeover(served: TwoGateways) -> None:
    old = await Scene.open(served.urls[0])
    await old.step("2 speech", speech(80))
    session_id, token = old.wire.log[0]["session"]["id"], old.wire.log[0]["resume_token"]
    steps: Steps = {}

    async def resume(name: str, token: str, after: int) -> Scene:
        scene = Scene(await Wire.resume(served.urls[1], session_id, token, after))
        if name:
            await scene.ending(name, codes=True)
            steps.update(scene.steps)
        return scene

    new = await resume("", token, 0)
    for _ in range(3):
        await new.wire.read()
    steps["15 resume"] = types(new.wire.log)
    assert seqs(new.wire.log) == [1, 2] and new.wire.log[1:] == [old.wire.log[1], old.wire.log[2]]
    replaced = await old.ending("15 old socket")
    assert replaced[0]["attachment_generation"] == 1
    steps["15 old socket"] = old.steps["15 old socket"]
    await new.step("", command("session.event_ack", server_event_seq=1))  # from now on the old token is dead
    fresh = new.wire.log[0]["resume_token"]
    await resume("15 old token", token, 2)
    await resume("15 cursor beyond the head", fresh, 99)
    await resume("15 cursor before the journal", fresh, 0)
    hold(steps, trace=15)
    await new.leave()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    """A system with room for one session."""
    home = tmp_path_factory.mktemp("small")
    shipped = (files(loopback) / "loopback.toml").read_text(encoding="utf-8")
    path = home / "loopback.toml"
    path.write_text(re.sub(r"(?m)^max_sessions = .*$", "max_sessions = 1", shipped), encoding="utf-8")
    with RunningSystem(home / "home", "--pipelines", str(path), "--shards", "1") as system:
        yield system


async def test_trace_16_no_room(small: RunningSystem) -> None:
    holder = await Wire.open(small.url, session_object() | {"disconnect_grace_s": 25})
    await holder.cut()  # within its grace it holds its place
    late = Scene(await Wire.dial(small.url, autostart="0"))
    seen = await late.ending("16 no room", command("session.update", session=session_object()), codes=True)
    hold(late.steps, trace=16)
    assert seen[0]["error"]["type"] == "rate_limit_error" and seen[0]["error"]["retry_after_ms"] > 0
    back = await Wire.resume(small.url, holder.log[0]["session"]["id"], holder.log[0]["resume_token"], 1)
    await back.until("session.resumed")
    await back.end()


async def test_trace_17_expiry(served: TwoGateways) -> None:
    idle = Scene(await Wire.open(served.urls[0], session_object() | {"idle_timeout_s": 1}))
    await idle.wire.until("session.updated")
    seen = await idle.ending("17 idle")
    assert seen[-1]["reason"] == "idle_ttl_expired"
    left = World(disconnect_grace_s=5)  # nobody is there to be told: it is seen where it is made
    left.fact(Detached(0))
    left.advance(3.0)
    left.send(SessionHeartbeat())
    told = pick(left.advance(3.0), "session.expired")
    assert [event["reason"] for event in told] == ["disconnect_grace_expired"]
    hold(idle.steps | {"17 detached": types(told)}, trace=17)


async def test_trace_18_a_flood_of_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commits come while the sound before them is still being converted: here it is, until three are refused."""
    refused = threading.Event()

    def held(kind: str, body: bytes) -> bytes:
        assert refused.wait(20)
        return run_offload(kind, body)

    monkeypatch.setattr(system, "run_offload", held)
    seen: list[str] = []
    async with DuplexOmni("loopback") as omni, asyncio.timeout(30):
        session = await omni.open_session({"model": "loopback"})
        await session.append_audio(level(4000, 1000))
        for _ in range(7):
            await session.commit()
        async for event in session.events():
            seen.append(f"error {event.error.code}" if isinstance(event, ErrorEvent) else event.type)
            if seen.count("error input_backpressure") == 3:
                refused.set()
            if seen.count("error input_audio_buffer_empty") == 3:
                break
    opening = due("1 open")
    started = due("2 speech")  # it is told when the sound is there
    assert seen[: len(opening)] == opening
    hold({"18 commit flood": [name for name in seen[len(opening) :] if name not in started]}, trace=18)


def test_every_step_is_golden_or_ruled() -> None:
    for name, step in STEPS.items():
        assert step.keys() in ({"name", "golden"}, {"name", "golden", "instead", "rule", "why"}), name
        assert step.get("instead") != step["golden"], name
    assert {int(name.split()[0]) for name in STEPS} == set(range(1, 19))
    assert len(STEPS) == len(DATA["step"])
