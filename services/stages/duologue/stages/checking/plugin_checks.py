"""The session half: pure, deterministic, small, and honest about what it does not know.

Each check returns what it found, for the report, or raises CheckFailed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from duologue.model.pipeline import PipelineError, resolve
from duologue.stages.checking import notes
from duologue.stages.checking.replay import MAX_STATE_BYTES, Replayed
from duologue.stages.checking.subject import CheckFailed, Subject

_NO_SUCH = "no_such_option"
_REPLAY_S = 120.0
#: What a plugin imports beside what every plugin needs.
_LOADED = """
import importlib, sys
import duologue.model.plugin, duologue.protocol.duplex
before = set(sys.modules)
importlib.import_module(sys.argv[1])
print(*sorted(set(sys.modules) - before))
"""
#: Part of every environment, and no library of an engine.
_PLAIN = {"duologue", "msgspec", "typing_extensions", "sitecustomize"}


def imports_nothing_heavy(subject: Subject) -> str:
    """What the engines have loaded here, the plugin's module does not load in a process of its own."""
    module = subject.pipeline.plugin.partition(":")[0]
    ran = subprocess.run([sys.executable, "-c", _LOADED, module], capture_output=True, text=True, timeout=_REPLAY_S)
    if ran.returncode:
        raise CheckFailed(f"{module} cannot be imported alone: {ran.stderr.strip().splitlines()[-1]}")
    loaded = set(ran.stdout.split())
    engines = {stage.engine.partition(":")[0] for stage in subject.pipeline.stages}
    both = sorted(engines & loaded)
    if both:
        raise CheckFailed(f"{module} imports the engine {both[0]}")
    own = {name.partition(".")[0] for name in (module, *engines)}
    here = {name.partition(".")[0] for name in sys.modules} - own - _PLAIN - sys.stdlib_module_names
    found = sorted({name.partition(".")[0] for name in loaded if not name.startswith("_")} & here)
    if found:
        raise CheckFailed(f"{module} imports {', '.join(found)}")
    return f"{len(loaded)} modules of its own"


def is_pure(subject: Subject) -> str:
    told = replayed(subject, 1)
    if told.impure:
        raise CheckFailed(f"it called {told.impure}")
    return f"{len(told.digests)} calls"


def is_deterministic(subject: Subject) -> str:
    """The same calls, three times: in two processes with other hash seeds, all states and plans bytewise equal."""
    one, other = replayed(subject, 1), replayed(subject, 2)
    for number, (first, second) in enumerate(zip(one.digests, other.digests, strict=True)):
        if first != second:
            call = subject.plugin.calls[number]
            raise CheckFailed(f"call {number}, {call.method}, came out another way under another hash seed")
    return f"{len(one.digests)} calls, two hash seeds"


def state_survives(subject: Subject) -> str:
    """Written and read after every call it is equal, goes on the same, and is small."""
    told = replayed(subject, 1)
    if told.unequal:
        raise CheckFailed(f"the state is another one after a checkpoint {told.unequal}")
    if not told.stays:
        raise CheckFailed("with states read from checkpoints the same calls came out another way")
    if told.most_bytes > MAX_STATE_BYTES:
        raise CheckFailed(f"the state has {told.most_bytes} bytes, and may have {MAX_STATE_BYTES}")
    return f"at most {told.most_bytes} bytes"


def usage_adds_up(subject: Subject) -> str:
    """Told bit by bit or all at once, the totals are the same."""
    told = replayed(subject, 1)
    if told.usage_often != told.usage_once:
        raise CheckFailed(f"asked after each call it is {told.usage_often}, asked once {told.usage_once}")
    below = {kind: count for kind, count in told.usage_once.items() if count < 0}
    if below:
        raise CheckFailed(f"less than nothing was used: {below}")
    used = ", ".join(f"{count} {kind}" for kind, count in told.usage_once.items() if count)
    return used or "it counts nothing"


def unknown_options_are_named(subject: Subject) -> str:
    """By the plugin, and by the builder of each engine, before anything is loaded."""
    wrong = msgspec.structs.replace(subject.pipeline, options={**subject.pipeline.options, _NO_SUCH: 1})
    _refuses("the plugin", lambda: resolve(wrong.plugin)(wrong))
    for index, stage in enumerate(wrong.stages):
        _refuses(f"stage {stage.name}", lambda index=index, stage=stage: resolve(stage.engine)(wrong, index))
    return ""


def _refuses(who: str, make: Any) -> None:
    try:
        made = make()
    except PipelineError as error:
        if _NO_SUCH not in str(error):
            raise CheckFailed(f"{who} refuses an unknown option without naming it: {error}") from None
        return
    shut_down = getattr(made, "shut_down", None)
    if shut_down is not None:
        shut_down()
    raise CheckFailed(f"{who} takes an option that it does not know")


def says_what_it_is(subject: Subject) -> str:
    """Traits and capabilities agree with each other and with the pipeline."""
    traits, plugin = subject.traits, subject.plugin.plugin
    capabilities = plugin.capabilities(subject.pipeline.max_sessions)
    if min(traits.unit_ms, traits.input_rate_hz, traits.output_rate_hz, traits.max_in_flight) <= 0:
        raise CheckFailed(f"a trait is not positive: {traits}")
    if traits.unit_ms * traits.input_rate_hz % 1000:
        raise CheckFailed(f"a unit of {traits.unit_ms} ms has no whole number of samples at {traits.input_rate_hz} Hz")
    if capabilities.chunk_period_ms not in (None, traits.unit_ms):
        raise CheckFailed(f"chunk_period_ms is {capabilities.chunk_period_ms}, a unit has {traits.unit_ms} ms")
    if traits.auto_only and not traits.native_turns:
        raise CheckFailed("auto_only without native_turns")
    return f"units of {traits.unit_ms} ms, {traits.input_rate_hz} Hz in, {traits.output_rate_hz} Hz out"


def replayed(subject: Subject, hash_seed: int) -> Replayed:
    """The calls of one conversation, made again under this hash seed."""
    kept = subject.replays.get(hash_seed)
    if kept is None:
        kept = subject.replays[hash_seed] = _replay(subject, hash_seed)
    return kept


def _replay(subject: Subject, hash_seed: int) -> Replayed:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calls"
        notes.write(path, subject.pipeline, subject.plugin.calls)
        ran = subprocess.run(
            [sys.executable, "-m", "duologue.stages.checking.replay", str(path)],
            capture_output=True,
            text=True,
            timeout=_REPLAY_S,
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        )
    if ran.returncode:
        raise CheckFailed(f"the calls cannot be made again: {ran.stderr.strip().splitlines()[-1]}")
    return msgspec.json.decode(ran.stdout.splitlines()[-1], type=Replayed)
