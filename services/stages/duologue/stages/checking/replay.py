"""Makes noted calls of a plugin again, in a process of its own: `python -m duologue.stages.checking.replay FILE`.

What reads a clock, draws random numbers, opens a file or a socket or starts a thread is armed while the plugin
works: it raises `Impure`. The result is one JSON object on the last line (`Replayed`).
"""

from __future__ import annotations

import datetime
import hashlib
import pickle
import random
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from duologue.stages.checking import notes
from duologue.stages.checking.notes import Call

MAX_STATE_BYTES = 64 * 1024
_CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "sleep")
_DICE = ("random", "randint", "randrange", "choice", "choices", "shuffle", "sample", "uniform", "gauss", "getrandbits")
_SECRETS = ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "choice")
_AUDITED = ("open", "socket.", "subprocess.Popen", "os.system", "os.listdir", "os.scandir", "_thread.start_new_thread")


class Impure(BaseException):
    """Not an Exception: a plugin that catches all of those must not hide it."""


class Replayed(msgspec.Struct, frozen=True):
    """What came of the calls."""

    digests: tuple[str, ...] = ()
    """Of the state and the result, after each call."""
    impure: str = ""
    most_bytes: int = 0
    """The largest state."""
    unequal: str = ""
    """Where a state was another one after it was written and read."""
    stays: bool = True
    """With states that are written and read after each call, all digests are the same."""
    usage_often: dict[str, int] = {}
    usage_once: dict[str, int] = {}


_armed = False


@contextmanager
def _watched() -> Iterator[None]:
    global _armed
    _armed = True
    try:
        yield
    finally:
        _armed = False


def _guard(module: Any, name: str) -> None:
    real = getattr(module, name)

    def guarded(*arguments: Any, **named: Any) -> Any:
        if _armed:
            raise Impure(f"{module.__name__}.{name}")
        return real(*arguments, **named)

    setattr(module, name, guarded)


class _Datetime(datetime.datetime):
    """`datetime.now()` cannot be replaced in the class itself."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        if _armed:
            raise Impure("datetime.now")
        return super().now(tz)

    @classmethod
    def utcnow(cls) -> Any:
        raise Impure("datetime.utcnow")


def guard() -> None:
    """Before the plugin is imported: it may import names from these modules."""
    for module, names in ((time, _CLOCKS), (random, _DICE), (secrets, _SECRETS), (uuid, ("uuid1", "uuid4"))):
        for name in names:
            _guard(module, name)
    _guard(threading.Thread, "start")
    datetime.datetime = _Datetime  # type: ignore[misc]
    sys.addaudithook(_audit)


def _audit(event: str, arguments: Any) -> None:
    if _armed and event.startswith(_AUDITED):
        raise Impure(f"{event}{arguments!r}"[:200])


class _Run:
    """The calls on a plugin of its own."""

    def __init__(self, make: Callable[[], Any], calls: Sequence[Call], *, round_trips: bool = False) -> None:
        self.digests: list[str] = []
        self.unequal = ""
        self.most = 0
        self._plugin = make()
        self._round_trips = round_trips
        self._states: dict[int, Any] = {}
        for number, call in enumerate(calls):
            self._do(number, call)

    def _do(self, number: int, call: Call) -> None:
        arguments = pickle.loads(call.arguments)
        with _watched():
            result = self._carry_out(call, arguments)
        encoded = msgspec.msgpack.encode(self._states[call.session])
        self.most = max(self.most, len(encoded))
        told = b"" if call.method == notes.NEW_STATE else msgspec.msgpack.encode(result)
        self.digests.append(hashlib.blake2b(encoded + told, digest_size=6).hexdigest())
        if self._round_trips:
            again = msgspec.msgpack.decode(encoded, type=self._plugin.state_type)
            if again != self._states[call.session] and not self.unequal:
                self.unequal = f"after call {number}, {call.method}"
            self._states[call.session] = again

    def _carry_out(self, call: Call, arguments: tuple[Any, ...]) -> Any:
        if call.method == notes.NEW_STATE:
            self._states[call.session] = self._plugin.new_state(*arguments)
            return None
        state = self._states[call.session]
        if call.method == notes.STAGE_CONFIGS:
            return self._plugin.stage_configs(*arguments, state)
        return getattr(self._plugin, call.method)(state, *arguments)


def usage_of(make: Callable[[], Any], calls: Sequence[Call], *, often: bool) -> dict[str, int]:
    """What was used in all, asked after each call or once at the end. What outputs tell is in both."""
    plugin, states, total = make(), {}, dict[str, int]()

    def add(usage: Any) -> None:
        for name, count in msgspec.to_builtins(usage).items() if usage is not None else ():
            total[name] = total.get(name, 0) + count

    for call in calls:
        arguments = pickle.loads(call.arguments)
        if call.method == notes.NEW_STATE:
            states[call.session] = plugin.new_state(*arguments)
            continue
        if call.method in (notes.STAGE_CONFIGS, "take_usage"):
            continue
        result = getattr(plugin, call.method)(states[call.session], *arguments)
        for output in result if call.method == "project" else ():
            add(output.usage)
        if often:
            add(plugin.take_usage(states[call.session]))
    for state in states.values():
        add(plugin.take_usage(state))
    return total


def main(path: str) -> int:
    guard()
    pipeline, calls = notes.read(Path(path))
    from duologue.model.pipeline import resolve

    kind = resolve(pipeline.plugin)

    def make() -> Any:
        return kind(pipeline)

    try:
        plain = _Run(make, calls)
        again = _Run(make, calls, round_trips=True)
    except Impure as impure:
        told = Replayed(impure=str(impure))
    else:
        told = Replayed(
            digests=tuple(plain.digests),
            most_bytes=plain.most,
            unequal=again.unequal,
            stays=plain.digests == again.digests,
            usage_often=usage_of(make, calls, often=True),
            usage_once=usage_of(make, calls, often=False),
        )
    sys.stdout.write("\n" + msgspec.json.encode(told).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
