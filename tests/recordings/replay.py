"""A recorded session, given to a machine again: `python -m recordings.replay FILE...` prints a digest of every step.

Rule 1. A recording says how the machine was opened and every fact that it was given, with its time: nothing else goes
        into a session, so the same effects come out, whatever process it is.
Rule 2. The digest of a step is of its effects in order and of all steps before: two histories that part are told by the
        first step in which they differ. That of a checkpoint is of its number and what it covers; its body is digested
        apart, since every field that a session's state is given changes it.
Rule 3. Sound that was resampled is digested by its size: matrix products round as the processor's kernels do, and a
        history is kept on one machine and compared on another.
"""

from __future__ import annotations

import gzip
import re
import sys
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from duologue.model.catalog import find_pipeline
from duologue.protocol.duplex import Dialect
from duologue.session.core import Checkpoint, Deliver, DuplexSessionMachine, SessionEffect, SessionLimits, Submit
from duologue.session.pipelines import load_served
from duologue.session.recorder import RecordedFact

SESSIONS = Path(__file__).parent / "sessions"
_encode = msgspec.msgpack.Encoder().encode
_AUDIO = b'{"type":"response.output_audio.delta"'
_SOUND = re.compile(rb'(?<="delta":")[^"]*')


class Opening(msgspec.Struct, frozen=True):
    """The first line."""

    session_id: str
    seed: str
    owner: int
    dialect: str
    model: str
    request: dict[str, Any]
    opened_unix_s: float
    limits: SessionLimits
    update_event_id: str | None = None
    announced: bool = False


class Step(msgspec.Struct, frozen=True):
    """What one fact did. The first one is the opening itself."""

    fact: str
    effects: tuple[str, ...]
    digest: str
    whole: str
    """The same with the bodies of checkpoints."""


def recorded(file: Path) -> tuple[Opening, list[RecordedFact]]:
    """Raises msgspec.ValidationError: it was recorded by another version and must be recorded again."""
    lines = gzip.decompress(file.read_bytes()).splitlines()
    opening = msgspec.json.decode(lines[0], type=Opening)
    return opening, [msgspec.json.decode(line, type=RecordedFact) for line in lines[1:]]


def steps(file: Path) -> Iterator[Step]:
    """Play it again, step by step."""
    opening, facts = recorded(file)
    [served] = load_served([find_pipeline(opening.model)])
    resampled = opening.request["audio"]["input"]["sample_rate_hz"] != served.plugin.traits.input_rate_hz
    machine, effects = DuplexSessionMachine.open(
        session_id=opening.session_id,
        seed=bytes.fromhex(opening.seed),
        owner=opening.owner,
        dialect=Dialect(opening.dialect),
        model=opening.model,
        plugin=served.plugin,
        limits=opening.limits,
        request=opening.request,
        update_event_id=opening.update_event_id,
        announced=opening.announced,
        opened_unix_s=opening.opened_unix_s,
        max_sessions=served.spec.max_sessions,
    )
    digest, whole = blake2b(digest_size=8), blake2b(digest_size=8)
    yield _step("Open", effects, digest, whole, resampled)
    for one in facts:
        yield _step(type(one.fact).__name__, machine.handle(one.fact, one.now), digest, whole, resampled)


def _step(fact: str, effects: Sequence[SessionEffect], digest: blake2b, whole: blake2b, resampled: bool) -> Step:
    for effect in effects:
        digest.update(_encode(_bare(effect, resampled)))
        whole.update(_encode(effect))
    names = tuple(type(effect).__name__ for effect in effects)
    return Step(fact, names, digest.hexdigest(), whole.hexdigest())


def _bare(effect: SessionEffect, resampled: bool) -> SessionEffect:
    """What of an effect is the same on every machine, and in every version that does the same."""
    if isinstance(effect, Checkpoint):
        return msgspec.structs.replace(effect, body=b"")
    if isinstance(effect, Submit) and resampled:
        return msgspec.structs.replace(effect, frames=tuple(bytes(len(frame)) for frame in effect.frames))
    if isinstance(effect, Deliver) and resampled and effect.body.startswith(_AUDIO):
        return msgspec.structs.replace(effect, body=_SOUND.sub(lambda sound: b"A" * len(sound[0]), effect.body))
    return effect


def history(file: Path) -> str:
    """One line a step that had effects: its number, its fact, its effects, the digest up to there."""
    told = [
        f"{number} {step.fact} {','.join(step.effects)} {step.digest}"
        for number, step in enumerate(steps(file))
        if step.effects
    ]
    return "\n".join(told) + "\n"


def history_of(file: Path) -> Path:
    """Where the history of a recording is kept."""
    return file.with_name(file.name.removesuffix(".jsonl.gz") + ".history")


def main(files: list[str]) -> None:
    for file in files:
        for number, step in enumerate(steps(Path(file))):
            print(number, step.fact, step.digest, step.whole)


if __name__ == "__main__":
    main(sys.argv[1:])
