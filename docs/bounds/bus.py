"""The bounds of the bus. See `row`."""

from __future__ import annotations

from bounds.row import Bound, size

from duologue.bus import endpoint as bus_endpoint
from duologue.bus.stats import MAX_NAMES
from duologue.runtime.settings import SystemSettings

_SET = SystemSettings()

BOUNDS = (
    Bound(
        "bytes on the way to a peer (credit)",
        size(_SET.bus.window_bytes),
        "`[bus] window_bytes`",
        "`send` takes nothing until the peer grants more; the sender's own bound follows",
        (
            "duologue_bus_credit_exhausted_total",
            "duologue_bus_credit_exhausted_seconds_total",
            "duologue_session_output_credit_waits_total",
        ),
        (
            "unit/bus/test_machine.py::test_credit_ends_and_comes_back",
            "contract/bus/test_link_contract.py::test_no_credit_is_false_and_on_credit_comes_later",
        ),
    ),
    Bound(
        "messages that need no credit, beyond it",
        "one more window",
        "`[bus] window_bytes`",
        "the link is given up: `send_failed`",
        ("duologue_bus_peers_lost_total",),
        ("unit/bus/test_machine.py::test_what_goes_without_credit_is_bounded_too",),
    ),
    Bound(
        "batches that a socket does not take",
        f"{_SET.bus.high_water} messages in ZeroMQ, then what credit allows",
        "`[bus] high_water`",
        "they wait in order; other peers go on",
        ("duologue_bus_blocked_batches_total",),
        ("contract/bus/test_link_contract.py::test_ovl_05_a_stuck_peer_misses_nothing_and_does_not_block_another",),
    ),
    Bound(
        "peers of a process",
        str(bus_endpoint.MAX_PEERS),
        "`bus/endpoint.py`",
        "the hello is refused: `full`",
        ("duologue_bus_hellos_refused_total",),
        ("unit/bus/test_peers.py::test_a_full_endpoint_refuses_strangers_and_says_so",),
    ),
    Bound(
        "peer names told apart by the metrics",
        str(MAX_NAMES),
        "`bus/stats.py`",
        "the rest is counted as `other`",
        ("duologue_bus_sent_bytes_total",),
        ("unit/bus/test_peers.py::test_names_beyond_the_bound_are_counted_together",),
    ),
)
