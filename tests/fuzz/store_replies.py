"""What the store answers: the numbers of a journal, its entries, a session's record, a secret, a roster.

The store holds what we wrote, and what somebody else did, or half of it. An input is a msgpack list: which call, and
the reply it gets, of the kinds that a reply has: list, bytes, integer, null.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import msgspec
from fuzz import hostile, mutators
from fuzz.target import Target
from fuzz.trees import write_msgpack

from duologue.fence import DeliveryId, Owner
from duologue.store.journals import ScriptedJournal
from duologue.store.ports import Registration, StoreUnavailable
from duologue.store.registrations import ScriptedRegistry
from duologue.store.scripts import Arg, Reply, Script, ScriptRunner
from duologue.store.secrets import ScriptedSecrets
from duologue.store.sessions import ScriptedSessions


class _Replying(ScriptRunner):
    def __init__(self, reply: Any) -> None:
        self._reply = reply

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Reply:
        reply: Reply = self._reply
        return reply


_OWNER = Owner(1, "me")
Call = Callable[[ScriptRunner], Coroutine[Any, Any, Any]]
CALLS: tuple[Call, ...] = (
    lambda runner: ScriptedJournal(runner).claim("s", owner=_OWNER),
    lambda runner: ScriptedJournal(runner).append("s", _OWNER, 1, 1, [(DeliveryId(1, 1), b"{}")]),
    lambda runner: ScriptedJournal(runner).head("s"),
    lambda runner: ScriptedJournal(runner).read("s", 6),
    lambda runner: ScriptedJournal(runner).trim("s", 3),
    lambda runner: ScriptedJournal(runner).touch("s", _OWNER),
    lambda runner: ScriptedSessions(runner).own("s", incarnation="me"),
    lambda runner: ScriptedSessions(runner).checkpoint("s", _OWNER, 1, b"x"),
    lambda runner: ScriptedSessions(runner).read_checkpoint("s"),
    lambda runner: ScriptedSessions(runner).look_up("s"),
    lambda runner: ScriptedSessions(runner).examine(
        "s", token_digest=b"d", principal="p", dialect="duplex", live_gateways=()
    ),
    lambda runner: ScriptedSecrets(runner).look_up(b"d"),
    lambda runner: ScriptedSecrets(runner).use(b"d", resumable_s=1.0),
    lambda runner: ScriptedRegistry(runner).members(),
)


def check(data: bytes) -> bool:
    """Whatever stands there, the answer is of the call's own kind or `StoreUnavailable`."""
    try:
        number, reply = msgspec.msgpack.decode(data, type=tuple[int, Any])
        reply = _as_replied(reply)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    call = CALLS[number % len(CALLS)](_Replying(reply))
    try:
        call.send(None)
    except StopIteration:
        return True
    except StoreUnavailable:
        return False
    finally:
        call.close()
    raise AssertionError("a call waits for more than its reply")


def _as_replied(value: Any) -> Any:
    """The kinds of a reply of the store and no others."""
    if isinstance(value, list):
        return [_as_replied(one) for one in value]
    if isinstance(value, str):
        return value.encode()
    if value is None or isinstance(value, bytes) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    return None


def seeds() -> Iterator[bytes]:
    head = [b"ok", 3, b"me", 2, 9, 1, 9, 1, 0]
    entry = [b"h", b"7 1 7 0 0", b"b", b'{"type":"x"}']
    record = [b"ok", 3, b"me", 1, b"digest", b"key:1", b"duplex", b"gateway", b""]
    own = msgspec.msgpack.encode(Registration("shard", "a", "me"))
    replies: list[Any] = [
        *(head, [b"owner", *head[1:]], [b"ok", 2, 1, 9, 0], [head, [[b"7-0", entry], [b"8-0", entry]]], [head, []]),
        *(
            record,
            [b"gone"],
            [b"owner", 3, b"me", 1],
            [1, 2, b"blob"],
            [None, None, None],
            [b"invalid_resume_token", b"t"],
        ),
        *([b"ok", 1, b"key:1", b"{}", 1000, 99_000], [0, [b"x\n" + own, b"x\n\xff", b""]], [], None, 0),
    ]
    for number in range(len(CALLS)):
        for reply in replies:
            yield write_msgpack([number, reply])
        for value in hostile.MSGPACK:
            yield write_msgpack([number, value])
            yield write_msgpack([number, [b"ok", value]])


TARGET = Target(
    "store-replies",
    check,
    seeds,
    mutators.of_msgpack(seeds),
    (
        "duologue.store.journals",
        "duologue.store.sessions",
        "duologue.store.secrets",
        "duologue.store.registrations",
    ),
)
