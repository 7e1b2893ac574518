"""pipecat-ai: a pipeline with the realtime service between a context's two aggregators, as its examples build it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from pipecat.frames.frames import (
    ErrorFrame,
    FunctionCallResultFrame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMMessagesAppendFrame,
    LLMRunFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSTextFrame,
)
from pipecat.observers.base_observer import BaseObserver, FramePushed
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.llm_service import FunctionCallParams
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.workers.runner import WorkerRunner
from scene import RATE_HZ, Log, Microphone, ask, play


async def get_weather(params: FunctionCallParams, city: str = "Paris") -> None:
    """The weather in a city.

    Args:
        city: The city.
    """
    await params.result_callback("sunny and 21 degrees")


class Ears(BaseObserver):
    """What the service gives to the pipeline."""

    def __init__(self, log: Log, service: OpenAIRealtimeLLMService) -> None:
        super().__init__()
        self._log, self._service, self._errors = log, service, set[int]()

    async def on_push_frame(self, data: FramePushed) -> None:
        frame = data.frame
        if isinstance(frame, ErrorFrame) and frame.id not in self._errors:
            self._errors.add(frame.id)
            self._log.add("error", frame.error)
        if data.source is not self._service or data.direction is not FrameDirection.DOWNSTREAM:
            if isinstance(frame, FunctionCallResultFrame) and data.source is self._service:
                self._log.add("tool", frame)
            return
        kinds: dict[type, str] = {
            TTSStartedFrame: "started",
            TTSAudioRawFrame: "audio",
            TTSTextFrame: "text",
            LLMFullResponseEndFrame: "end",
            InterruptionFrame: "interrupted",
            FunctionCallResultFrame: "tool",
        }
        kind = kinds.get(type(frame))
        if kind:
            self._log.add(kind, frame)


class Talk:
    def __init__(self, worker: PipelineWorker, log: Log, mic: Microphone) -> None:
        self.worker, self.log, self.mic = worker, log, mic

    async def spoken_answer(self) -> str:
        """The next answer that sounds, to its end."""
        begun = await self.log.next("started")
        mark = self.log.mark()
        await self.log.next("end")
        came = self.log.since(mark)
        audio = sum(len(frame.audio) for kind, frame in came if kind == "audio")
        words = " ".join(frame.text.strip() for kind, frame in came if kind == "text")
        assert begun and audio > 4800 and words.strip(), (audio, words)
        return words

    async def type(self, text: str) -> None:
        message: Any = {"role": "user", "content": text}
        await self.worker.queue_frames([LLMMessagesAppendFrame([message], run_llm=True)])


@contextlib.asynccontextmanager
async def talking(options: argparse.Namespace, *, tools: Any = ()) -> AsyncIterator[Talk]:
    log = Log(options.patience)
    service = OpenAIRealtimeLLMService(
        api_key="k",
        base_url=f"{options.url}/v1/realtime",
        settings=OpenAIRealtimeLLMService.Settings(
            model=options.model, system_instruction="Answer in one short sentence."
        ),
    )
    greeting: Any = [{"role": "user", "content": "What is the capital of France?"}]
    context = LLMContext(greeting, tools=list(tools)) if tools else LLMContext(greeting)
    pair = LLMContextAggregatorPair(context)
    worker = PipelineWorker(
        Pipeline([pair.user(), service, pair.assistant()]),
        params=PipelineParams(audio_in_sample_rate=RATE_HZ, audio_out_sample_rate=RATE_HZ),
        observers=[Ears(log, service)],
        cancel_on_idle_timeout=False,
    )
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)

    async def send(piece: bytes) -> None:
        await worker.queue_frame(InputAudioRawFrame(audio=piece, sample_rate=RATE_HZ, num_channels=1))

    running = asyncio.create_task(runner.run())
    try:
        await worker.queue_frames([LLMRunFrame()])
        async with Microphone(options, send) as microphone:
            yield Talk(worker, log, microphone)
    finally:
        await worker.cancel()
        await asyncio.wait([running], timeout=10)


async def conversation(options: argparse.Namespace) -> str:
    async with talking(options) as talk:
        typed = await talk.spoken_answer()
        talk.mic.say("question")
        spoken = await talk.spoken_answer()
        return f"{typed!r}; {spoken!r}"


async def interruption(options: argparse.Namespace) -> str:
    """Two turns with an interruption between them; the second has audio."""
    async with talking(options) as talk:
        await talk.spoken_answer()
        talk.mic.say("story")
        await talk.log.next("started")
        await talk.log.next("audio")
        talk.mic.say("interruption")
        await talk.log.next("interrupted")
        return f"interrupted, then {await talk.spoken_answer()!r}"


async def tools(options: argparse.Namespace) -> str:
    async with talking(options, tools=[get_weather]) as talk:
        if not options.model.startswith("cascade"):  # `loopback-talk` calls in its second turn
            await talk.spoken_answer()
            talk.mic.say("weather")
        result = await talk.log.next("tool")
        assert result.result == "sunny and 21 degrees", result
        words = await talk.spoken_answer()
        if options.model.startswith("cascade"):
            assert "sunny" in words.lower(), words
        return f"{result.function_name}({result.arguments}), then {words!r}"


async def dropped(options: argparse.Namespace) -> str:
    async with talking(options) as talk:
        await talk.log.next("audio")
        ask("cut")
        why = str(await talk.log.next("error"))
        return why


async def leave(options: argparse.Namespace) -> str:
    async with talking(options) as talk:
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
