"""openai-agents (Python): `RealtimeRunner` with an agent, as its documentation shows it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from agents import function_tool
from agents.realtime import RealtimeAgent, RealtimeRunner, RealtimeSession
from scene import Log, Microphone, ask, play


@function_tool(strict_mode=False)
def get_weather(city: str = "Paris") -> str:
    """The weather in a city."""
    return "sunny and 21 degrees"


class Talk:
    def __init__(self, session: RealtimeSession, log: Log, mic: Microphone) -> None:
        self.session, self.log, self.mic = session, log, mic

    async def answer(self) -> tuple[str, int, str, str]:
        """The next response: its transcript, its audio in bytes, its status, its id."""
        begun = (await self.log.next("response.created"))["response"]["id"]
        done = await self.log.next("response.done", where=lambda event: event["response"]["id"] == begun)
        audio = sum(
            len(event.audio.data)
            for kind, event in self.log.seen
            if kind == "audio" and event.audio.response_id == begun
        )
        words = "".join(
            event["delta"]
            for kind, event in self.log.seen
            if kind == "response.output_audio_transcript.delta" and event["response_id"] == begun
        )
        return words, audio, done["response"]["status"], begun

    async def spoken_answer(self) -> str:
        words, audio, status, _ = await self.answer()
        assert status == "completed" and words.strip() and audio > 4800, (status, words, audio)
        return words


@contextlib.asynccontextmanager
async def talking(options: argparse.Namespace, *, tools: Any = ()) -> AsyncIterator[Talk]:
    agent = RealtimeAgent(name="Guide", instructions="Answer in one short sentence.", tools=list(tools))
    how: Any = {"url": f"{options.url}/v1/realtime?model={options.model}", "api_key": "k"}
    how["initial_model_settings"] = {"model_name": options.model}
    log = Log(options.patience)
    async with await RealtimeRunner(agent).run(model_config=how) as session:

        async def read() -> None:
            try:
                async for event in session:
                    if event.type == "raw_model_event":
                        if event.data.type == "raw_server_event":
                            log.add(event.data.data["type"], event.data.data)
                    else:
                        log.add(event.type, event)
            except Exception as error:
                return log.end(repr(error))
            log.end("the session has ended")

        microphone = Microphone(options, session.send_audio)
        reading = asyncio.create_task(read())
        try:
            echo = (await log.next("session.updated"))["session"]
            assert echo["audio"]["input"]["turn_detection"]["type"] == "semantic_vad", echo
            async with microphone:
                yield Talk(session, log, microphone)
        finally:
            reading.cancel()


async def conversation(options: argparse.Namespace) -> str:
    async with talking(options) as talk:
        await talk.session.send_message("What is the capital of France?")
        typed = await talk.spoken_answer()
        talk.mic.say("question")
        await talk.log.next("input_audio_buffer.committed")
        spoken = await talk.spoken_answer()
        history = [event.history for kind, event in talk.log.seen if kind == "history_updated"][-1]
        roles = [item.role for item in history if item.type == "message"]
        assert roles.count("user") == 2 and roles.count("assistant") >= 2, roles
        return f"{typed!r}; {spoken!r}"


async def interruption(options: argparse.Namespace) -> str:
    async with talking(options) as talk:
        talk.mic.say("story")
        first = await talk.log.next("audio")
        talk.mic.say("interruption")
        cut = await talk.log.next("audio_interrupted")
        assert cut.item_id == first.item_id, (cut, first)
        again = await talk.spoken_answer()
        truncated = [event for kind, event in talk.log.seen if kind == "conversation.item.truncated"]
        assert [event["item_id"] for event in truncated] == [first.item_id], truncated
        await talk.session.send_message("Tell me about the sea.")
        second = await talk.log.next("audio")
        await talk.session.interrupt()
        await talk.log.next("audio_interrupted", where=lambda event: event.item_id == second.item_id)
        await talk.session.send_message("Tell me about the moon.")
        moon = await talk.log.next("audio", where=lambda event: event.item_id != second.item_id)
        await talk.log.next("audio_end", where=lambda event: event.item_id == moon.item_id)
        return f"truncated at {truncated[0]['audio_end_ms']} ms, then {again!r}"


async def tools(options: argparse.Namespace) -> str:
    async with talking(options, tools=[get_weather]) as talk:
        talk.mic.say("weather")
        if not options.model.startswith("cascade"):  # `loopback-talk` calls in its second turn
            await talk.spoken_answer()
            talk.mic.say("weather")
        ended = await talk.log.next("tool_end")
        assert ended.output == "sunny and 21 degrees", ended
        words = await talk.spoken_answer()
        if options.model.startswith("cascade"):
            assert "sunny" in words.lower(), words
        return f"get_weather({ended.arguments}), then {words!r}"


async def dropped(options: argparse.Namespace) -> str:
    async with talking(options) as talk:
        talk.mic.say("story")
        await talk.log.next("audio")
        ask("cut")
        why = await talk.log.ended()
        assert "closed" in why.lower(), why
        return why


async def leave(options: argparse.Namespace) -> str:
    async with talking(options) as talk:
        await talk.session.send_message("Hello.")
        return await talk.spoken_answer()


play(
    {
        "conversation": conversation,
        "interruption": interruption,
        "tools": tools,
        "dropped": dropped,
        "leave": leave,
    }
)
