"""A session that an earlier release has saved is restored, whole, and goes on under a new owner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from contract.releases.test_bus import has_all
from releases.record import RECORDED

from duologue.fence import DeliveryId
from duologue.model.catalog import find_pipeline
from duologue.model.records import ShardRecord
from duologue.session.core import Checkpoint, DuplexSessionMachine, OpenStages
from duologue.session.core.commands import Adopted
from duologue.session.core.effects import TellFault
from duologue.session.core.engine_session import STATE_VERSION, DuplexEngineSession
from duologue.session.pipelines import ServedPipeline, load_served

pytestmark = pytest.mark.contract

SAVED = sorted(RECORDED.rglob("*.msgpack"))
NAMES = [f"{path.parent.name}/{path.name}" for path in SAVED]
RETIRED: tuple[str, ...] = ()
"""Fields that a state had once and that are not missed: `response.started_at`."""


def served(saved: Path) -> ServedPipeline:
    [pipeline] = load_served([find_pipeline(saved.name.split(".")[-2])])
    return pipeline


def plain(body: bytes) -> Any:
    """As it stands there, whatever it means; without what is retired."""
    tree = msgspec.msgpack.decode(body)
    for path in RETIRED:
        *way, last = path.split(".")
        at = tree
        for name in way:
            at = at.get(name) or {}
        at.pop(last, None)
    return tree


@pytest.mark.parametrize("saved", SAVED, ids=NAMES)
def test_everything_that_was_saved_is_read(saved: Path) -> None:
    body = saved.read_bytes()
    state = msgspec.msgpack.decode(body, type=DuplexEngineSession)
    here, said = plain(msgspec.msgpack.encode(state)), plain(body)
    missing = [key for key in said if key not in here or not has_all(said[key], here[key])]
    assert missing == [], {key: (said[key], here.get(key)) for key in missing}


@pytest.mark.parametrize("saved", SAVED, ids=NAMES)
def test_what_the_model_had_saved_is_read(saved: Path) -> None:
    state = msgspec.msgpack.decode(saved.read_bytes(), type=DuplexEngineSession)
    kind: Any = served(saved).plugin.state_type
    model = msgspec.msgpack.decode(state.plugin_state, type=kind)
    assert has_all(msgspec.msgpack.decode(state.plugin_state), msgspec.msgpack.decode(msgspec.msgpack.encode(model)))


@pytest.mark.parametrize("saved", SAVED, ids=NAMES)
def test_the_session_goes_on_under_a_new_owner(saved: Path) -> None:
    machine = DuplexSessionMachine.restore(saved.read_bytes(), plugin=served(saved).plugin, owner=9)
    effects = machine.handle(Adopted(9, DeliveryId(), 1, ()), machine.time)
    assert not [effect for effect in effects if isinstance(effect, TellFault)]
    kinds = {type(effect) for effect in effects}
    assert {Checkpoint, OpenStages} <= kinds, kinds
    [checkpoint] = [effect for effect in effects if isinstance(effect, Checkpoint)]
    assert plain(checkpoint.body)["version"] == STATE_VERSION


def test_what_a_newer_version_saved_is_not_guessed_at() -> None:
    saved = SAVED[0]
    newer = msgspec.msgpack.encode({**plain(saved.read_bytes()), "version": STATE_VERSION + 1})
    with pytest.raises(ValueError, match="a newer version"):
        DuplexSessionMachine.restore(newer, plugin=served(saved).plugin, owner=9)


@pytest.mark.parametrize("release", sorted(path.parent.name for path in RECORDED.glob("*/bus.json")))
def test_a_release_that_does_not_say_what_it_reads_is_known_to_read_what_it_saved(release: str) -> None:
    """A hand-over goes by the registrations; those of a release without these fields must be taken for what is true."""
    saved = {plain(path.read_bytes()).get("version", 1) for path in SAVED if path.parent.name == release}
    for sample in json.loads((RECORDED / release / "bus.json").read_text())["records"]["ShardRecord"].values():
        record = msgspec.msgpack.decode(bytes.fromhex(sample["hex"]), type=ShardRecord)
        if "reads_state" not in sample["value"]:
            assert {record.reads_state, record.writes_state} == saved
