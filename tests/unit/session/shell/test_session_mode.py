"""`session_mode` of a pipeline: what its sessions may be, from the TOML file to the client."""

from __future__ import annotations

import asyncio
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import pytest
from unit.session.core.fake_models import FakeModel
from unit.session.core.session_world import World, pick, sound, types

from duologue.client import DuplexProtocolError
from duologue.inline import DuplexOmni
from duologue.model.catalog import find_pipeline
from duologue.model.pipeline import PipelineError, load_pipeline
from duologue.models import loopback
from duologue.protocol.duplex import AppendAudio, Commit, Dialect, RealtimeProtocolError
from duologue.session.pipelines import load_served

pytestmark = pytest.mark.unit

COMMITTED = "input_audio_buffer.committed"


def deployed(folder: Path, mode: str) -> Path:
    """The loopback pipeline, deployed in this mode."""
    shipped = (files(loopback) / "loopback.toml").read_text(encoding="utf-8")
    path = folder / "loopback.toml"
    path.write_text(re.sub(r"(?m)^max_sessions", f'session_mode = "{mode}"\nmax_sessions', shipped), encoding="utf-8")
    return path


@pytest.mark.parametrize("mode", ["duplex", "turn"])
def test_the_mode_is_what_is_served_and_told(tmp_path: Path, mode: str) -> None:
    [served] = load_served([load_pipeline(deployed(tmp_path, mode))])
    record = served.record(0, ready=True)
    assert (record.session_mode, record.native_turns) == (mode, mode == "duplex")
    assert record.capabilities == load_served([find_pipeline("loopback")]).first.capabilities


def test_a_mode_of_no_such_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="session_mode"):
        load_pipeline(deployed(tmp_path, "simplex"))


class OwnsItsTurns(FakeModel):
    def __init__(self, pipeline: Any) -> None:
        super().__init__(auto_only=True)


def test_a_model_that_serves_no_turns_does_not_start_in_that_mode() -> None:
    spec = msgspec.structs.replace(find_pipeline("loopback"), plugin=f"{__name__}:OwnsItsTurns")
    assert load_served([spec]).first.plugin.traits.auto_only
    with pytest.raises(PipelineError, match="session_mode"):
        load_served([msgspec.structs.replace(spec, session_mode="turn")])


@pytest.mark.parametrize("dialect", list(Dialect))
def test_a_session_that_would_answer_by_itself_is_refused_by_name(dialect: Dialect) -> None:
    with pytest.raises(RealtimeProtocolError) as refused:
        World(FakeModel(turn_only=True, native_turns=False), dialect=dialect, auto=True)
    assert (refused.value.code, refused.value.param) == ("unsupported", "session.extra_body.auto_response")


@pytest.mark.parametrize("dialect", [Dialect.openai, Dialect.openai_beta])
def test_a_stock_client_is_answered_by_turn(dialect: Dialect) -> None:
    """It says nothing of modes: the server's turn detection commits its turn, and that is answered."""
    model = FakeModel(turn_only=True, native_turns=False)
    world = World(model, dialect=dialect, extra_body={})
    for loud in [True] * 10 + [False] * 10:
        world.send(AppendAudio(audio=sound(80, loud, 24_000)))
    assert len(pick(world.events, COMMITTED)) == world.response_count() == 1


async def test_a_deployment_in_turns_answers_commits_and_nothing_else(tmp_path: Path) -> None:
    script = [{"speak": {"units": 1, "text": "hello"}}, {"listen": 1}]
    async with DuplexOmni(str(deployed(tmp_path, "turn"))) as omni, asyncio.timeout(20):
        with pytest.raises(DuplexProtocolError) as refused:
            await omni.open_session({"extra_body": {"auto_response": True}})
        assert (refused.value.code, refused.value.param) == ("unsupported", "session.extra_body.auto_response")
        session = await omni.open_session({"extra_body": {"loopback": {"script": script}}})
        assert session.session["auto_response"] is False
        await session.append_audio(sound(400))
        await session.commit(create_response=True)
        seen = []
        async for event in session.events():
            seen.append(event.type)
            if event.type == "response.done":
                break
        assert seen.index(COMMITTED) < seen.index("response.created") < seen.index("response.output_audio.delta")


def test_a_client_may_still_be_auto_where_the_mode_is_duplex() -> None:
    world = World(FakeModel(), auto=True)
    assert "session.updated" in types(world.events) and world.send(Commit())
