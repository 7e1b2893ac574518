"""The times at which a process does what it does from time to time.

A process that is woken for one small thing pays several times what the thing costs. What is due on one grid is done in
one wake-up, and periods of which one divides the other meet.
"""

from __future__ import annotations

import asyncio
from math import floor


def next_on_grid(now: float, period_s: float) -> float:
    """A multiple of `period_s`, both of the loop's clock: the next one, unless that is less than half a period away. A
    timer may ring a little early, and who was late does not come twice. A period of 0 is over at once."""
    return floor(now / period_s + 1.5) * period_s if period_s > 0 else now


async def until_next(period_s: float) -> None:
    """Sleep until then."""
    now = asyncio.get_running_loop().time()
    await asyncio.sleep(next_on_grid(now, period_s) - now)
