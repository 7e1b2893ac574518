"""`duologue demo`: one spoken conversation from end to end, printed, and checked as it goes.

1. A question is spoken; what was heard, the answer and the time to its first sound are printed. The answer is
   recognised again from its own WAV by the recogniser that hears users.
2. A longer answer is talked over: three back-channels do not stop it, "stop, wait" does, and what the model
   remembers of it is what had been played.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from pathlib import Path

import msgspec
from rich.console import Console

from duologue.cli.conversation_errors import told_in_one_line
from duologue.cli.errors import UserError
from duologue.cli.open_microphone import OpenMicrophone
from duologue.cli.server_address import add_ca_argument, trust
from duologue.cli.speaker import PlayedResponse, Speaker
from duologue.cli.temporary import temporary_system
from duologue.cli.transcript import Transcript
from duologue.cli.voice import RATE_HZ, spoken
from duologue.client import (
    AudioFormat,
    DuplexClient,
    Event,
    SessionConfig,
    write_pcm16_wav,
)
from duologue.models.cascade.voices import (
    BACK_CHANNELS,
    INTERRUPTION,
    LONG_QUESTION,
    QUESTION,
    RENDERINGS,
    Rendering,
)
from duologue.protocol.duplex import ItemRetrieved, ResponseDone, TranscriptionCompleted

OUT_RATE_HZ = 24_000
ANSWER_S = 60.0
WORDS_WANTED = 0.8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", help="a running system that serves the cascade; otherwise one is started")
    add_ca_argument(parser)
    parser.add_argument("--out", type=Path, default=Path("answer.wav"), help="the answer as WAV (%(default)s)")


def run(options: argparse.Namespace) -> int:
    console = Console(highlight=False, soft_wrap=True)
    trust(options.ca)
    with told_in_one_line():
        if options.url:
            return asyncio.run(_demo(options.url, options.out, console))
        console.print("starting the system with the model cascade", style="dim")
        with temporary_system("cascade") as state:
            return asyncio.run(_demo(state.url, options.out, console))


class Scene(msgspec.Struct):
    """One client with its microphone, its loudspeaker and its live transcript."""

    client: DuplexClient
    microphone: OpenMicrophone
    speaker: Speaker
    transcript: Transcript
    done: asyncio.Queue[tuple[ResponseDone, float]]
    """Endings with the time of their arrival, time.monotonic."""

    async def listen(self) -> None:
        async for event in self.client.events():
            self.take(event)

    def take(self, event: Event) -> None:
        self.transcript.take(event)
        self.speaker.take(event)
        if isinstance(event, ResponseDone):
            self.done.put_nowait((event, time.monotonic()))

    async def say(self, text: str, rendering: Rendering = RENDERINGS[0]) -> float:
        return await self.microphone.say(spoken(text, rendering))

    async def next_done(self, what: str) -> tuple[ResponseDone, float]:
        try:
            return await asyncio.wait_for(self.done.get(), ANSWER_S)
        except TimeoutError:
            raise UserError(f"{what} did not come within {ANSWER_S:g} s") from None


def _client(url: str, *, auto: bool = True) -> DuplexClient:
    config = SessionConfig(
        input_audio=AudioFormat("pcm16", RATE_HZ),
        output_audio=AudioFormat("pcm16", OUT_RATE_HZ),
        auto_response=auto,
    )
    try:
        return DuplexClient(url, model="cascade", config=config)
    except ValueError as error:
        raise UserError(f"--url: {error}") from None


async def _demo(url: str, out: Path, console: Console) -> int:
    client = _client(url)
    async with client:
        scene = Scene(
            client, OpenMicrophone(client), Speaker(client, OUT_RATE_HZ), Transcript(console), asyncio.Queue(64)
        )
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(work) for work in (scene.listen(), scene.microphone.run(), scene.speaker.play())
            ]
            checks = [*await _question(scene, url, out, console), *await _talk_over(scene, console)]
            for task in running:
                task.cancel()
    for name, holds in checks:
        console.print(f"[{'green' if holds else 'red'}]{'holds' if holds else 'FAILS':>6}[/]  {name}")
    return 0 if all(holds for _, holds in checks) else 1


Check = tuple[str, bool]


async def _question(scene: Scene, url: str, out: Path, console: Console) -> list[Check]:
    console.rule("a question")
    await scene.say(QUESTION)
    scene.transcript.speech_ended()
    await scene.next_done("the answer")
    answer = scene.transcript.answers[-1]
    played = await _play_out(scene)
    write_pcm16_wav(out, bytes(played.pcm), OUT_RATE_HZ)
    again = await _recognise(url, bytes(played.pcm))
    share = words_found(answer, again)
    console.print(f"[dim]     …[/]  the answer is in {out}; recognised again: ", end="")
    console.print(again, markup=False)
    return [
        ("the question was heard: " + " / ".join(scene.transcript.heard), bool(scene.transcript.heard)),
        (f"{share:.0%} of the answer's words are recognised in its WAV", share >= WORDS_WANTED),
    ]


async def _play_out(scene: Scene) -> PlayedResponse:
    await scene.speaker.wait_quiet()
    if not scene.speaker.responses:
        raise UserError("the answer had no sound")
    return scene.speaker.responses[-1]


async def _recognise(url: str, pcm: bytes) -> str:
    """What the model's own ears make of this sound, in a session that answers nothing."""
    client = _client(url, auto=False)
    client.config = msgspec.structs.replace(client.config, input_audio=AudioFormat("pcm16", OUT_RATE_HZ))
    async with client:
        waiting = asyncio.create_task(
            client.wait_for("conversation.item.input_audio_transcription.completed", timeout_s=ANSWER_S)
        )
        await asyncio.sleep(0)
        await client.stream_pcm(pcm, chunk_ms=160, realtime=False)
        await client.commit(create_response=False)
        heard = await waiting
    assert isinstance(heard, TranscriptionCompleted)
    return heard.transcript


def words_found(said: str, heard: str) -> float:
    """The share of the said words that were heard, each heard word used once."""
    wanted, left = _words(said), _words(heard)
    found = 0
    for word in wanted:
        if word in left:
            left.remove(word)
            found += 1
    return found / len(wanted) if wanted else 0.0


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", text.lower())


async def _talk_over(scene: Scene, console: Console) -> list[Check]:
    console.rule("talking over a longer answer")
    before = len(scene.speaker.responses)
    await scene.say(LONG_QUESTION)
    scene.transcript.speech_ended()
    await _until_speaking(scene, before)
    stopped = False
    for text, rendering in zip(BACK_CHANNELS, RENDERINGS, strict=True):
        await asyncio.sleep(0.5)
        console.print(f"[cyan]{'you':>6}[/]  (over it, {rendering.name}) {text}")
        await scene.say(text, rendering)
        await asyncio.sleep(0.8)
        stopped = stopped or not scene.speaker.playing
    going_on = scene.speaker.playing
    console.print(f"[cyan]{'you':>6}[/]  (over it) {INTERRUPTION}")
    said_at = await scene.say(INTERRUPTION)
    done, ended_at = await _end_of_last(scene)
    took_ms = (ended_at - said_at) * 1000
    kept, heard_ms = await _remembered(scene, done)
    whole = scene.transcript.answers[-1]
    console.print(f"[dim]     …[/]  heard {heard_ms:.0f} ms; the model remembers: ", end="")
    console.print(kept or "nothing", markup=False)
    return [
        ("three back-channels did not stop it", not stopped and going_on),
        (f"'stop, wait' did, {_told_ms(took_ms)} its last sound", done.response.status == "cancelled"),
        ("history holds a beginning of the answer, and not all of it", whole.startswith(kept) and kept != whole),
        ("no more than was played", len(kept) <= _text_at(scene, done, heard_ms)),
    ]


def _told_ms(ms: float) -> str:
    return f"{ms:.0f} ms after" if ms >= 0 else f"{-ms:.0f} ms before"


async def _until_speaking(scene: Scene, before: int) -> None:
    deadline = time.monotonic() + ANSWER_S
    while len(scene.speaker.responses) == before:
        if time.monotonic() > deadline:
            raise UserError(f"the longer answer did not come within {ANSWER_S:g} s")
        await asyncio.sleep(0.05)


async def _end_of_last(scene: Scene) -> tuple[ResponseDone, float]:
    """The end of the answer that was talked over, and when it came."""
    while True:
        done, ended_at = await scene.next_done("the end of the longer answer")
        if done.response_id == scene.speaker.responses[-1].response_id:
            return done, ended_at


async def _remembered(scene: Scene, done: ResponseDone) -> tuple[str, float]:
    """The text of the item in the model's history, and how much of its sound was played."""
    waiting = asyncio.create_task(scene.client.wait_for("conversation.item.retrieved"))
    await asyncio.sleep(0)
    item_id = f"item_{done.response_id}"
    await scene.client.send({"type": "conversation.item.retrieve", "item_id": item_id})
    event = await waiting
    assert isinstance(event, ItemRetrieved)
    played = next(r for r in scene.speaker.responses if r.response_id == done.response_id)
    return event.item.text.strip(), played.played_ms


def _text_at(scene: Scene, done: ResponseDone, heard_ms: float) -> int:
    """How many characters had sounded by then, by the marks of the audio; a clause is all or nothing."""
    marks = scene.speaker.marks_of(done.response_id)
    within = [mark for mark in marks if mark.audio_end_ms >= heard_ms]
    return within[0].text_chars if within else marks[-1].text_chars if marks else 0
