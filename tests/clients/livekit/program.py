"""livekit-plugins-openai: a `RealtimeModel` and its session, used as LiveKit's agent session uses them."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from livekit import rtc
from livekit.agents import llm
from livekit.plugins.openai.realtime import RealtimeModel
from scene import RATE_HZ, Log, Microphone, ask, play


@llm.function_tool
async def get_weather(city: str = "Paris") -> str:
    """The weather in a city."""
    return "sunny and 21 degrees"


class Heard:
    """One generation, as it comes."""

    def __init__(self, created: llm.GenerationCreatedEvent) -> None:
        self.response_id = created.response_id
        self.user_initiated = created.user_initiated
        self.words, self.audio_ms, self.message_id = "", 0.0, ""
        self.calls: list[llm.FunctionCall] = []
        self.sounding = asyncio.Event()
        self._tasks = [asyncio.create_task(self._messages(created)), asyncio.create_task(self._functions(created))]

    async def done(self) -> Heard:
        await asyncio.gather(*self._tasks)
        return self

    async def _messages(self, created: llm.GenerationCreatedEvent) -> None:
        async for message in created.message_stream:
            self.message_id = message.message_id
            await asyncio.gather(self._text(message), self._audio(message))

    async def _text(self, message: llm.MessageGeneration) -> None:
        async for piece in message.text_stream:
            self.words += piece

    async def _audio(self, message: llm.MessageGeneration) -> None:
        async for frame in message.audio_stream:
            self.audio_ms += frame.duration * 1000
            self.sounding.set()

    async def _functions(self, created: llm.GenerationCreatedEvent) -> None:
        async for call in created.function_stream:
            self.calls.append(call)


class Talk:
    def __init__(self, session: Any, log: Log, mic: Microphone) -> None:
        self.session, self.log, self.mic = session, log, mic

    async def type(self, text: str) -> Heard:
        """A message of the user through the chat context, and the reply that is asked for."""
        context = self.session.chat_ctx.copy()
        context.add_message(role="user", content=text)
        await self.session.update_chat_ctx(context)
        return await self.reply()

    async def reply(self) -> Heard:
        created = await self.session.generate_reply()
        return await self.log.next("generation", where=lambda heard: heard.response_id == created.response_id)

    async def spoken_answer(self, heard: Heard | None = None) -> str:
        heard = heard or await self.log.next("generation")
        await heard.done()
        assert heard.words.strip() and heard.audio_ms > 100, (heard.words, heard.audio_ms)
        return heard.words


@contextlib.asynccontextmanager
async def talking(options: argparse.Namespace) -> AsyncIterator[Talk]:
    log = Log(options.patience)
    model = RealtimeModel(model=options.model, base_url=options.url.replace("ws", "http", 1) + "/v1", api_key="k")
    session = model.session()
    session.on("generation_created", lambda created: log.add("generation", Heard(created)))
    for name in ("input_speech_started", "input_audio_transcription_completed", "session_reconnected"):
        session.on(name, lambda event, name=name: log.add(name, event))
    session.on("error", lambda event: log.add("recoverable" if event.recoverable else "error", event))
    session.on("openai_server_event_received", lambda event: log.add(event["type"], event))

    async def send(piece: bytes) -> None:
        session.push_audio(rtc.AudioFrame(piece, RATE_HZ, 1, len(piece) // 2))

    try:
        await session.update_instructions("Answer in one short sentence.")
        async with Microphone(options, send) as microphone:
            yield Talk(session, log, microphone)
    finally:
        await session.aclose()
        await model.aclose()


async def conversation(options: argparse.Namespace) -> str:
    async with talking(options) as talk:
        asked = await talk.type("What is the capital of France?")
        assert asked.user_initiated
        typed = await talk.spoken_answer(asked)
        talk.mic.say("question")
        await talk.log.next("input_speech_started")
        spoken = await talk.spoken_answer()
        roles = [item.role for item in talk.session.chat_ctx.items if item.type == "message"]
        assert roles.count("user") == 2 and roles.count("assistant") >= 2, roles
        return f"{typed!r}; {spoken!r}"


async def interruption(options: argparse.Namespace) -> str:
    async with talking(options) as talk:
        talk.mic.say("story")
        first: Heard = await talk.log.next("generation")
        await first.sounding.wait()
        talk.mic.say("interruption")
        await talk.log.next("input_speech_started")
        talk.session.interrupt()
        talk.session.truncate(message_id=first.message_id, modalities=["audio"], audio_end_ms=300)
        cut = await talk.log.next("conversation.item.truncated")
        assert cut["item_id"] == first.message_id, cut
        await first.done()
        again = await talk.spoken_answer()
        sea = await talk.type("Tell me about the sea.")
        await sea.sounding.wait()
        talk.session.interrupt()
        await sea.done()
        # LiveKit's way for an answer of which nothing was heard: the item is deleted.
        talk.session.truncate(message_id=sea.message_id, modalities=["audio"], audio_end_ms=0)
        await talk.log.next("conversation.item.deleted", where=lambda event: event["item_id"] == sea.message_id)
        return f"truncated at {cut['audio_end_ms']} ms, then {again!r}"


async def tools(options: argparse.Namespace) -> str:
    async with talking(options) as talk:
        await talk.session.update_tools([get_weather])
        talk.mic.say("weather")
        if not options.model.startswith("cascade"):  # `loopback-talk` calls in its second turn
            await talk.spoken_answer()
            talk.mic.say("weather")
        while True:
            heard = await (await talk.log.next("generation")).done()
            if heard.calls:
                break
        (call,) = heard.calls
        context = talk.session.chat_ctx.copy()
        result = llm.FunctionCallOutput(
            call_id=call.call_id, name=call.name, output="sunny and 21 degrees", is_error=False
        )
        context.items.append(result)
        await talk.session.update_chat_ctx(context)
        words = await talk.spoken_answer(await talk.reply())
        if options.model.startswith("cascade"):
            assert "sunny" in words.lower(), words
        return f"{call.name}({call.arguments}), then {words!r}"


async def reconnect(options: argparse.Namespace) -> str:
    """The socket is lost in the middle of a reply, three times: a new session each, with the same items."""
    async with talking(options) as talk:
        await talk.spoken_answer(await talk.type("Remember that my name is Ada."))
        before = [item.id for item in talk.session.chat_ctx.items if item.type == "message"]
        for turn in range(3):
            reply = await talk.type(f"Tell me story number {turn}.")
            await reply.sounding.wait()
            ask("cut")
            await talk.log.next("session_reconnected")
            await reply.done()
            await talk.spoken_answer(await talk.reply())
        now = [item.id for item in talk.session.chat_ctx.items if item.type == "message"]
        assert now[: len(before)] == before, (before, now)
        return f"3 new sessions; {len(now)} messages are still there"


async def leave(options: argparse.Namespace) -> str:
    async with talking(options) as talk:
        return await talk.spoken_answer(await talk.type("Hello."))


play(
    {
        "conversation": conversation,
        "interruption": interruption,
        "tools": tools,
        "reconnect": reconnect,
        "leave": leave,
    }
)
