"""`Holdings` on any server that runs the scripts of `lua/holding`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from duologue.store.ports import Holdings
from duologue.store.scripts import SCRIPTS, Arg, Reply, ScriptRunner, holding_keys


class ScriptedHoldings(Holdings):
    """`ttl_s`: as that of the sessions' own keys."""

    def __init__(self, runner: ScriptRunner, *, ttl_s: float = 600.0) -> None:
        self._runner = runner
        self._ttl_ms = int(ttl_s * 1000)

    async def note(self, incarnation: str, *, taken: Collection[str] = (), left: Collection[str] = ()) -> None:
        args: tuple[Arg, ...] = (self._ttl_ms, incarnation, len(taken), *taken, *left)
        await self._runner.run(SCRIPTS["holding/note"], holding_keys(incarnation), args)

    async def holders(self) -> Collection[str]:
        return _strings(await self._runner.run(SCRIPTS["holding/holders"], holding_keys(), (self._ttl_ms,)))

    async def held_by(self, incarnation: str, limit: int = 256) -> Sequence[str]:
        return _strings(await self._runner.run(SCRIPTS["holding/held_by"], holding_keys(incarnation), (limit,)))


def _strings(reply: Reply) -> list[str]:
    return [one.decode() for one in reply if isinstance(one, bytes)]
