"""The server commands that the scripts use, on plain Python data. SANS-I/O: the time is an argument.

Each behaves as Redis 7.0's, as far as the scripts use it; the contract suite compares them. Values are
bytes, as on the wire. A key that has expired is gone when it is next touched.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

_PART = 1 << 64
"""Of a stream's id."""


class CommandError(Exception):
    """What a server would answer with `-ERR`."""


class Stream:
    """Entries in order of their ids, each one number: `<ms>-<seq>` is ms * 2^64 + seq."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.fields: list[list[bytes]] = []
        self.last = 0


class MemoryCommands:
    """`call(now_us, name, *args)` executes one command."""

    def __init__(self) -> None:
        self._values: dict[bytes, Any] = {}
        self._expiry_ms: dict[bytes, int] = {}
        self._now_ms = 0
        self._commands: dict[bytes, Callable[..., Any]] = {
            b"HMGET": self._hmget,
            b"HGET": self._hget,
            b"HSET": self._hset,
            b"HDEL": self._hdel,
            b"DEL": self._del,
            b"PEXPIRE": self._pexpire,
            b"PTTL": self._pttl,
            b"XADD": self._xadd,
            b"XRANGE": self._xrange,
            b"XTRIM": self._xtrim,
            b"ZADD": self._zadd,
            b"ZREM": self._zrem,
            b"ZRANGEBYSCORE": self._zrangebyscore,
        }

    def call(self, now_us: int, name: bytes, *args: bytes) -> Any:
        self._now_ms = now_us // 1000
        if name == b"TIME":
            return [b"%d" % (now_us // 1_000_000), b"%d" % (now_us % 1_000_000)]
        command = self._commands.get(name)
        if command is None:
            raise CommandError(f"unknown command {name!r}")
        return command(*args)

    def keys(self, now_us: int) -> list[bytes]:
        """Every key that has not expired: for tests."""
        self._now_ms = now_us // 1000
        return sorted(key for key in list(self._values) if self._get(key) is not None)

    def time_to_live_ms(self, now_us: int, key: bytes) -> int | None:
        """None: the key never expires."""
        expiry = self._expiry_ms.get(key)
        return None if expiry is None else expiry - now_us // 1000

    def flush(self) -> None:
        """Forget everything, as a server that lost its disk."""
        self._values.clear()
        self._expiry_ms.clear()

    def _get(self, key: bytes) -> Any:
        expiry = self._expiry_ms.get(key)
        if expiry is not None and expiry <= self._now_ms:
            del self._expiry_ms[key]
            self._values.pop(key, None)
        return self._values.get(key)

    def _make(self, key: bytes, kind: type[Any]) -> Any:
        value = self._get(key)
        if value is None:
            value = self._values[key] = kind()
        elif not isinstance(value, kind):
            raise CommandError("WRONGTYPE")
        return value

    def _drop(self, key: bytes) -> None:
        self._values.pop(key, None)
        self._expiry_ms.pop(key, None)

    def _hmget(self, key: bytes, *names: bytes) -> list[bytes | None]:
        found = self._get(key) or {}
        return [found.get(name) for name in names]

    def _hget(self, key: bytes, name: bytes) -> bytes | None:
        return (self._get(key) or {}).get(name)

    def _hset(self, key: bytes, *pairs: bytes) -> int:
        if not pairs or len(pairs) % 2:
            raise CommandError("wrong number of arguments for 'hset' command")
        found = self._make(key, dict)
        before = len(found)
        found.update(zip(pairs[::2], pairs[1::2], strict=True))
        return len(found) - before

    def _hdel(self, key: bytes, *names: bytes) -> int:
        found = self._get(key) or {}
        gone = sum(found.pop(name, None) is not None for name in names)
        if gone and not found:
            self._drop(key)
        return gone

    def _del(self, *keys: bytes) -> int:
        gone = 0
        for key in keys:
            gone += self._get(key) is not None
            self._drop(key)
        return gone

    def _pexpire(self, key: bytes, milliseconds: bytes) -> int:
        if self._get(key) is None:
            return 0
        self._expiry_ms[key] = self._now_ms + int(milliseconds)
        return 1

    def _pttl(self, key: bytes) -> int:
        if self._get(key) is None:
            return -2
        expiry = self._expiry_ms.get(key)
        return -1 if expiry is None else expiry - self._now_ms

    def _xadd(self, key: bytes, id: bytes, *fields: bytes) -> bytes:
        stream = self._make(key, Stream)
        seq = _seq(id)
        if seq <= stream.last:
            raise CommandError("The ID specified in XADD is equal or smaller than the target stream top item")
        stream.ids.append(seq)
        stream.fields.append(list(fields))
        stream.last = seq
        return id

    def _xrange(self, key: bytes, first: bytes, last: bytes, *count: bytes) -> list[Any]:
        stream = self._get(key)
        if stream is None:
            return []
        low = 0 if first == b"-" else bisect_left(stream.ids, _seq(first))
        high = len(stream.ids) if last == b"+" else bisect_left(stream.ids, _seq(last) + 1)
        if count:
            high = min(high, low + int(count[1]))
        return [[b"%d-%d" % divmod(stream.ids[i], _PART), list(stream.fields[i])] for i in range(low, high)]

    def _xtrim(self, key: bytes, how: bytes, exactly: bytes, id: bytes) -> int:
        stream = self._get(key)
        if how != b"MINID" or exactly != b"=":
            raise CommandError("syntax error")
        if stream is None:
            return 0
        below = bisect_left(stream.ids, _seq(id))
        del stream.ids[:below], stream.fields[:below]
        return below

    def _zadd(self, key: bytes, score: bytes, member: bytes) -> int:
        scores = self._make(key, dict)
        new = member not in scores
        scores[member] = float(score)
        return int(new)

    def _zrem(self, key: bytes, member: bytes) -> int:
        scores = self._get(key) or {}
        gone = scores.pop(member, None) is not None
        if gone and not scores:
            self._drop(key)
        return int(gone)

    def _zrangebyscore(self, key: bytes, low: bytes, high: bytes, *limit: bytes) -> list[bytes]:
        scores = self._get(key) or {}
        above = low.startswith(b"(")
        floor, ceiling = float(low.lstrip(b"(")), float(high)
        chosen = [
            (score, member)
            for member, score in scores.items()
            if (score > floor if above else score >= floor) and score <= ceiling
        ]
        members = [member for _, member in sorted(chosen)]
        if limit:
            first = int(limit[1])
            members = members[first : first + int(limit[2])]
        return members


def _seq(id: bytes) -> int:
    ms, _, seq = id.partition(b"-")
    return int(ms) * _PART + int(seq or 0)
