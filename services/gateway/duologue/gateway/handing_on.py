"""What a client was sent while the store was away goes to the session's shard when the client leaves.

The socket's egress ends with it, and whoever claims the journal next numbers on: only the shard, which knows of every
claim, can add those events in time. It has room for them as for any message; without credit they are lost, and a client
that lacks them is told of the gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from duologue.bus.link import Link
from duologue.bus.messages import Kept
from duologue.fence import DeliveryId
from duologue.gateway.router import Router
from duologue.runtime import metrics

BATCH_BYTES: Final = 256 * 1024
OUTCOMES: Final = ("handed_on", "lost")

_Event = tuple[int, DeliveryId, bytes]


def hand_on(router: Router, link: Link, session_id: str, generation: int, events: Sequence[_Event]) -> None:
    """Send them, oldest first. `events`: number, id and body of each, without a hole."""
    shard = router.owner(link.peer.incarnation)
    takes = shard is not None and shard.record.takes_kept
    for batch in _batches(events):
        message = Kept(session_id, generation, batch[0][0], tuple(id for _, id, _ in batch))
        takes = takes and link.send(message, [body for _, _, body in batch])  # a later one alone is of no use
        metrics.GATEWAY_KEPT.labels("handed_on" if takes else "lost").inc(len(batch))


def _batches(events: Sequence[_Event]) -> Iterator[Sequence[_Event]]:
    """As many as fit into one message; at least one in each."""
    first = size = 0
    for at, (_, _, body) in enumerate(events):
        if at > first and size + len(body) > BATCH_BYTES:
            yield events[first:at]
            first, size = at, 0
        size += len(body)
    if first < len(events):
        yield events[first:]
