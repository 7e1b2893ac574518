"""openai-python: `AsyncOpenAI().realtime.connect`, as its documentation shows it."""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from scene import Log, Microphone, ask, play

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


class Talk:
    """A connection, what came over it, and a microphone."""

    def __init__(self, connection: AsyncRealtimeConnection, log: Log, mic: Microphone) -> None:
        self.connection, self.log, self.mic = connection, log, mic
        self.cursor = 0
        self.created: Any = None
        self.session: Any = None

    async def answer(self) -> tuple[str, int, Any]:
        """The next response: its transcript, its audio in bytes, how it ended."""
        begun = (await self.log.next("response.created")).response.id
        done = (await self.log.next("response.done", where=lambda event: event.response.id == begun)).response
        came = [(kind, event) for kind, event in self.log.seen if getattr(event, "response_id", "") == begun]
        deltas = [event for kind, event in came if kind == "response.output_audio.delta"]
        words = "".join(event.delta for kind, event in came if kind == "response.output_audio_transcript.delta")
        return words, sum(len(base64.b64decode(event.delta)) for event in deltas), done

    async def spoken_answer(self) -> str:
        words, audio, done = await self.answer()
        assert done.status == "completed", done
        assert words.strip() and audio > 4800, (words, audio)
        return words

    async def type(self, text: str) -> None:
        content = [{"type": "input_text", "text": text}]
        await self.connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
        await self.log.next("conversation.item.done", where=lambda event: event.item.role == "user")
        await self.connection.response.create()


@contextlib.asynccontextmanager
async def talking(options: argparse.Namespace, *, session: Any = None, **how: Any) -> AsyncIterator[Talk]:
    client = AsyncOpenAI(websocket_base_url=f"{options.url}/v1", api_key="k")
    log = Log(options.patience)
    async with client.realtime.connect(model=options.model, **how) as connection:
        talk: Talk

        async def read() -> None:
            try:
                async for event in connection:
                    talk.cursor = max(talk.cursor, numbered(event))
                    log.add(event.type, event)
            except Exception as error:
                return log.end(repr(error))
            log.end("the connection was closed")

        async def send(piece: bytes) -> None:
            await connection.input_audio_buffer.append(audio=base64.b64encode(piece).decode())

        microphone = Microphone(options, send)
        talk = Talk(connection, log, microphone)
        reading = asyncio.create_task(read())
        try:
            talk.created = await log.next("session.created")
            talk.session = talk.created.session
            assert talk.session.id and talk.session.audio.input.turn_detection.type == "server_vad", talk.session
            update = {"type": "realtime", "instructions": "Answer in one short sentence.", **(session or {})}
            await connection.session.update(session=update)
            echo = (await log.next("session.updated")).session
            assert echo.instructions == "Answer in one short sentence.", echo
            async with microphone:
                yield talk
        finally:
            reading.cancel()


def numbered(event: Any) -> int:
    """The number of an event; the head that `session.created` tells is none."""
    return 0 if event.type == "session.created" else int(getattr(event, "server_event_seq", 0) or 0)


async def conversation(options: argparse.Namespace) -> str:
    async with talking(options) as talk:
        await talk.type("What is the capital of France?")
        typed = await talk.spoken_answer()
        talk.mic.say("question")
        started = await talk.log.next("input_audio_buffer.speech_started")
        committed = await talk.log.next("input_audio_buffer.committed")
        assert started.item_id == committed.item_id, (started, committed)
        spoken = await talk.spoken_answer()
        if options.model.startswith("cascade"):
            said = await transcript(talk, committed.item_id)
            assert "france" in said.lower(), said
        return f"{typed!r}; {spoken!r}"


async def transcript(talk: Talk, item_id: str) -> str:
    """What the recogniser made of an item, whenever it came."""
    kind = "conversation.item.input_audio_transcription.completed"
    for seen, event in talk.log.seen:
        if seen == kind and event.item_id == item_id:
            return str(event.transcript)
    return str((await talk.log.next(kind, where=lambda event: event.item_id == item_id)).transcript)


async def interruption(options: argparse.Namespace) -> str:
    async with talking(options) as talk:
        talk.mic.say("story")
        first = await talk.log.next("response.output_audio.delta")
        talk.mic.say("interruption")
        await talk.log.next("input_audio_buffer.speech_started")
        await talk.connection.conversation.item.truncate(item_id=first.item_id, content_index=0, audio_end_ms=300)
        cut = await talk.log.next("conversation.item.truncated", where=lambda event: event.item_id == first.item_id)
        assert cut.audio_end_ms <= 300, cut
        again = await talk.spoken_answer()
        ended = next(e.response for kind, e in talk.log.seen if kind == "response.done")
        assert ended.id == first.response_id, ended
        if ended.status == "cancelled":
            assert ended.status_details.reason == "turn_detected", ended
        # By command: an answer that the client itself stops.
        await talk.type("Tell me about the sea.")
        await talk.log.next("response.output_audio.delta")
        await talk.connection.response.cancel()
        stopped = (await talk.log.next("response.done")).response
        assert (stopped.status, stopped.status_details.reason) == ("cancelled", "client_cancelled"), stopped
        return f"{ended.status}, then {again!r}"


async def tools(options: argparse.Namespace) -> str:
    async with talking(options, session={"tools": [WEATHER], "tool_choice": "auto"}) as talk:
        call = await called(talk, 1 if options.model.startswith("cascade") else 2)
        assert json.loads(call.arguments) is not None, call
        item = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny and 21 degrees"}
        await talk.connection.conversation.item.create(item=item)
        await talk.connection.response.create()
        words = await talk.spoken_answer()
        if options.model.startswith("cascade"):
            assert "sunny" in words.lower(), words
        return f"{call.name}({call.arguments}), then {words!r}"


async def called(talk: Talk, turns: int) -> Any:
    """Talk until the model calls: `loopback-talk` does so in its second turn."""
    talk.mic.say("weather")
    asked = 1
    while True:
        _, _, done = await talk.answer()
        calls = [item for item in done.output if item.type == "function_call"]
        if calls:
            kinds = [kind for kind, _ in talk.log.seen]
            assert "response.function_call_arguments.done" in kinds, kinds
            return calls[0]
        if turns > asked:
            asked += 1
            talk.mic.say("weather")


async def resume(options: argparse.Namespace) -> str:
    """By query, as stock clients can: once after a reset, once after the server's own 1012."""
    newest: dict[str, str] = {}
    codes: list[int] = []

    def reconnecting(event: Any) -> Any:
        codes.append(event.close_code)
        return {"extra_query": {**event.extra_query, **newest, "last_seq": str(talk.cursor)}}

    async with talking(options, on_reconnecting=reconnecting) as talk:
        session_id = talk.session.id
        newest.update(resume_session=session_id, resume_token=talk.created.resume_token)
        for what in ("cut", "restart"):
            talk.mic.say("story")
            await talk.log.next("response.output_audio.delta")
            ask(what)
            again = await talk.log.next("session.created")
            assert again.session.id == session_id, again.session
            newest["resume_token"] = again.resume_token
            done = (await talk.log.next("response.done")).response
            assert done.status == "completed", done
        numbers = [numbered(event) for _, event in talk.log.seen if numbered(event)]
        assert numbers == list(range(1, len(numbers) + 1)), numbers
        return f"closed with {codes}, {len(numbers)} events, each once"


async def leave(options: argparse.Namespace) -> str:
    """Its own clean close ends the session; the runner sees the place come back."""
    async with talking(options) as talk:
        await talk.type("Hello.")
        return await talk.spoken_answer()


play(
    {
        "conversation": conversation,
        "interruption": interruption,
        "tools": tools,
        "reconnect": resume,
        "leave": leave,
    }
)
