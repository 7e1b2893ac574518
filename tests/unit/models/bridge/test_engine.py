"""The engine against a real WebSocket server: sessions, faults, bounds."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from unit.models.bridge.upstream import Upstream, Worker

from duologue.cli.certificates import local_certificate
from duologue.model.engine import Slot, StageRefused
from duologue.model.outputs import ModelOutput, decode_output
from duologue.model.pipeline import PipelineError, load_pipeline
from duologue.models.bridge import engine, heads
from duologue.models.bridge.heads import Heard
from duologue.runtime.metric_registry import REGISTRIES

pytestmark = pytest.mark.unit

SPEECH = base64.b64encode(b"\7\0" * 1920).decode()


@contextlib.asynccontextmanager
async def taking(worker: Worker) -> AsyncIterator[None]:
    """The worker takes what comes while the block looks at the server."""
    task = asyncio.create_task(worker.listening())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def live(worker: Worker, upstream: Upstream, **more: bool) -> Slot:
    """A slot whose session has been opened up there."""
    slot = worker.open(**more)
    async with taking(worker):
        worker.append(slot)
        await upstream.has("input_audio_buffer.append")
    return slot


def counted(name: str, **labels: str) -> float:
    registry: CollectorRegistry = REGISTRIES["worker"]
    return registry.get_sample_value(f"duologue_worker_{name}", {"pipeline": "bridge", **labels}) or 0.0


@pytest.mark.parametrize("dialect", ["duplex", "openai"])
async def test_a_unit_goes_up_and_an_answer_comes_down(dialect: str) -> None:
    async with Upstream(dialect) as upstream, Worker(upstream.url, dialect) as worker:
        slot = worker.open()
        loud = b"\0\0\x80\x3f" * 4  # 1.0, four times
        consumed = worker.append(slot, pcm=loud)
        assert (consumed.unit, consumed.last, consumed.failure) == (1, True, None)
        async with taking(worker):
            (append,) = await upstream.has("input_audio_buffer.append")
        assert base64.b64decode(append["audio"]) == b"\xff\x7f" * 4
        await upstream.say("response.created", response={"id": "r1"})
        await upstream.say("response.output_audio.delta", response_id="r1", item_id="i", delta=SPEECH)
        await upstream.say("response.output_audio_transcript.delta", response_id="r1", item_id="i", delta="hi")
        emission = await worker.until(lambda one: bool(one.frames))
        assert (emission.turn_id, emission.slot) == (3, slot)
        assert base64.b64encode(emission.frames[0]).decode() == SPEECH
        assert counted("upstream_links") == 1
        worker.engine.close(slot)
        await upstream.until(lambda: upstream.sockets[0].close_code is not None)
        assert upstream.sockets[0].close_code == 1000
        assert len(upstream.of("session.close")) == (dialect == "duplex")
        assert counted("upstream_links") == 0


async def test_the_handshake_carries_key_headers_model_and_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGE_KEY", "sesame")
    more: dict[str, Any] = {"api_key_env": "BRIDGE_KEY", "headers": {"X-Team": "voice"}, "model": "a b"}
    async with Upstream() as upstream, Worker(upstream.url, **more) as worker:
        await live(worker, upstream)
        (request,) = upstream.requests
        assert request.headers["Authorization"] == "Bearer sesame"
        assert request.headers["X-Team"] == "voice"
        assert request.path == "/v1/realtime?kept=1&model=a+b&duplex=1&autostart=0"


async def test_an_encrypted_upstream_is_trusted_by_its_authority_alone(tmp_path: Path) -> None:
    files = local_certificate(tmp_path, ["127.0.0.1"], datetime.datetime.now(datetime.UTC))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(files.cert, files.key)
    async with Upstream(tls=tls) as upstream:
        async with Worker(upstream.url, ca_file=str(files.ca)) as worker:
            await live(worker, upstream)
        async with Worker(upstream.url) as worker:
            worker.open()
            assert (await worker.output(lambda output: output.fatal)).error_code == "upstream_unavailable"


async def test_nothing_of_before_a_cancel_is_told_after_it() -> None:
    async with Upstream() as upstream, Worker(upstream.url) as worker:
        slot = await live(worker, upstream)
        await upstream.say("response.created", response={"id": "r1"})
        for _ in range(3):
            await upstream.say("response.output_audio.delta", response_id="r1", item_id="i", delta=SPEECH)
            await upstream.say("response.output_audio_transcript.delta", response_id="r1", item_id="i", delta="hi")
        await worker.until(lambda one: bool(one.frames))
        before = counted("upstream_stale_total")
        worker.emissions.clear()
        worker.engine.control(slot, heads.HEARD, heads.encode(Heard(40)))
        worker.engine.cancel(slot, 1)
        async with taking(worker):
            await upstream.has("response.cancel")
        assert upstream.of("playback.ack")[0]["played_ms"] == 40
        await upstream.say("response.output_audio.delta", response_id="r1", item_id="i", delta=SPEECH)
        await upstream.say("response.done", response={"id": "r1", "status": "cancelled"})
        await upstream.say("response.created", response={"id": "r2"})
        await upstream.say("response.output_text.delta", response_id="r2", delta="fresh")
        assert (await worker.output(lambda output: output.text)).text == "fresh"
        assert not any(emission.frames for emission in worker.emissions)
        assert counted("upstream_stale_total") >= before + 2


async def test_a_cancel_does_not_swallow_the_end_of_the_upstream_session() -> None:
    async with Upstream("openai") as upstream, Worker(upstream.url, "openai") as worker:
        slot = await live(worker, upstream)
        rung = asyncio.Event()
        loop = asyncio.get_running_loop()
        told = worker.engine.wake

        def ring() -> None:
            loop.call_soon_threadsafe(rung.set)

        worker.engine.wake = ring
        await upstream.sockets[0].close(1011, "gone")
        await rung.wait()
        worker.engine.wake = told
        worker.engine.cancel(slot, 1)
        assert (await worker.output(lambda output: output.fatal)).error_code == "upstream_lost"


# -- a session that does not come to be -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "upstream_refused"), (404, "upstream_refused"), (503, "resource_exhausted"), (500, "upstream_unavailable")],
)
async def test_a_refused_upgrade_ends_the_session_by_name(status: int, code: str) -> None:
    async with Upstream(status=status) as upstream, Worker(upstream.url) as worker:
        slot = worker.open()
        output = await worker.output(lambda output: output.fatal)
        assert output.error_code == code
        assert str(status) in output.error
        assert worker.append(slot).failure is None  # it ends; nothing more has to be said


async def test_a_server_that_is_not_there_ends_the_session_by_name() -> None:
    async with Upstream() as upstream:
        url = upstream.url
    async with Worker(url) as worker:
        before = counted("upstream_ended_total", reason="unavailable")
        worker.open()
        assert (await worker.output(lambda output: output.fatal)).error_code == "upstream_unavailable"
        assert counted("upstream_ended_total", reason="unavailable") == before + 1


async def test_a_refused_opening_ends_the_session_with_its_reason() -> None:
    async with Upstream(opens=False) as upstream, Worker(upstream.url) as worker:
        worker.open()
        async with taking(worker):
            await upstream.has("session.update")
        before = counted("upstream_errors_total", code="model_not_found")
        await upstream.say("error", error={"code": "model_not_found", "message": "no model 'x'"})
        output = await worker.output(lambda output: output.fatal)
        assert (output.error_code, output.error) == ("model_not_found", "no model 'x'")
        assert counted("upstream_errors_total", code="model_not_found") == before + 1


async def test_a_server_that_does_not_open_the_session_in_time_ends_it() -> None:
    async with Upstream(opens=False) as upstream, Worker(upstream.url, open_timeout_s=0.05) as worker:
        worker.open()
        assert (await worker.output(lambda output: output.fatal)).error_code == "upstream_timeout"


# -- a connection that breaks -----------------------------------------------------------------------------


async def test_a_broken_connection_is_resumed_and_nothing_is_told() -> None:
    async with Upstream() as upstream, Worker(upstream.url) as worker:
        slot = await live(worker, upstream)
        before = counted("upstream_ended_total", reason="resumed")
        upstream.sockets[0].transport.abort()
        async with taking(worker):
            (resume,) = await upstream.has("session.resume")
            assert (resume["session_id"], resume["resume_token"]) == ("up", "t1")
            worker.append(slot)
            await upstream.has("input_audio_buffer.append", 2)
        assert [decode_output(one.head) for one in worker.emissions] == []
        assert counted("upstream_ended_total", reason="resumed") == before + 1


async def test_a_connection_that_cannot_be_resumed_binds_the_session_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SETTLED_S", 0.0)
    async with Upstream() as upstream, Worker(upstream.url) as worker:
        await live(worker, upstream)
        upstream.resumes = False
        upstream.sockets[0].transport.abort()
        emission = await worker.until(lambda one: one.failure is not None)
        assert emission.failure is not None
        assert (emission.failure.code, emission.failure.retryable) == ("upstream_lost", True)


@pytest.mark.parametrize("settled_s", [0.0, 60.0])
async def test_in_the_openai_dialect_a_lost_session_is_lost(settled_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that lived for a while is tried again; one that was lost at once would be lost again."""
    monkeypatch.setattr(engine, "SETTLED_S", settled_s)
    async with Upstream("openai") as upstream, Worker(upstream.url, "openai") as worker:
        await live(worker, upstream)
        await upstream.sockets[0].close(1012, "restart")
        emission = await worker.until(lambda one: one.failure is not None or decode_output(one.head).fatal)
        if settled_s:
            assert emission.failure is None
            output = decode_output(emission.head)
            assert output.error_code == "upstream_lost"
            assert "1012 restart" in output.error
        else:
            assert emission.failure is not None
            assert emission.failure.retryable


async def test_a_session_that_the_server_ends_is_lost() -> None:
    async with Upstream() as upstream, Worker(upstream.url) as worker:
        await live(worker, upstream)
        await upstream.say("session.expired", reason="max_session_expired")
        output = await worker.output(lambda output: output.fatal)
        assert "max_session_expired" in output.error


async def test_an_answer_that_does_not_come_fails_and_the_session_lives() -> None:
    async with Upstream() as upstream, Worker(upstream.url, idle_timeout_s=0.05) as worker:
        slot = await live(worker, upstream, auto=False)
        worker.append(slot, heads.FINAL | heads.ASK)
        async with taking(worker):
            await upstream.has("response.create")
        assert (await worker.output(lambda output: output.error_code)).error_code == "upstream_timeout"
        assert not any(decode_output(one.head).fatal for one in worker.emissions)


async def test_a_session_without_input_says_that_it_lives() -> None:
    async with Upstream() as upstream, Worker(upstream.url, heartbeat_s=0.02) as worker:
        await live(worker, upstream)
        async with taking(worker):
            await upstream.has("session.heartbeat", 2)


# -- bounds -----------------------------------------------------------------------------------------------


async def test_what_waits_to_go_up_is_bounded_and_the_unit_fails_by_name() -> None:
    async with Upstream(opens=False) as upstream, Worker(upstream.url, pending_up_kib=64) as worker:
        slot = worker.open()
        before = counted("upstream_full_total", way="up")
        results = [worker.append(slot, pcm=bytes(16_000)) for _ in range(12)]
        failures = [one.failure.code for one in results if one.failure is not None]
        assert failures
        assert set(failures) == {"upstream_backpressure"}
        assert results[0].failure is None
        assert counted("upstream_full_total", way="up") == before + len(failures)


async def test_a_server_that_says_too_much_is_not_read_until_it_was_taken() -> None:
    async with Upstream() as upstream, Worker(upstream.url, pending_down_kib=64) as worker:
        await live(worker, upstream)
        before = counted("upstream_full_total", way="down")
        await upstream.say("response.created", response={"id": "r1"})
        long = "x" * 40_000
        for _ in range(10):
            await upstream.say("response.output_text.delta", response_id="r1", delta=long)
        await upstream.say("response.done", response={"id": "r1", "status": "completed"})
        await worker.output(lambda output: output.end_of_turn)
        said = [decode_output(one.head).text for one in worker.emissions]
        assert sum(map(len, said)) == 400_000
        assert counted("upstream_full_total", way="down") > before


async def test_a_slot_that_changed_hands_has_a_session_of_its_own() -> None:
    async with Upstream() as upstream, Worker(upstream.url) as worker:
        first = await live(worker, upstream)
        worker.engine.close(first)
        worker.engine.close(first)
        second = worker.open(incarnation=2)
        async with taking(worker):
            await upstream.has("session.update", 2)
        worker.engine.close(first)
        assert worker.engine.usage().slots_used == 1
        assert second != first


async def test_a_session_more_than_there_are_slots_is_refused() -> None:
    async with Upstream() as upstream, Worker(upstream.url, slots=1) as worker:
        worker.open()
        with pytest.raises(StageRefused) as refused:
            worker.open(1)
        assert refused.value.code == "resource_exhausted"


# -- building ---------------------------------------------------------------------------------------------


def pipeline(tmp_path: Path, options: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(
        f'name = "mine"\nplugin = "duologue.models.bridge.plugin:Bridge"\n[options]\n{options}\n'
        '[[stages]]\nname = "upstream"\nengine = "duologue.models.bridge.engine:build"\nworker = "w"\n'
    )
    return path


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ('url = "http://h"', "options.url"),
        ('url = "ws://h"\nca_file = "x"', "options.ca_file"),
        ('url = "wss://h"\nca_file = "/nowhere/ca.pem"', "options.ca_file"),
        ('url = "ws://h"\napi_key_env = "NOT_SET_ANYWHERE"', "options.api_key_env"),
        ('url = "ws://h"\nheaders = {authorization = "x"}', "options.headers"),
        ('url = "ws://h"\ndialect = "openai"\nvideo = true', "options.video"),
        ('url = "ws://h"\nunit = 3', "unit"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(tmp_path: Path, options: str, named: str) -> None:
    with pytest.raises(PipelineError, match=named):
        engine.build(load_pipeline(pipeline(tmp_path, options)), 0)


def test_an_empty_result_is_what_confirms_a_unit() -> None:
    assert decode_output(engine._NOTHING) == ModelOutput()
