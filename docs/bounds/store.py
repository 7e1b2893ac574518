"""The bounds of the store. See `row`."""

from __future__ import annotations

from bounds.row import Bound, size

from duologue.delivery.egress import EgressLimits
from duologue.runtime.settings import SystemSettings
from duologue.store import journal_writer, redis

_SET = SystemSettings()
_EGRESS = EgressLimits()
_GATEWAY = "unit/gateway/"

BOUNDS = (
    Bound(
        "the journal of a session",
        f"{size(_SET.store.journal_max_bytes)}, {_SET.store.journal_ttl_s:g} s",
        "`[store] journal_max_bytes`, `journal_ttl_s`",
        "the oldest events go; a client whose cursor is older gets `session.resync_required`",
        ("duologue_store_journal_trimmed_events_total", "duologue_gateway_resumes_total"),
        (
            "contract/store/test_journal.py::test_overflow_trims_the_oldest_and_numbering_goes_on",
            "contract/store/test_scripts.py::test_keys_expire_and_age_is_the_servers",
            _GATEWAY + "test_resuming.py::test_a_gap_is_told_and_is_no_dead_end",
        ),
    ),
    Bound(
        "batches that the journal has not answered",
        f"{journal_writer.MAX_BATCHES}, {size(journal_writer.MAX_BYTES)}",
        "`store/journal_writer.py`",
        "no batch is taken; after `journal_deadline_ms` events leave without it",
        ("duologue_store_journal_full_total",),
        (
            "contract/store/test_connections.py::test_the_writer_is_bounded",
            "contract/store/test_stats.py::test_batches_that_are_not_taken",
        ),
    ),
    Bound(
        "entries kept while the store is away, for each session",
        f"{size(_EGRESS.kept_bytes)}, {_EGRESS.kept_s:g} s",
        "`delivery/egress.py`",
        "the oldest are lost to the journal: a hole. Clients that are connected get everything",
        ("duologue_store_journal_holes_total", "duologue_store_journal_backlog_bytes"),
        (
            "unit/delivery/test_egress.py::test_only_what_falls_out_of_the_bound_leaves_a_hole",
            "unit/delivery/test_pump.py::test_what_waits_and_what_is_kept_can_be_read_of_all_pumps_together",
        ),
    ),
    Bound(
        "other calls that are out",
        str(redis._MAX_CALLS),
        "`store/redis.py`",
        "the call fails at once as `full`: its caller tries again or refuses",
        ("duologue_store_failures_total",),
        ("contract/store/test_stats.py::test_nobody_there_and_no_room",),
    ),
)
