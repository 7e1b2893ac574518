"""`/v1/chat/completions` and client secrets as the `openai` package uses them, on a running system."""

from __future__ import annotations

import base64
import io
import math
import urllib.request
import wave
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionAudioParam, ChatCompletionMessageParam
from system.conftest import TwoGateways
from system.running import eventually, status

pytestmark = pytest.mark.system

MODEL = "loopback-talk"
AUDIO: ChatCompletionAudioParam = {"voice": "alloy", "format": "wav"}
STREAMED: ChatCompletionAudioParam = {"voice": "alloy", "format": "pcm16"}
UNIT_BYTES = 24_000 * 2 * 80 // 1000


@pytest.fixture
async def client(served: TwoGateways) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"http://127.0.0.1:{served.system.port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="anything", max_retries=0) as client:
        yield client


def asks(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]


def speech(seconds: float, rate_hz: int = 16_000) -> str:
    """A loud tone as a WAV file in base64."""
    samples = [round(9000 * math.sin(n / 9)) for n in range(round(seconds * rate_hz))]
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(b"".join(sample.to_bytes(2, "little", signed=True) for sample in samples))
    return base64.b64encode(out.getvalue()).decode()


def spoken(seconds: float) -> list[ChatCompletionMessageParam]:
    sound: Any = {"type": "input_audio", "input_audio": {"data": speech(seconds), "format": "wav"}}
    return [{"role": "user", "content": [sound]}]


async def test_text_is_answered_with_text(client: openai.AsyncOpenAI) -> None:
    done = await client.chat.completions.create(model=MODEL, messages=asks("Hello"))
    assert done.object == "chat.completion" and done.model == MODEL and done.id.startswith("chatcmpl-")
    choice = done.choices[0]
    assert choice.finish_reason == "stop" and choice.message.role == "assistant"
    assert choice.message.content == "you spoke for 0 ms"


async def test_sound_is_heard_and_answered_with_sound(client: openai.AsyncOpenAI) -> None:
    done = await client.chat.completions.create(
        model=MODEL, messages=spoken(0.8), modalities=["text", "audio"], audio=AUDIO
    )
    audio = done.choices[0].message.audio
    assert audio is not None and audio.transcript == "you spoke for 800 ms"
    with wave.open(io.BytesIO(base64.b64decode(audio.data))) as file:
        assert (file.getframerate(), file.getnchannels()) == (24_000, 1)
        assert abs(file.getnframes() * 2 - 25 * UNIT_BYTES) <= 64, "25 units of tone"


async def test_a_stream_tells_the_same_in_chunks(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model=MODEL, messages=asks("Hello"), stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "you spoke for 0 ms"
    assert chunks[0].choices[0].delta.role == "assistant" and len(chunks) > 3
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert len({chunk.id for chunk in chunks}) == 1


async def test_a_stream_of_sound(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL, messages=spoken(0.4), modalities=["text", "audio"], audio=STREAMED, stream=True
    )
    pcm, text = b"", ""
    async for chunk in stream:
        audio = chunk.choices[0].delta.audio
        if audio is not None:
            pcm += base64.b64decode(audio.data or "")
            text += audio.transcript or ""
    assert text == "you spoke for 400 ms" and abs(len(pcm) - 25 * UNIT_BYTES) <= 64


async def test_what_is_wrong_is_told_by_name(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.chat.completions.create(model="nobody", messages=asks("x"))
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as other:
        await client.chat.completions.create(model="loopback", messages=asks("x"), stream=True)
    assert (other.value.code, other.value.param) == ("model_not_supported", "model")
    with pytest.raises(openai.BadRequestError) as option:
        await client.chat.completions.create(model=MODEL, messages=asks("x"), max_tokens=-1)
    assert option.value.param == "max_completion_tokens"


async def test_a_client_that_leaves_frees_the_stages(client: openai.AsyncOpenAI, served: TwoGateways) -> None:
    """A client that is killed looks the same: its connection closes."""
    before = _count(served)
    stream = await client.chat.completions.create(
        model=MODEL, messages=asks("x"), stream=True, extra_body={"extra_body": {"loopback": {"stage_ms": [500]}}}
    )
    await anext(aiter(stream))
    await stream.close()
    await eventually(lambda: _count(served) == before + 1, "the turn was cancelled at its shard")


def _count(served: TwoGateways) -> float:
    """Chat turns that were cancelled, by the word of all shards."""
    name = 'duologue_session_chat_turns_total{result="cancelled"} '
    found = 0.0
    for member in status("--home", str(served.system.home))["members"]:
        if member["kind"] == "shard":
            with urllib.request.urlopen(member["record"]["metrics_url"], timeout=5) as answer:
                lines = answer.read().decode().splitlines()
            found += sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))
    return found


async def test_models_tell_what_they_can(client: openai.AsyncOpenAI) -> None:
    listed = {model.id: model async for model in client.models.list()}
    assert set(listed) == {"loopback", "loopback-1s", MODEL}
    talk = await client.models.retrieve(MODEL)
    told = (talk.model_extra or {})["capabilities"]
    assert told["supports_chat_completions"] is True and told["implementation_level"] == "turn_based_duplex"
    other = (listed["loopback"].model_extra or {})["capabilities"]
    assert other["supports_chat_completions"] is False and other["implementation_level"] == "model_native_duplex"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("nobody")


async def test_other_routes_are_told_to_be_unavailable(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        await client.embeddings.create(model=MODEL, input="x")
    assert raised.value.code == "not_available"


async def test_a_client_secret_opens_the_session_it_was_made_for(client: openai.AsyncOpenAI) -> None:
    minted = await client.realtime.client_secrets.create(
        expires_after={"anchor": "created_at", "seconds": 60},
        session={"type": "realtime", "model": MODEL, "instructions": "Count.", "output_modalities": ["text"]},
        extra_body={"max_session_s": 90},
    )
    assert minted.value.startswith("ek_") and minted.session.type == "realtime"
    browser = openai.AsyncOpenAI(base_url=client.base_url, api_key=minted.value)
    async with browser, browser.realtime.connect(model="loopback") as connection:
        created = await connection.recv()
        assert created.type == "session.created"
        assert created.session.model_dump()["instructions"] == "Count."
        await connection.session.update(session={"type": "realtime"})
        updated = await connection.recv()
        assert updated.type == "session.updated"
        told = updated.session.model_dump()
        assert (told["model"], told["instructions"], told["output_modalities"]) == (MODEL, "Count.", ["text"])
        assert told["max_session_s"] == 90
