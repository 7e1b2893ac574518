"""One spoken turn and its answer, with a server or in this process: the same code, the same events.

    python examples/converse.py ws://127.0.0.1:8080
    python examples/converse.py --inline

Prints the type of every event of the session, in order. The server is one of `duologue up`.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from duologue.client import (
    AudioFormat,
    BadWav,
    DuplexClient,
    DuplexClientBase,
    DuplexClientError,
    Event,
    EventCollector,
    Observer,
    ResponseHandle,
    SessionConfig,
    read_pcm16_wav,
)
from duologue.client.presets import loopback

#: What the synthetic model does with what it hears, unit by unit of 80 ms.
SCRIPT: list[dict[str, Any]] = [{"listen": 2}, {"speak": {"units": 6, "text": "I have heard you"}}, {"listen": 1}]
UNIT_MS = 80
UNITS = 9
ANSWER_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description="One spoken turn and its answer.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("url", nargs="?", help="the server")
    where.add_argument("--inline", action="store_true", help="run the model in this process")
    parser.add_argument("--model", default="loopback", help="the model (%(default)s)")
    parser.add_argument("--wav", type=Path, help="what is said: 16-bit PCM; without it a short silence")
    parser.add_argument("--timing", action="store_true", help="print the timing of the conversation at the end")
    try:
        asyncio.run(converse(parser.parse_args()))
    except TimeoutError:
        raise SystemExit(f"no answer within {ANSWER_S:g} s") from None
    except (DuplexClientError, BadWav, OSError) as error:
        raise SystemExit(str(error)) from None


async def converse(options: argparse.Namespace) -> None:
    sound, rate_hz = read_pcm16_wav(options.wav) if options.wav else (bytes(UNITS * UNIT_MS * 16 * 2), 16_000)
    config = SessionConfig(input_audio=AudioFormat("pcm16", rate_hz))
    if options.model == "loopback":
        config = loopback(SCRIPT)
    async with client_of(options, config) as client:
        collector = EventCollector()
        client.observe(Printer())
        client.observe(collector)
        async with client:
            await client.stream_pcm(sound, chunk_ms=UNIT_MS)
            collector.speech_ended()
            async with asyncio.timeout(ANSWER_S):
                response = await spoken_answer(client)
            acknowledged = asyncio.create_task(client.wait_for("playback.acknowledged"))
            await asyncio.sleep(0)
            await client.ack_playback(response.audio_ms, response_id=response.response_id)
            await acknowledged
        if options.timing:
            print(collector.timing_summary())


async def spoken_answer(client: DuplexClientBase) -> ResponseHandle:
    """The first one that is not a decision to listen, once it has ended."""
    async for response in client.responses():
        if response.decision == "speak":
            return await response.wait()
    raise DuplexClientError("the session has ended without an answer")


@asynccontextmanager
async def client_of(options: argparse.Namespace, config: SessionConfig) -> AsyncIterator[DuplexClientBase]:
    if not options.inline:
        yield DuplexClient(options.url, model=options.model, config=config)
        return
    from duologue.inline import DuplexOmni, InlineDuplexClient

    async with DuplexOmni(options.model) as omni:
        yield InlineDuplexClient(omni, model=options.model, config=config)


class Printer(Observer):
    """Prints what comes."""

    def received(self, event: Event) -> None:
        print(event.type, flush=True)

    def sent(self, command: dict[str, Any]) -> None:
        """What is sent is known here."""


if __name__ == "__main__":
    main()
