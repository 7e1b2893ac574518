"""A whole session under what a client writes: no frame, and no order of frames, makes the machine fail.

A line is a frame; a line that begins with `!` is something that happens: `!answer`, `!turn`, `!tool`, `!pass`, `!lose`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

from fuzz import hostile, mutators
from fuzz.client_frames import frames, text_of
from fuzz.target import Target
from fuzz.trees import Pairs, write_json
from unit.session.core.event_rules import violations
from unit.session.core.fake_models import FakeModel
from unit.session.core.session_world import World, pick, sound, spoken

from duologue.model.outputs import ModelOutput, ToolCall
from duologue.protocol.duplex import Dialect, RealtimeProtocolError, SessionUpdate, command_from_realtime
from duologue.session.core import StageFailed, StagesLost, TellFault

_DIALECTS = tuple(Dialect)
MAX_LINES = 40


def check(data: bytes) -> bool:
    world = _world(data)
    return world is not None and len(world.events) > 1


def _world(data: bytes) -> World | None:
    """The first byte chooses the dialect and the model, the first line opens the session."""
    head, *lines = data[1:].split(b"\n")[: MAX_LINES + 1]
    chosen = data[0] if data else 0
    try:
        opening = command_from_realtime(text_of(head))
    except RealtimeProtocolError:
        return None
    session = opening.session if isinstance(opening, SessionUpdate) else {}
    model = FakeModel(answers="plan" if chosen & 8 else "units", max_in_flight=2)
    try:
        world = World(model, dialect=_DIALECTS[chosen % 3], auto=bool(chosen & 4), **session)
    except RealtimeProtocolError:
        return None
    for line in lines:
        if world.machine.closed:
            break
        _happens(world, line)
    faults = [effect for effect in world.effects if isinstance(effect, TellFault)]
    assert not faults, f"the machine failed at {faults[0].where}"
    for event in pick(world.events, "error"):
        assert event["error"]["code"] != "internal_error", event
    assert list(violations(world.events)) == []
    world.restart()
    return world


def _happens(world: World, line: bytes) -> None:
    unit = world.waiting[0] if world.waiting else None
    match line:
        case b"!answer" if unit is not None:
            world.answer(spoken("word ", end_of_turn=False))
        case b"!turn" if unit is not None:
            world.answer(spoken("end.", end_of_turn=True))
        case b"!tool" if unit is not None:
            world.answer(ModelOutput(tool_calls=(ToolCall("f", "{}", "c1"),), end_of_turn=True))
        case b"!fail" if unit is not None:
            world.fact(StageFailed(unit.fence, 0, unit.unit, "engine_error", "broke"))
        case b"!lose":
            world.fact(StagesLost(world.fences[-1], "worker_lost", "gone"))
        case b"!pass":
            world.advance(0.5)
        case _ if not line.startswith(b"!"):
            try:
                world.send(command_from_realtime(text_of(line)))
            except RealtimeProtocolError:
                return


# -- the corpus -------------------------------------------------------------------------------------------

_LOUD = base64.b64encode(sound(80)).decode()
_QUIET = base64.b64encode(sound(80, loud=False)).decode()
_SAY = b'{"type":"input_audio_buffer.append","audio":"%b"}' % _LOUD.encode()
_HUSH = b'{"type":"input_audio_buffer.append","audio":"%b"}' % _QUIET.encode()
_TEXT = b'[{"type":"input_text","text":"hi"}]'
_ASK = b'{"type":"conversation.item.create","item":{"type":"message","role":"user","content":%b}}' % _TEXT
_SCENES = (
    (
        _SAY,
        _SAY,
        b'{"type":"input_audio_buffer.commit"}',
        b'{"type":"response.create"}',
        b"!answer",
        b"!turn",
        b"!pass",
    ),
    (_SAY, _SAY, b'{"type":"input.commit"}', b"!answer", b'{"type":"barge_in"}', _SAY, b"!turn"),
    (_SAY, b'{"type":"input.commit"}', b"!answer", b'{"type":"playback.ack","played_ms":40,"truncate":true}', b"!turn"),
    (_ASK, b'{"type":"response.create"}', b"!answer", b"!tool", b"!pass"),
    (_SAY, _SAY, _HUSH, _HUSH, _HUSH, b"!pass", b"!answer", _SAY, b"!pass", b"!turn"),
    (_SAY, b'{"type":"input.commit"}', b"!answer", b"!fail", b'{"type":"response.create"}', b"!lose", b"!pass", _SAY),
    (
        _SAY,
        b'{"type":"input.commit"}',
        b"!answer",
        b'{"type":"response.cancel"}',
        b"!turn",
        b'{"type":"session.close"}',
    ),
)
_OPENINGS = (
    b'{"type":"session.update","session":{}}',
    b'{"type":"session.update","session":{"turn_detection":null}}',
    b'{"type":"session.update","session":{"turn_detection":{"type":"server_vad"},"overlap_policy":"barge_in_on_speech"}}',
    b'{"type":"session.update","session":{"audio":{"input":{"turn_detection":{"type":"semantic_vad"}}}}}',
)


def seeds() -> Iterator[bytes]:
    number = 0
    for opening in _OPENINGS:
        for scene in _SCENES:
            number += 1
            yield bytes((number % 16,)) + b"\n".join((opening, *scene))
    written = [write_json(Pairs(one.items()) if isinstance(one, dict) else one) for one in frames()]
    for at, frame in enumerate(written):
        yield bytes((at % 16,)) + b"\n".join((_OPENINGS[1], _SAY, frame, b'{"type":"input.commit"}', b"!answer", frame))
    for at, value in enumerate(hostile.JSON):
        odd = b'{"type":"session.update","session":{"metadata":{"x":%b}}}' % write_json(value)
        yield bytes((at % 16,)) + b"\n".join((_OPENINGS[1], odd, b'{"type":"input.commit"}'))


def conversed() -> Iterator[World]:
    """Some of the sessions as they are at the end, for whoever needs a session in some state."""
    for seed in list(seeds())[: len(_OPENINGS) * len(_SCENES)]:
        world = _world(seed)
        if world is not None:
            yield world


TARGET = Target(
    "conversations",
    check,
    seeds,
    mutators.of_lines(seeds),
    tuple(
        f"duologue.session.core.{name}"
        for name in (
            "intake input_queue carry_out conversions facts turns responses items playback cancel config overlap "
            "appends history tools silence deadlines machine"
        ).split()
    ),
    base_bytes=96 << 20,
    bytes_per_byte=2048,
    base_lines=4_000_000,  # ticks of a session in which time passes
    lines_per_byte=400,
)
