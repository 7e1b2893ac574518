"""`duologue talk`: speak a WAV, a sentence or the microphone to a model and keep its answer."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator
from pathlib import Path

from rich.console import Console

from duologue.cli.conversation_errors import told_in_one_line
from duologue.cli.errors import UserError
from duologue.cli.home import Home
from duologue.cli.microphone import Microphone
from duologue.cli.open_microphone import CHUNK_MS, OpenMicrophone
from duologue.cli.server_address import DEFAULT_URL, add_ca_argument, server_url
from duologue.cli.speaker import Speaker
from duologue.cli.transcript import Transcript
from duologue.cli.turns import ends_its_turns
from duologue.cli.voice import RATE_HZ, spoken
from duologue.client import (
    AudioFormat,
    BadWav,
    DuplexClient,
    SessionConfig,
    read_pcm16_wav,
    write_pcm16_wav,
)

OUT_RATE_HZ = 24_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--wav", type=Path, help="16-bit PCM WAV to speak")
    source.add_argument("--say", metavar="TEXT", help="a sentence, spoken by the packaged voice")
    source.add_argument("--mic", action="store_true", help="speak into the microphone (needs the sounddevice package)")
    parser.add_argument("--out", type=Path, help="write what was heard of the answers to this WAV")
    parser.add_argument("--url", help=f"the server (the system that runs in the home, else {DEFAULT_URL})")
    parser.add_argument("--home", type=Path, help="the home of the running system (.duologue)")
    add_ca_argument(parser)
    parser.add_argument("--model", default="cascade", help="the model (%(default)s)")
    parser.add_argument("--instructions", help="what the model is told about its task")
    parser.add_argument("--api-key", help="the key of the server, if it wants one")
    parser.add_argument("--answers", type=positive_int, default=1, help="how many answers to wait for (%(default)s)")
    parser.add_argument("--wait", type=positive_s, default=60.0, help="seconds to wait for them (%(default)s)")


def positive_int(text: str) -> int:
    """An argument that counts something. Raises ArgumentTypeError."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def positive_s(text: str) -> float:
    """An argument in seconds. Raises ArgumentTypeError."""
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(text)) < math.inf:
            return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")


def run(options: argparse.Namespace) -> int:
    options.url = server_url(options.url, options.ca, Home(options.home))
    if options.out:
        check_writable(options.out)
    with told_in_one_line():
        sound, rate_hz = _sound(options)
    try:
        client = DuplexClient(
            options.url, model=options.model, config=_config(options, rate_hz), api_key=options.api_key
        )
    except ValueError as error:
        raise UserError(f"--url: {error}") from None
    with told_in_one_line():
        speaker = asyncio.run(_converse(client, sound, rate_hz, options))
    if options.out:
        _write(options.out, b"".join(answer.heard for answer in speaker.responses))
    if not speaker.responses:
        raise UserError(f"no answer within {options.wait:g} s")
    return 0


def _config(options: argparse.Namespace, rate_hz: int) -> SessionConfig:
    """Nobody commits here: where the model does not end the turns itself, the server's detector is to."""
    ends_turns = ends_its_turns(options.url, options.model, options.api_key)
    return SessionConfig(
        instructions=options.instructions,
        input_audio=AudioFormat("pcm16", rate_hz),
        output_audio=AudioFormat("pcm16", OUT_RATE_HZ),
        auto_response=ends_turns,
        turn_detection=None if ends_turns else {"type": "server_vad"},
    )


def _sound(options: argparse.Namespace) -> tuple[bytes, int]:
    """What is to be spoken, mono PCM16, and its rate in Hz; nothing for the microphone."""
    if options.wav:
        return _read(options.wav)
    return (spoken(options.say) if options.say else b""), RATE_HZ


def check_writable(path: Path) -> None:
    """Before the conversation, not after it. Raises UserError; leaves the file as it is, if there is one."""
    was_there = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise UserError(f"--out {path}: {error.strerror}") from None
    if not was_there:
        path.unlink()


def _write(path: Path, pcm: bytes) -> None:
    try:
        write_pcm16_wav(path, pcm, OUT_RATE_HZ)
    except OSError as error:
        raise UserError(f"--out {path}: {error.strerror}") from None


def _read(path: Path) -> tuple[bytes, int]:
    try:
        return read_pcm16_wav(path)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except BadWav as error:
        raise UserError(str(error)) from None


async def _converse(client: DuplexClient, sound: bytes, rate_hz: int, options: argparse.Namespace) -> Speaker:
    transcript = Transcript(Console())
    async with client:
        with contextlib.ExitStack() as stack:
            microphone = stack.enter_context(Microphone(rate_hz)) if options.mic else None
            sink = microphone.play if microphone else None
            speaker = Speaker(client, OUT_RATE_HZ, sink)
            async with asyncio.TaskGroup() as group:
                helpers = [
                    group.create_task(_listen(client, transcript, speaker)),
                    group.create_task(speaker.play()),
                ]
                if microphone:
                    await _stream(client, microphone.chunks(CHUNK_MS))
                else:
                    open_microphone = OpenMicrophone(client)
                    helpers.append(group.create_task(open_microphone.run()))
                    await open_microphone.say(sound)
                    transcript.speech_ended()
                    await _hear_out(transcript, speaker, options)
                for helper in helpers:
                    helper.cancel()
    return speaker


async def _listen(client: DuplexClient, transcript: Transcript, speaker: Speaker) -> None:
    async for event in client.events():
        transcript.take(event)
        speaker.take(event)


async def _stream(client: DuplexClient, chunks: AsyncIterator[bytes]) -> None:
    async for chunk in chunks:
        await client.append_audio(chunk)


async def _hear_out(transcript: Transcript, speaker: Speaker, options: argparse.Namespace) -> None:
    """Until the answers have been heard, or the time is up."""
    deadline = time.monotonic() + options.wait
    while time.monotonic() < deadline:
        if len(transcript.answers) >= options.answers and not speaker.playing:
            return
        await asyncio.sleep(0.05)
