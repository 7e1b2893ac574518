"""Record what this version of Duologue says to others: `python -m releases.record 0.1.0`, with `PYTHONPATH=tests`.

Every message of the bus, the frames of a link, the records of the registry and checkpoints of sessions, as bytes,
into `tests/releases/recorded/NAME`. Run it once for each release, and never again for one that is out: the tests hold
the present code against all of them. It runs with older code too, given in `PYTHONPATH` before the present one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import msgspec
from releases.samples import full, least

from duologue.bus import codec
from duologue.bus.messages import BUS_VERSION, AnyMessage, Message
from duologue.client import SessionConfig
from duologue.client.presets import loopback
from duologue.inline import DuplexOmni, InlineDuplexClient
from duologue.model import records
from duologue.session.core import Checkpoint, DuplexSessionMachine

RECORDED = Path(__file__).parent / "recorded"
KEPT = 3
"""Checkpoints of one session."""
UNIT = b"\x10\x27" * 1280
Scene = Callable[[InlineDuplexClient], Awaitable[None]]


# -- the bus -------------------------------------------------------------------------------------------


def messages() -> dict[str, Any]:
    return {kind.__name__: _described(kind) for kind in sorted(get_args(AnyMessage), key=lambda kind: kind.__name__)}


def _described(kind: type[Message]) -> dict[str, Any]:
    return {
        "needs_credit": kind.needs_credit,
        "fields": list(kind.__struct_fields__),
        **{name: _told(make(kind), codec.encode_message) for name, make in (("full", full), ("least", least))},
    }


def _told(value: Any, encode: Callable[[Any], bytes]) -> dict[str, Any]:
    return {"hex": encode(value).hex(), "value": by_name(value)}


def by_name(value: Any) -> Any:
    """A struct as its fields by name, however it is encoded; bytes as hex."""
    match value:
        case msgspec.Struct():
            return {name: by_name(getattr(value, name)) for name in value.__struct_fields__}
        case tuple() | list():
            return [by_name(one) for one in value]
        case dict():
            return {str(key): by_name(one) for key, one in value.items()}
        case bytes():
            return value.hex()
        case _:
            return value if isinstance(value, str | int | float | None) else str(value)


def frames() -> dict[str, list[str]]:
    """One multipart message of each kind, part by part."""
    greeting = codec.encode_greeting(codec.Greeting("gateway-1", "gateway", 8 << 20))
    writer = codec.BatchWriter()
    for kind in sorted(get_args(AnyMessage), key=lambda kind: kind.__name__)[:2]:
        writer.add_encoded(codec.encode_message(full(kind)), (b"small", b"x" * codec.PACK_BYTES), (5, codec.PACK_BYTES))
    counts, sizes, parts = writer.take()
    said = {
        "hello": (_header(codec.HELLO, 0, receiver=""), greeting),
        "ready": (_header(codec.READY, 0), greeting),
        "data": (_header(codec.DATA, 1, counts, sizes), *parts),
        "idle": (_header(codec.IDLE, 1),),
        "bye": (_header(codec.BYE, 1), b"closed"),
    }
    return {name: [bytes(part).hex() for part in of] for name, of in said.items()}


def _header(
    kind: int, seq: int, counts: tuple[int, ...] = (), sizes: tuple[int, ...] = (), receiver: str = "theirs"
) -> bytes:
    return codec.encode_header(codec.Header(BUS_VERSION, kind, "ours", receiver, 7, seq, 9 << 20, True, counts, sizes))


def registry() -> dict[str, Any]:
    kinds = (records.GatewayRecord, records.ShardRecord, records.WorkerRecord)
    return {
        kind.__name__: {
            name: _told(make(kind), records.encode_record) for name, make in (("full", full), ("least", least))
        }
        for kind in kinds
    }


# -- checkpoints ---------------------------------------------------------------------------------------


async def _heard(client: InlineDuplexClient, kind: str, doing: Awaitable[Any]) -> Any:
    waiting = asyncio.create_task(client.wait_for(kind))
    await asyncio.sleep(0)
    await doing
    return await waiting


async def _say(client: InlineDuplexClient, units: int) -> None:
    for _ in range(units):
        await client.append_audio(UNIT)


async def _answered(client: InlineDuplexClient) -> None:
    done = await _heard(client, "response.done", _say(client, 14))
    await _heard(client, "playback.acknowledged", client.ack_playback(200, response_id=done.response.id))
    await _heard(client, "session.updated", client.update_session(temperature=0.5))


async def _interrupted(client: InlineDuplexClient) -> None:
    await _heard(client, "response.output_audio.delta", _say(client, 4))
    await _heard(client, "response.done", client.barge_in())


async def _called(client: InlineDuplexClient) -> None:
    await _heard(client, "response.function_call_arguments.done", _say(client, 4))
    await client.heartbeat()


async def _typed(client: InlineDuplexClient) -> None:
    await client.send_text("in writing")
    await _heard(client, "response.done", client.create_response())
    await _say(client, 3)
    await client.heartbeat()


_SPEAK = {"speak": {"units": 6, "text": "I have heard you"}}
_CALL = {"tool_call": {"name": "look", "arguments": {"at": 1}}}
SCENES: dict[str, tuple[str, SessionConfig, Scene]] = {
    "answered": ("loopback", loopback([{"listen": 2}, _SPEAK, {"listen": 1}]), _answered),
    "interrupted": ("loopback", loopback([_SPEAK, {"listen": 2}]), _interrupted),
    "called": ("loopback", loopback([{"listen": 1}, _CALL, _SPEAK]), _called),
    "typed": ("loopback-talk", SessionConfig(turn_detection=None, auto_response=False), _typed),
}


async def checkpoints(name: str) -> list[bytes]:
    """Those of one session, as they were written: the fullest ones and the last."""
    model, config, scene = SCENES[name]
    bodies: list[bytes] = []
    handle = DuplexSessionMachine.handle

    def watched(machine: DuplexSessionMachine, command: Any, now: float) -> list[Any]:
        effects = handle(machine, command, now)
        bodies.extend(effect.body for effect in effects if isinstance(effect, Checkpoint))
        return effects

    with mock.patch.object(DuplexSessionMachine, "handle", watched):
        async with DuplexOmni(model) as omni, asyncio.timeout(60):
            async with InlineDuplexClient(omni, config=config, heartbeat_interval_s=None) as client:
                await scene(client)
                before_the_end = list(bodies)
    fullest = sorted(before_the_end[:-1], key=len)[1 - KEPT :]
    return [*fullest, before_the_end[-1]]


def _all() -> Iterator[tuple[str, bytes]]:
    for name in SCENES:
        for n, body in enumerate(asyncio.run(checkpoints(name)), 1):
            yield f"{name}-{n}.{SCENES[name][0]}.msgpack", body


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("release", help="what it is called: the folder")
    folder = RECORDED / parser.parse_args().release
    folder.mkdir(parents=True, exist_ok=True)
    told: dict[str, Any] = {
        "bus_version": BUS_VERSION,
        "messages": messages(),
        "frames": frames(),
        "records": registry(),
    }
    (folder / "bus.json").write_text(json.dumps(told, indent=1) + "\n")
    for old in folder.glob("*.msgpack"):
        old.unlink()
    for name, body in _all():
        (folder / name).write_bytes(body)
        print(f"{name}: {len(body)} bytes")
    print(f"bus.json: {len(told['messages'])} messages of bus version {BUS_VERSION}")


if __name__ == "__main__":
    main()
