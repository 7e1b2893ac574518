"""The ports on a real server: `journal_writer` for what every unit appends, `script_line` for the other scripts, and
redis-py for what has to wait for a replica, which would hold up the line.

Rule 1. No call outlives its time-out, the wait for a connection included.
Rule 2. Cancelling the caller never interrupts a connection between a command and its reply, so no later call can read
        an answer that is not its own. (With redis-py a call runs to its end in a task of its own for that.)
Rule 3. The scripts are idempotent, so a call is sent again once when its connection turns out dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import hiredis
import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from duologue.store.holdings import ScriptedHoldings
from duologue.store.journal_writer import JournalWriter
from duologue.store.journals import JournalLimits, ScriptedJournal
from duologue.store.memory_budget import MemoryBudget, MemoryShares, ServerMemory
from duologue.store.ports import StoreUnavailable
from duologue.store.registrations import ScriptedRegistry
from duologue.store.script_line import ScriptLine, pack
from duologue.store.scripts import Arg, Reply, Script, ScriptRunner
from duologue.store.secrets import ScriptedSecrets
from duologue.store.sessions import ScriptedSessions
from duologue.store.stats import REFUSALS, StoreStats

_MAX_CONNECTIONS = 16
_MAX_CALLS = 1024
_WAIT_MS = 100
_NO_INFO = ("NOPERM", "ERR unknown command")


class RedisRunner(ScriptRunner):
    """Scripts on the server at `url` (redis://[user:pw@]host:port/db, rediss://, unix://[user:pw@]/path).

    `replicas`: how many must have a durable script's write before it returns (or 100 ms pass).
    """

    def __init__(self, url: str, *, timeout_s: float = 2.0, replicas: int = 0, stats: StoreStats | None = None) -> None:
        self.url = url
        self.stats = stats or StoreStats()
        self._timeout_s = timeout_s
        self._replicas = replicas
        self._calls: set[asyncio.Task[Any]] = set()
        pool = aioredis.BlockingConnectionPool.from_url(
            url,
            max_connections=_MAX_CONNECTIONS,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 1),
            protocol=2,
            driver_info=None,  # telling it is a round trip more for each new connection
        )
        self._client = aioredis.Redis(connection_pool=pool)
        self._line = ScriptLine(url, timeout_s)

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Reply:
        if self._line.waiting + len(self._calls) >= _MAX_CALLS:
            self.stats.failed(script.name, "full")
            raise StoreUnavailable(f"{_MAX_CALLS} store calls are waiting already")
        if not (script.durable and self._replicas):
            return await self._evaluate(script, keys, args)
        call = asyncio.create_task(self._evaluate(script, keys, args))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return await asyncio.shield(call)

    async def _evaluate(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Reply:
        send = self._durably if script.durable and self._replicas else self._send
        asked_at = perf_counter()
        try:
            try:
                reply = await send("EVALSHA", script.sha, keys, args)
            except (RedisError, hiredis.ReplyError) as error:
                if not _says(error, NoScriptError, "NOSCRIPT"):
                    raise
                async with asyncio.timeout(self._timeout_s - (perf_counter() - asked_at)):
                    reply = await send("EVAL", script.source, keys, args)
            self.stats.answered(script.name, perf_counter() - asked_at)
            if reply and isinstance(number := reply[0], bytes) and number in REFUSALS:
                self.stats.refused(script.name, number.decode())
            return reply
        except (RedisError, hiredis.ReplyError, OSError) as error:
            self.stats.failed(script.name, _kind(error))
            if _says(error, ReadOnlyError, "READONLY"):
                await self._look_elsewhere()
            reason = str(error) or type(error).__name__
            raise StoreUnavailable(f"{script.name}: {reason}") from error

    async def _send(self, command: str, what: bytes, keys: Sequence[str], args: Sequence[Arg]) -> Reply:
        reply: Reply = await self._line.call(pack((command, what, len(keys), *keys, *args)))
        return reply

    async def _durably(self, command: str, what: bytes, keys: Sequence[str], args: Sequence[Arg]) -> Reply:
        async with asyncio.timeout(self._timeout_s), self._client.pipeline(transaction=False) as both:
            both.execute_command(command, what, len(keys), *keys, *args)
            both.execute_command("WAIT", self._replicas, _WAIT_MS)  # it counts its own connection's writes
            written: list[Any] = await both.execute()
        first: Reply = written[0]
        return first

    async def _look_elsewhere(self) -> None:
        """The server behind our connections was made a replica: it writes no more, but it answers, so they would stay.
        The idle ones are closed, and the next call goes where the address leads by then."""
        self._line.drop()
        await self._client.connection_pool.disconnect(inuse_connections=False)

    async def ping(self) -> None:
        """One round trip. Raises `StoreUnavailable`."""
        try:
            await self._line.call(pack(("PING",)))
        except (hiredis.ReplyError, OSError) as error:
            raise StoreUnavailable(str(error) or type(error).__name__) from error

    async def memory(self) -> ServerMemory | None:
        """What the server holds; None: it does not tell us. Raises `StoreUnavailable`."""
        if self._line.waiting >= _MAX_CALLS:
            raise StoreUnavailable(f"{_MAX_CALLS} store calls are waiting already")
        try:
            reply: bytes = await self._line.call(pack(("INFO", "memory")))
        except hiredis.ReplyError as error:
            if str(error).startswith(_NO_INFO):
                return None
            raise StoreUnavailable(str(error)) from error
        except OSError as error:
            raise StoreUnavailable(str(error) or type(error).__name__) from error
        return _memory(reply)

    async def close(self) -> None:
        """Wait for the calls that are out (each is bounded), then close every connection."""
        if self._calls:
            await asyncio.wait(set(self._calls))
        await self._line.close()
        await self._client.aclose()
        await self._client.connection_pool.disconnect()


def _memory(info: bytes) -> ServerMemory | None:
    """Of the answer to INFO. What the server itself does not hold against its limit does not count."""
    told = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
    try:
        used = int(told["used_memory"]) - int(told.get("mem_not_counted_for_evict", 0))
        return ServerMemory(max(0, used), int(told.get("maxmemory", 0)))
    except (KeyError, ValueError):
        return None


def _says(error: Exception, kind: type[RedisError], word: str) -> bool:
    """Whether an answer of the server says this, by whichever way it came."""
    return isinstance(error, kind) or (isinstance(error, hiredis.ReplyError) and str(error).startswith(word))


def _kind(error: Exception) -> str:
    if isinstance(error, TimeoutError | RedisTimeoutError):
        return "timeout"
    return "connection" if isinstance(error, OSError | RedisConnectionError) else "server"


class RedisStore:
    """Every port of one process. `journal_url` may name another server than `url`. `stats`: of all of them."""

    def __init__(
        self,
        url: str,
        journal_url: str = "",
        *,
        limits: JournalLimits | None = None,
        session_ttl_s: float = 600.0,
        timeout_s: float = 2.0,
        replicas: int = 0,
        shares: MemoryShares | None = None,
    ) -> None:
        limits = limits or JournalLimits()
        self.memory = MemoryBudget(limits.max_bytes, shares)
        self.stats = stats = StoreStats(journal_limit=limits.max_bytes)
        self._runner = RedisRunner(url, timeout_s=timeout_s, replicas=replicas, stats=stats)
        self._journal_runner = (
            RedisRunner(journal_url, timeout_s=timeout_s, stats=stats)
            if journal_url and journal_url != url
            else self._runner
        )
        self.sessions = ScriptedSessions(self._runner, ttl_s=session_ttl_s)
        self.registry = ScriptedRegistry(self._runner)
        self.secrets = ScriptedSecrets(self._runner)
        self.holdings = ScriptedHoldings(self._runner, ttl_s=session_ttl_s)
        self.journal = ScriptedJournal(self._journal_runner, limits)
        self.appender = JournalWriter(journal_url or url, limits, timeout_s=timeout_s, stats=stats)

    async def look_at_memory(self, journals: int) -> None:
        """Ask both servers what they hold, and keep the journals to what follows; `journals`: how many there are.
        Raises `StoreUnavailable`, and then nothing has changed."""
        runners = {self._journal_runner, self._runner}
        told = {runner: await runner.memory() for runner in runners}
        known = {runner: memory for runner, memory in told.items() if memory is not None}
        budget, stats = self.memory, self.stats
        if known:
            others = [memory for runner, memory in known.items() if runner is not self._journal_runner]
            budget.heard(known.get(self._journal_runner, ServerMemory(0)), others, journals)
        else:
            budget.nothing_known()
        self.appender.limit(budget.journal_limit)
        stats.memory_used, stats.journal_limit = budget.used_ratio, budget.journal_limit

    async def open(self) -> None:
        """Reach both servers and start the journal connection. Raises `StoreUnavailable`."""
        await self._runner.ping()
        if self._journal_runner is not self._runner:
            await self._journal_runner.ping()
        await self.appender.open()

    async def close(self) -> None:
        await self.appender.close()
        await self._runner.close()
        if self._journal_runner is not self._runner:
            await self._journal_runner.close()
