"""Record the sessions that the tests replay: `python -m recordings.record [NAME...]`, with `PYTHONPATH=tests`.

Each is a real session of the whole system in this process: gateway, shard, workers. The shard's own recorder writes it
(`duologue session --record DIR` does the same). `--digests` records nothing and writes the histories again, which is
what a change of the core's behaviour wants: look at what changed in them before it is committed.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from math import pi, sin
from pathlib import Path
from struct import pack
from typing import Any
from unittest import mock

from recordings.replay import SESSIONS, history, history_of
from unit.hearing.test_models import vowels

from duologue.client import AudioFormat, ReconnectPolicy, SessionConfig
from duologue.client.presets import loopback
from duologue.inline import DuplexOmni, InlineDuplexClient, system
from duologue.session.process import options_of

Scene = Callable[[InlineDuplexClient], Awaitable[None]]
UNIT_MS = 80
QUICKLY = ReconnectPolicy(max_attempts=5, low_s=0.0, high_s=0.0)
LOUD = b"".join(pack("<h", int(12_000 * sin(2 * pi * 220 * n / 16_000))) for n in range(UNIT_MS * 16))
HUSH = bytes(UNIT_MS * 16 * 2)


def _voice() -> list[bytes]:
    """A second of what the speech detector takes for a voice, in units."""
    wave = (vowels(960) * 32767).astype("<i2").tobytes()
    return [wave[at : at + len(HUSH)] for at in range(0, len(wave), len(HUSH))]


VOICE = _voice()


async def say(client: InlineDuplexClient, units: int, sound: bytes | list[bytes] = HUSH) -> None:
    for n in range(units):
        await client.append_audio(sound if isinstance(sound, bytes) else sound[n % len(sound)])


async def heard(client: InlineDuplexClient, *types: str, doing: Awaitable[Any]) -> Any:
    """Do it, and wait for the event that comes of it."""
    waiting = asyncio.create_task(client.wait_for(*types))
    await asyncio.sleep(0)
    await doing
    return await waiting


async def answered(client: InlineDuplexClient) -> None:
    """Units answered as the script has it, acknowledged as played, and a heartbeat."""
    done = await heard(client, "response.done", doing=say(client, 14))
    await heard(client, "playback.acknowledged", doing=client.ack_playback(200, response_id=done.response.id))
    await client.heartbeat()
    await heard(client, "session.updated", doing=client.update_session(temperature=0.5))


async def interrupted(client: InlineDuplexClient) -> None:
    """Barge-in while it speaks, and the answer after."""
    await heard(client, "response.output_audio.delta", doing=say(client, 4))
    await heard(client, "response.done", doing=client.barge_in())
    await heard(client, "response.done", doing=say(client, 30))


async def called(client: InlineDuplexClient) -> None:
    """A function call, its result, and what is said of it."""
    asked = await heard(client, "response.function_call_arguments.done", doing=say(client, 4))
    await client.send_function_output(asked.call_id, '{"at": 1}')
    await heard(client, "response.done", doing=say(client, 16))


async def committed(client: InlineDuplexClient) -> None:
    """Turns that the client commits: one spoken, one of silence that is refused, one typed, one taken back."""
    await say(client, 10, LOUD)
    await heard(client, "response.done", doing=client.commit(create_response=True))
    await heard(client, "error", doing=client.commit())
    await client.send_text("and now in writing")
    await heard(client, "response.done", doing=client.create_response())
    await say(client, 6, LOUD)
    await heard(client, "input_audio_buffer.cleared", doing=client.clear_input())
    await heard(client, "error", doing=client.retrieve_item("nobody"))


async def talked(client: InlineDuplexClient) -> None:
    """Whoever speaks is answered, by the server's own turn detection, and interrupts by speaking again."""
    for _ in range(2):
        await say(client, 12, VOICE)
        await heard(client, "response.created", doing=say(client, 12))
    await heard(client, "response.done", doing=say(client, 12, VOICE))


async def resumed(client: InlineDuplexClient) -> None:
    """The connection is lost in the middle of an answer, twice."""
    for _ in range(2):
        await heard(client, "response.output_audio.delta", doing=say(client, 6))
        back = asyncio.create_task(client.wait_for("connection.resumed"))
        await asyncio.sleep(0)
        client.drop_connection()
        await back
    await heard(client, "response.done", doing=say(client, 40))


async def slowly(client: InlineDuplexClient) -> None:
    """Units of a second, a G.711 line, an answer that is cancelled and one that is not."""
    await heard(client, "response.output_audio.delta", doing=say(client, 50, b"\x55" * 8 * UNIT_MS))
    await heard(client, "response.done", doing=client.cancel_response())
    await heard(client, "response.done", doing=say(client, 130, b"\xd5" * 8 * UNIT_MS))


def _script(*steps: dict[str, Any], **more: Any) -> SessionConfig:
    return loopback(list(steps), **more)


SPEAK = {"speak": {"units": 6, "text": "I have heard you"}}
LONG = {"speak": {"units": 12, "text": "one two three"}}
CALL = {"tool_call": {"name": "look", "arguments": {"at": 1}}}
BY_HAND = SessionConfig(turn_detection=None, auto_response=False)
LINE = SessionConfig(
    input_audio=AudioFormat("g711_alaw", 8000),
    output_audio=AudioFormat("g711_ulaw", 8000),
    extra_body={"loopback": {"script": [SPEAK, {"listen": 1}, SPEAK, {"listen": 1}]}},
)
SCENES: dict[str, tuple[str, SessionConfig, Scene]] = {
    "answered": ("loopback", _script({"listen": 2}, SPEAK, {"listen": 1}), answered),
    "interrupted": ("loopback", _script(LONG, {"listen": 2}, SPEAK, {"listen": 1}), interrupted),
    "called": ("loopback", _script({"listen": 1}, CALL, SPEAK, {"listen": 1}), called),
    "resumed": ("loopback", _script({"speak": {"units": 30, "text": "a long one"}}, {"listen": 1}), resumed),
    "committed": ("loopback-talk", BY_HAND, committed),
    "talked": ("loopback-talk", SessionConfig(turn_detection={"type": "server_vad"}, auto_response=False), talked),
    "slowly": ("loopback-1s", LINE, slowly),
}


async def record(name: str, folder: Path) -> None:
    """One session; the shard leaves its recording in `folder`."""
    model, config, scene = SCENES[name]
    recording = partial(options_of, record_to=folder)
    with mock.patch.object(system, "options_of", recording):
        async with DuplexOmni(model) as omni, asyncio.timeout(120):
            client = InlineDuplexClient(omni, config=config, reconnect=QUICKLY, heartbeat_interval_s=None)
            async with client:
                await scene(client)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SCENES)} (all)")
    parser.add_argument("--digests", action="store_true", help="write the histories of what is recorded already")
    options = parser.parse_args()
    for name in options.names or SCENES:
        file = SESSIONS / f"{name}.jsonl.gz"
        if not options.digests:
            with tempfile.TemporaryDirectory() as folder:
                asyncio.run(record(name, Path(folder)))
                [left] = Path(folder).iterdir()
                file.write_bytes(gzip.compress(left.read_bytes(), mtime=0))
        told = history(file)
        history_of(file).write_text(told)
        print(f"{name}: {file.stat().st_size} bytes, {len(told.splitlines())} steps with effects")


if __name__ == "__main__":
    main()
