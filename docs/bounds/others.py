"""The bounds of the client library, the command line and the metrics. See `row`."""

from __future__ import annotations

from bounds.row import Bound, size

from duologue.cli import microphone
from duologue.cli.supervisor import child
from duologue.client import collector, cursor, inbox, listeners, responses, trace
from duologue.runtime import exposition

BOUNDS = (
    Bound(
        "connections to the metrics of a shard or worker",
        str(exposition.MAX_CONNECTIONS),
        "`runtime/exposition.py`",
        "503; Prometheus shows the target as down",
        ("up",),
        ("unit/runtime/test_exposition.py::test_connections_are_bounded",),
    ),
    Bound(
        "client library: events for one listener",
        str(inbox.CAPACITY),
        "`client/inbox.py`",
        "the oldest are dropped",
        ("Inbox.dropped",),
        ("unit/client/test_inbox.py::test_a_listener_that_does_not_keep_up_loses_the_oldest",),
    ),
    Bound(
        "client library: answers that wait for `responses()`",
        str(listeners.MAX_RESPONSES),
        "`client/listeners.py`",
        "the oldest are dropped",
        ("Listeners.dropped_responses",),
        ("unit/client/test_inbox.py::test_answers_that_nobody_takes_are_bounded",),
    ),
    Bound(
        "client library: audio of one answer",
        f"{responses.MAX_CHUNKS} deltas",
        "`client/responses.py`",
        "the oldest are dropped",
        ("ResponseHandle.dropped_chunks",),
        ("unit/client/test_inbox.py::test_audio_that_nobody_plays_is_bounded",),
    ),
    Bound(
        "client library: commands kept for a resume",
        size(cursor.KEEP_BYTES),
        "`client/cursor.py`",
        "the oldest are given up: what a resume lacks of them is lost",
        ("ResumeCursor.given_up",),
        ("unit/client/test_cursor.py::test_the_kept_commands_are_bounded_and_what_is_left_follows_the_given_up",),
    ),
    Bound(
        "client library: a wire trace",
        f"{trace.MAX_ENTRIES} frames, {size(trace.MAX_BYTES)}",
        "`client/trace.py`",
        "the oldest are dropped",
        ("DuplexTrace.dropped",),
        ("unit/client/test_trace.py::test_the_trace_is_bounded_in_entries_and_in_bytes",),
    ),
    Bound(
        "client library: events and answers of a collector",
        f"{collector.MAX_EVENTS}; {collector.MAX_RESPONSES}",
        "`client/collector.py`",
        "the oldest are dropped; totals still count them",
        ("EventCollector.dropped_events", "EventCollector.dropped_responses"),
        ("unit/client/test_collector.py::test_what_is_kept_is_bounded_and_the_totals_are_not",),
    ),
    Bound(
        "`duologue talk --mic`: chunks that wait to be sent",
        str(microphone.CAPACITY),
        "`cli/microphone.py`",
        "the oldest are dropped",
        ("Microphone.dropped",),
        ("unit/cli/test_microphone.py::test_the_oldest_chunks_are_dropped_and_counted",),
    ),
    Bound(
        "`duologue up`: one line of a child's log",
        size(child.MAX_LINE_BYTES),
        "`cli/supervisor/child.py`",
        "it is passed on in pieces, which the log shows",
        (),
        ("unit/cli/test_child.py::test_a_line_longer_than_the_bound_comes_in_pieces_and_none_is_lost",),
    ),
)
