"""The bounds of the store. See `row`."""

from __future__ import annotations

from bounds.row import Bound, size

from duologue.delivery.egress import EgressLimits
from duologue.runtime.settings import SystemSettings
from duologue.store import embedded, journal_writer, memory_budget, redis

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
        "what all journals and the rest of a server hold together",
        f"from {_SET.store.memory_trim_from:.0%} of its `maxmemory` on journals are cut shorter, from "
        f"{_SET.store.memory_refuse_from:.0%} on no session is opened; {embedded.MAX_MEMORY_MB} MiB where embedded",
        "`[store] memory_budget_mb`, `memory_trim_from`, `memory_refuse_from`",
        "the largest journals lose their oldest events first, down to an equal share, and to "
        f"{size(memory_budget.LEAST_BYTES)} where sessions are refused; those with 503 `resource_exhausted` and "
        "`retry_after_ms`, resumes never",
        (
            "duologue_store_memory_used_ratio",
            "duologue_store_journal_limit_bytes",
            "duologue_store_journal_trimmed_events_total",
            "duologue_gateway_refused_total",
        ),
        (
            "contract/store/test_memory_limits.py::"
            "test_a_journal_is_cut_with_its_next_batch_once_the_limit_is_lower_and_a_small_one_is_not",
            _GATEWAY + "test_full_store.py::test_a_new_client_is_answered_before_its_socket_is_accepted",
            "system/test_nearly_full_store.py::test_sessions_that_acknowledge_nothing_fill_it_so_far_and_no_further",
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
