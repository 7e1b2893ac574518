"""What travels inside messages of the bus and in the store: commands, outputs of models, checkpoints, conversions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from fuzz import hostile, mutators
from fuzz.client_frames import seeds as client_frames
from fuzz.client_frames import text_of
from fuzz.conversations import conversed
from fuzz.examples import examples
from fuzz.target import Target
from fuzz.trees import write_msgpack
from unit.session.core.fake_models import FakeModel

from duologue.model.outputs import ModelOutput, decode_output, encode_output
from duologue.protocol.duplex import (
    DuplexCommand,
    RealtimeProtocolError,
    command_from_realtime,
    decode_command,
    encode_command,
)
from duologue.session.core import DuplexSessionMachine

_PLUGIN = FakeModel()
_READ: list[tuple[Callable[[bytes], Any], Callable[[Any], bytes]]] = [
    (decode_command, encode_command),
    (decode_output, encode_output),
]


def check(data: bytes) -> bool:
    """The decoders refuse with msgspec's own error, as they say, and nothing else."""
    taken = False
    for decode, encode in _READ:
        try:
            found = decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        body = encode(found)
        assert encode(decode(body)) == body, "a body does not come back the same"
        taken = True
    return taken


def seeds() -> Iterator[bytes]:
    for tree in examples(DuplexCommand, {}, encoded=False):
        yield write_msgpack(tree)
    for tree in examples(ModelOutput, {}, encoded=False):
        yield write_msgpack(tree)
    for frame in client_frames():
        try:
            yield encode_command(command_from_realtime(text_of(frame)))
        except RealtimeProtocolError:
            continue
    yield from map(write_msgpack, hostile.MSGPACK)


BODIES = Target(
    "bus-bodies",
    check,
    seeds,
    mutators.of_msgpack(seeds),
    ("duologue.protocol.duplex.commands", "duologue.protocol.realtime.commands", "duologue.model.outputs"),
)


# -- checkpoints ------------------------------------------------------------------------------------------


def check_checkpoint(data: bytes) -> bool:
    try:
        machine = DuplexSessionMachine.restore(data, plugin=_PLUGIN, owner=2**62)
    except ValueError:
        return False
    body = _again(machine.snapshot())  # whatever was left out stands there now, 300 as 300.0
    assert _again(body) == body, "a session does not come back from its snapshot the same"
    return True


def _again(body: bytes) -> bytes:
    return DuplexSessionMachine.restore(body, plugin=_PLUGIN, owner=2**62).snapshot()


def checkpoints() -> Iterator[bytes]:
    for world in conversed():
        yield world.machine.snapshot()
        yield from (checkpoint.body for checkpoint in world.checkpoints[:: max(1, len(world.checkpoints) // 4)])


CHECKPOINTS = Target(
    "checkpoints",
    check_checkpoint,
    checkpoints,
    mutators.of_msgpack(checkpoints),
    ("duologue.session.core.opening", "duologue.session.core.checkpoints", "duologue.session.core.ears"),
    base_bytes=96 << 20,  # the weights of a new ratio of rates
)
