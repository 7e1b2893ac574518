"""The conformance suite: the template passes it, and each way of breaking the contract fails the check named for it."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from pathlib import Path

import pytest

from duologue.cli.new_model import write_model
from duologue.model.pipeline import load_pipeline
from duologue.stages.checking.report import Report
from duologue.stages.checking.suite import check

pytestmark = pytest.mark.unit

Edit = tuple[str, str, str]
"""File, old text, new text; `NAME` in the new text is the model's package."""

_numbers = itertools.count()


def checked(folder: Path, monkeypatch: pytest.MonkeyPatch, *edits: Edit, only: Collection[str] | None = None) -> Report:
    """The suite on the template with these edits. It has a name of its own, as imported modules stay."""
    name = f"broken_{next(_numbers)}"
    write_model(name, folder)
    for file, old, new in edits:
        path = folder / name / (f"{name}.toml" if file == TOML else file)
        text = path.read_text()
        assert old in text, f"{file} has no {old!r}"
        path.write_text(text.replace(old, new.replace("NAME", name), 1))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return check(load_pipeline(folder / name / f"{name}.toml"), folder / name, only=only)


def failed(report: Report) -> dict[str, str]:
    return {result.name: result.detail for result in report.results if result.verdict == "failed"}


TOML, ENGINE, PLUGIN, WIRE = "toml", "engine.py", "plugin.py", "wire.py"
STEP = "return [self._step(self._ears[unit.slot], unit) for unit in batch]"
HEARD = "state.heard += 1"
FIELD = "heard: int = 0"
POP = "self._ears.pop(slot, None)"
CANCEL = "    def cancel("
GIVES = "return msgspec.msgpack.encode(Held("
FORGETS = "ear, self._ears[slot] = self._ears[slot], Ear(self._options, ear.config)\n        "
UNREADABLE = 'except msgspec.DecodeError as error:\n            raise StageRefused("state_unreadable"'
LATE = """self.later = [self._step(self._ears[unit.slot], unit) for unit in batch]
        self.wake()
        return []

    def read(self):
        later, self.later = self.later, []
        return later
"""


def test_the_template_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = checked(tmp_path, monkeypatch)
    assert failed(report) == {} and report.exit_code == 0
    verdicts = {result.name: result.verdict for result in report.results}
    assert verdicts["rebuilt after a loss"] == "declared" and verdicts["a full context"] == "passed"
    details = {result.name: result.detail for result in report.results}
    assert "1040 ms of sound" in details["answers"]
    assert details["batch equals solo"] == "3 sessions, up to 3 in a step"


def test_a_context_that_is_lost_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit = (TOML, "max_sessions = 16", 'max_sessions = 16\nrebuild = "input"')
    report = checked(tmp_path, monkeypatch, edit, only=["rebuilt after a loss"])
    assert failed(report) == {}
    assert report.results[-1].verdict == "passed" and report.results[-1].detail == "40 replays (input)"


def test_an_engine_may_answer_between_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only = ["batch equals solo", "cancel at each step", "close is idempotent", "fences and lasts"]
    report = checked(tmp_path, monkeypatch, (ENGINE, STEP, LATE), only=only)
    assert failed(report) == {} and len(report.results) == 6


def test_what_cannot_be_promised_is_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = (ENGINE, "listen=True)", "listen=True, reason=str(id(unit_of(head))))")
    edits = (dice, (ENGINE, "LOUD = 0.02", "LOUD = 0.02\n\n\ndef unit_of(head):\n    return object()\n"))
    declared = (TOML, "units = 40", 'units = 40\ndeterministic = false\nwhy = "it draws lots"')
    report = checked(tmp_path, monkeypatch, *edits, declared, only=["repeats itself", "batch equals solo"])
    assert [result.verdict for result in report.results[2:]] == ["declared", "declared"]
    assert all("it draws lots" in result.detail for result in report.results[2:])


BROKEN: list[tuple[str, str, tuple[Edit, ...]]] = [
    ("says what it is", "chunk_period_ms", ((PLUGIN, "chunk_period_ms=UNIT_MS", "chunk_period_ms=81"),)),
    ("answers", "configurations", ((PLUGIN, 'SlotConfig(text=config.instructions or "")),)', "1), b'')"),)),
    ("imports no engine", "imports the engine", ((PLUGIN, "import msgspec", "import msgspec\nimport NAME.engine"),)),
    (
        "imports no engine",
        "imports psutil",
        (
            (PLUGIN, "import msgspec", "import msgspec\nimport psutil"),
            (ENGINE, "import msgspec", "import psutil, msgspec"),
        ),
    ),
    ("pure", "time.monotonic", ((PLUGIN, HEARD, "import time; time.monotonic(); state.heard += 1"),)),
    ("pure", "datetime.now", ((PLUGIN, HEARD, "import datetime as d; d.datetime.now(); state.heard += 1"),)),
    ("pure", "random.random", ((PLUGIN, HEARD, "import random; random.random(); state.heard += 1"),)),
    ("pure", "open", ((PLUGIN, HEARD, "open('/dev/null').close(); state.heard += 1"),)),
    ("pure", "Thread.start", ((PLUGIN, HEARD, "import threading as t; t.Thread().start(); state.heard += 1"),)),
    ("deterministic state and plans", "hash seed", ((PLUGIN, HEARD, "state.heard += 1 + hash('a') % 1000"),)),
    (
        "state survives checkpoints",
        "and may have 65536",
        ((PLUGIN, FIELD, "heard: int = 0\n    more: object = None"), (PLUGIN, HEARD, "state.more = 'x' * 65536")),
    ),
    (
        "state survives checkpoints",
        "another one",
        ((PLUGIN, FIELD, "heard: int = 0\n    more: object = None"), (PLUGIN, HEARD, "state.more = (1, 2)")),
    ),
    ("usage adds up", "asked once", ((PLUGIN, "heard, state.heard = state.heard, 0", "heard = state.heard"),)),
    (
        "unknown options are named",
        "the plugin takes",
        ((WIRE, "frozen=True, forbid_unknown_fields=True", "frozen=True"),),
    ),
    ("repeats itself", "unit 0", ((ENGINE, "listen=True)", "listen=True, reason=str(id(ear)))"),)),
    ("batch equals solo", "beside others", ((ENGINE, STEP, STEP.replace("ears[unit", "ears[batch[0]")),)),
    (
        "cancel at each step",
        "KeyError",
        ((ENGINE, "self._ears[slot].to_say.clear()", "self._ears[Slot(99, 99)].to_say.clear()"),),
    ),
    (
        "cancel at each step",
        "the slot does not go on",
        ((ENGINE, "self._ears[slot].to_say.clear()", "del self._ears[slot]"),),
    ),
    (
        "goes on after a failed unit",
        "KeyError",
        (
            (ENGINE, "if not unit.frames or", "self._lose(unit)\n        if not unit.frames or"),
            (
                ENGINE,
                CANCEL,
                "    def _lose(self, unit):\n        if not unit.frames:\n            del self._ears[unit.slot]\n\n"
                + CANCEL,
            ),
        ),
    ),
    (
        "a full context",
        "engine_error",
        (
            (TOML, "units = 40", "units = 10"),
            (ENGINE, "output, pcm = self", "assert unit.unit < 15\n        output, pcm = self"),
        ),
    ),
    (
        "goes on elsewhere",
        "in a fresh slot it goes on another way",
        ((ENGINE, "ear.to_say.extend(held.to_say)", "ear.to_say.extend(held.to_say[1:])"),),
    ),
    ("goes on elsewhere", "in the slot that was asked for its state", ((ENGINE, GIVES, FORGETS + GIVES),)),
    ("goes on elsewhere", "and never gave it", ((ENGINE, "ear = self._ears[slot]\n", "return None\n"),)),
    ("goes on elsewhere", "import_state raised", ((ENGINE, UNREADABLE, UNREADABLE.replace("msgspec.Decode", "Key")),)),
    ("close is idempotent", "KeyError", ((ENGINE, POP, "self._ears.pop(slot)"),)),
    ("refuses when full", "opens one more", ((ENGINE, "if len(self._ears) >= self._total:", "if False:"),)),
    ("refuses a bad configuration", "DecodeError", ((ENGINE, "except msgspec.DecodeError", "except KeyError"),)),
    (
        "reads only when woken",
        "read gave",
        ((ENGINE, CANCEL, "    def read(self):\n        return [1]\n\n    def cancel("),),
    ),
    ("all slots back", "all sessions are closed", ((ENGINE, "kept = sum(", "kept = 1 + sum("),)),
    (
        "fences and lasts",
        "was never answered",
        (
            (ENGINE, STEP, STEP.replace("in batch", "in batch if unit.unit % 7")),
            (TOML, "units = 40", "units = 40\npatience_s = 0.1"),
        ),
    ),
    ("fences and lasts", "once more", ((ENGINE, STEP, STEP.replace("batch]", "batch for _ in 'ab']")),)),
    ("fences and lasts", "and left as 2", ((ENGINE, "unit.turn_id, encode", "unit.turn_id + 1, encode"),)),
    (
        "fences and lasts",
        "there is none",
        ((ENGINE, "SESSION, unit.unit, unit.turn_id, encode", "5, unit.unit, unit.turn_id, encode"),),
    ),
    (
        "fences and lasts",
        "which is closed",
        (
            (ENGINE, POP, "self._ears.pop(slot, None); self.gone = [slot]"),
            (ENGINE, STEP, STEP + " + [Emission(slot, SESSION, 0, 1) for slot in vars(self).get('gone', ())]"),
        ),
    ),
]


@pytest.mark.parametrize(("name", "told", "edits"), BROKEN, ids=[f"{name}: {told}" for name, told, _ in BROKEN])
def test_a_broken_model_fails_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, told: str, edits: tuple[Edit, ...]
) -> None:
    only = [name] if name != "fences and lasts" else ["close is idempotent", name]
    report = checked(tmp_path, monkeypatch, *edits, only=only)
    assert report.exit_code == 1
    assert told in failed(report).get(name, f"nothing failed there, but {failed(report)}")
