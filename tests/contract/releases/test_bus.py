"""What earlier releases say on the bus is understood, and what is said today breaks none of their rules.

A field that is renamed, moved, dropped or added without a default changes what recorded bytes come to.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from releases.record import RECORDED, by_name
from releases.samples import full

from duologue.bus import codec
from duologue.bus.link import Peer
from duologue.bus.machine import LinkMachine, LinkOptions, State, agreed_version
from duologue.bus.messages import BUS_VERSION, AnyMessage, Message
from duologue.bus.stats import LinkStats
from duologue.model import records

pytestmark = pytest.mark.contract

KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in get_args(AnyMessage)}
RELEASES = sorted(folder.name for folder in RECORDED.iterdir())
NEWEST = max((name for name in RELEASES if name[0].isdigit()), key=lambda name: [int(n) for n in name.split(".")])
AGAIN = "once it is out, raise BUS_VERSION; before, record it again (tests/releases/record.py)"


def told(release: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((RECORDED / release / "bus.json").read_text())
    return answer


def spoken() -> list[tuple[str, str]]:
    """Every message of every release that a process of today may meet."""
    return [
        (release, name)
        for release in RELEASES
        if agreed_version(BUS_VERSION, told(release)["bus_version"])
        for name in told(release)["messages"]
    ]


def has_all(said: Any, here: Any) -> bool:
    """Whether everything that was said is here, under its name; here may be more: further names, and further fields
    of what is encoded as a list."""
    if isinstance(said, dict):
        return isinstance(here, dict) and all(key in here and has_all(said[key], here[key]) for key in said)
    if isinstance(said, list):
        return isinstance(here, list) and len(here) >= len(said) and all(map(has_all, said, here))
    return bool(said == here)


def delivered(message: bytes) -> AnyMessage:
    """By the way that a process reads it: in a batch of one."""
    header = codec.Header(BUS_VERSION, codec.DATA, "a", "b", 1, 1, 0, frames=(0,))
    batch = codec.decode_batch(header, [b"", b"\xdd\x00\x00\x00\x01" + message])
    assert isinstance(batch, codec.Batch), batch
    return batch.messages[0]


def test_the_newest_release_is_among_those_that_are_met() -> None:
    assert agreed_version(BUS_VERSION, told(NEWEST)["bus_version"])


@pytest.mark.parametrize(("release", "name"), spoken())
def test_a_recorded_message_says_what_it_said(release: str, name: str) -> None:
    recorded = told(release)["messages"][name]
    for sample in (recorded["full"], recorded["least"]):
        here = delivered(bytes.fromhex(sample["hex"]))
        assert type(here).__name__ == name
        assert has_all(sample["value"], by_name(here)), (sample["value"], by_name(here))


@pytest.mark.parametrize(("release", "name"), spoken())
def test_fields_are_only_added_at_the_end_and_with_a_default(release: str, name: str) -> None:
    recorded, kind = told(release)["messages"][name], KINDS[name]
    known = len(recorded["fields"])
    assert list(kind.__struct_fields__[:known]) == recorded["fields"]
    assert all(not field.required for field in msgspec.structs.fields(kind)[known:]), kind.__struct_fields__[known:]
    assert kind.needs_credit == recorded["needs_credit"]


@pytest.mark.parametrize("name", KINDS)
def test_what_a_later_version_adds_is_passed_over(name: str) -> None:
    message = full(KINDS[name])
    longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(codec.encode_message(message)), "added later"])
    assert delivered(longer) == message


def test_a_message_that_the_release_does_not_know_is_not_said_to_it() -> None:
    known = told(NEWEST)
    if known["bus_version"] == BUS_VERSION:
        assert sorted(KINDS.keys() - known["messages"].keys()) == [], AGAIN


@pytest.mark.parametrize("release", RELEASES)
def test_the_records_of_the_registry_are_read(release: str) -> None:
    for name, recorded in told(release)["records"].items():
        for sample in (recorded["full"], recorded["least"]):
            here = msgspec.msgpack.decode(bytes.fromhex(sample["hex"]), type=getattr(records, name))
            assert has_all(sample["value"], by_name(here)), name


# -- a whole link --------------------------------------------------------------------------------------

US = Peer("shard-1", "shard", "theirs")
"""The recorded frames are for the incarnation `theirs`, from `ours`."""


def recorded_frames(release: str) -> dict[str, list[bytes]]:
    return {name: [bytes.fromhex(part) for part in parts] for name, parts in told(release)["frames"].items()}


def read(parts: Sequence[Any]) -> codec.Header:
    header = codec.decode_header(bytes(parts[0]))
    assert header is not None
    return header


@pytest.mark.parametrize("release", RELEASES)
def test_a_listener_of_today_understands_a_dialler_of_then(release: str) -> None:
    said = recorded_frames(release)
    greeting = codec.decode_greeting(said["hello"])
    assert greeting is not None and (greeting.name, greeting.kind) == ("gateway-1", "gateway")
    link = LinkMachine.accept(US, LinkOptions(), read(said["hello"]), greeting, LinkStats(), 0.0)
    batch = link.receive(read(said["data"]), said["data"], 0.1)
    assert batch is not None and len(batch.messages) == 2
    assert [[len(frame) for frame in frames] for frames in batch.frames] == [[5, codec.PACK_BYTES]] * 2
    link.receive(read(said["idle"]), said["idle"], 0.2)
    assert link.state is State.LIVE
    link.receive(read(said["bye"]), said["bye"], 0.3)
    assert (link.state, link.lost_reason) == (State.LOST, "closed")


@pytest.mark.parametrize("release", RELEASES)
def test_a_dialler_of_today_understands_a_listener_of_then(release: str) -> None:
    said = recorded_frames(release)
    link = LinkMachine.dial(US, LinkOptions(), 7, "gateway-1", LinkStats(), 0.0)
    assert read(link.take(0.0)[0]).kind == codec.HELLO
    link.receive(read(said["ready"]), said["ready"], 0.1)
    assert link.state is State.LIVE and link.peer.incarnation == "ours"


def test_every_release_is_whole() -> None:
    for release in RELEASES:
        assert {path.suffix for path in Path(RECORDED / release).iterdir()} == {".json", ".msgpack"}, release
