"""The bounds of the system, as docs/operations.md lists them: limits are read of the code, the rest is said here.

Each row: what is bounded, its limit, the setting or the module that holds it, what happens at the bound, the
metric that moves then, and the tests that reach it (under `tests/`). A test checks that all of them exist.
"""

from __future__ import annotations

from typing import NamedTuple

from duologue.bus import endpoint as bus_endpoint
from duologue.bus.stats import MAX_NAMES
from duologue.cli import microphone
from duologue.cli.supervisor import child
from duologue.client import collector, cursor, inbox, listeners, responses, trace
from duologue.delivery.egress import EgressLimits
from duologue.gateway import chores, envelope, front_door, outbound, secrets, wire
from duologue.gateway.chat import answer as chat_answer
from duologue.gateway.chat import request as chat_request
from duologue.gateway.chat import turn as chat_turn_here
from duologue.runtime import exposition
from duologue.runtime.settings import SystemSettings
from duologue.session import binding, chat_turn, cleanup, detector, mailbox, offload, opening
from duologue.session.core import pictures
from duologue.session.core.limits import SessionLimits
from duologue.stages import cursor as stage_cursor
from duologue.stages import outbox
from duologue.store import journal_writer, redis

_SET = SystemSettings()
_SESSION = SessionLimits()
_EGRESS = EgressLimits()
KIB, MIB = 1024, 1024 * 1024


def size(count: int) -> str:
    return f"{count // MIB} MiB" if count >= MIB else f"{count // KIB} KiB"


class Bound(NamedTuple):
    what: str
    limit: str
    where: str
    result: str
    metrics: tuple[str, ...]
    tests: tuple[str, ...]


_SHELL = "unit/session/shell/"
_CORE = "unit/session/core/"
_GATEWAY = "unit/gateway/"

GATEWAY = (
    Bound(
        "requests of chat completions",
        str(_SET.gateway.max_chat_turns),
        "`[gateway] max_chat_turns`",
        "503 `resource_exhausted` with `Retry-After`",
        ("duologue_gateway_chat_turns_total",),
        (_GATEWAY + "test_chat.py::test_beyond_the_bound_a_request_is_refused_and_counted",),
    ),
    Bound(
        "the answer of a chat turn",
        f"{size(chat_turn_here.MAX_QUEUED_BYTES)} that its client has not read; "
        f"{size(chat_answer.MAX_WHOLE_BYTES)} where it is not streamed",
        "`gateway/chat/turn.py`, `gateway/chat/answer.py`",
        "the turn is cancelled and fails as `output_backpressure`",
        ("duologue_gateway_chat_turns_total",),
        (
            _GATEWAY + "test_chat.py::test_events_that_nobody_reads_are_bounded",
            _GATEWAY + "test_chat.py::test_a_whole_answer_is_bounded",
        ),
    ),
    Bound(
        "the conversation of a chat turn",
        f"{chat_request.MAX_MESSAGES} messages, {size(chat_request.MAX_TEXT_BYTES)} of text; with its sound "
        f"{size(_SET.gateway.max_frame_bytes)}",
        "`gateway/chat/request.py`, `[gateway] max_frame_bytes`",
        "400 `invalid_request`, `param` `messages`; 413 `request_too_large`",
        ("duologue_gateway_chat_turns_total",),
        (
            _GATEWAY + "test_chat_request.py::test_what_is_wrong_is_refused_by_name",
            _GATEWAY + "test_chat.py::test_keys_bodies_and_methods",
        ),
    ),
    Bound(
        "the preset of a client secret",
        size(secrets.MAX_BODY_BYTES),
        "`gateway/secrets.py`",
        "413 `request_too_large`",
        ("duologue_gateway_client_secrets_total",),
        (_GATEWAY + "test_client_secrets.py::test_too_large_a_preset_is_refused",),
    ),
    Bound(
        "connections that are no WebSocket yet",
        f"{front_door.PER_WAITING_SOCKET * _SET.gateway.max_waiting_sockets}, {front_door.PER_WAITING_SOCKET} for each "
        "socket that may wait; each for `first_message_timeout_s`",
        "`gateway/front_door.py`, `[gateway] max_waiting_sockets`, `first_message_timeout_s`",
        "a further one is answered 503 `resource_exhausted`; one that is not through with a request and its answer in "
        "time is dropped",
        ("duologue_gateway_refused_total",),
        (
            _GATEWAY + "test_front_door.py::"
            "test_beyond_the_bound_a_connection_is_refused_and_counted_and_upgrades_leave_the_count",
            _GATEWAY + "test_front_door.py::test_who_brings_no_whole_request_is_dropped",
        ),
    ),
    Bound(
        "sockets that have not opened a session",
        str(_SET.gateway.max_waiting_sockets),
        "`[gateway] max_waiting_sockets`",
        "the upgrade is answered 503 `resource_exhausted` with `Retry-After`",
        ("duologue_gateway_refused_total", "duologue_gateway_waiting_sessions"),
        (_GATEWAY + "test_admission.py::test_where_there_is_no_room_the_client_is_told_when_to_come_again",),
    ),
    Bound(
        "sessions of a gateway, and of one key",
        f"{_SET.gateway.max_sessions}; no limit",
        "`[gateway] max_sessions`, `max_sessions_per_key`",
        "503 as above; a resume is let in",
        ("duologue_gateway_refused_total",),
        (
            _GATEWAY + "test_admission.py::test_where_there_is_no_room_the_client_is_told_when_to_come_again",
            _GATEWAY + "test_gateway.py::test_a_full_system_says_when_to_come_again",
        ),
    ),
    Bound(
        "one frame of a client",
        size(_SET.gateway.max_frame_bytes),
        "`[gateway] max_frame_bytes`",
        "an error, close 1009; the session can be resumed",
        ("duologue_gateway_sockets_closed_total",),
        (_GATEWAY + "test_gateway.py::test_a_frame_that_is_too_large_is_an_error_then_1009_and_the_session_resumes",),
    ),
    Bound(
        "frames that yield no command",
        f"{envelope.MAX_UNDECODABLE} in {envelope.UNDECODABLE_WINDOW_S:g} s",
        "`gateway/envelope.py`",
        "close 1008",
        ("duologue_gateway_undecodable_frames_total",),
        (
            _GATEWAY + "test_connection.py::test_fifty_undecodable_frames_in_ten_seconds_end_the_socket",
            _GATEWAY + "test_gateway.py::test_undecodable_frames_are_forgiven_up_to_a_limit",
        ),
    ),
    Bound(
        "commands that no checkpoint covers",
        size(_SET.gateway.uncovered_bytes),
        "`[gateway] uncovered_bytes`",
        "the socket is not read until the shard, which is asked for one, has made a checkpoint",
        ("duologue_gateway_uncovered_full_total", "duologue_gateway_uncovered_bytes"),
        (
            _GATEWAY + "test_gateway.py::test_too_much_that_no_checkpoint_covers_stops_the_reader",
            _GATEWAY + "test_uncovered.py::test_one_large_command_is_kept_alone",
        ),
    ),
    Bound(
        "events between the shard's answer and the claim of the journal",
        str(outbound.MAX_EARLY),
        "`gateway/outbound.py`",
        "error `output_backpressure`, close 1013",
        ("duologue_gateway_unnumbered_full_total",),
        (
            _GATEWAY + "test_outbound.py::test_events_before_the_claim_are_kept_up_to_a_bound",
            _GATEWAY + "test_outbound.py::test_an_overflow_closes_the_socket_and_is_counted",
        ),
    ),
    Bound(
        "events without a number (egress)",
        f"{_EGRESS.queue_events} events, {size(_EGRESS.queue_bytes)}",
        "`delivery/egress.py`",
        "error `output_backpressure`, close 1013; the session's own output limits come first. A detached session's "
        "egress claims the journal anew",
        ("duologue_gateway_unnumbered_full_total", "duologue_gateway_unnumbered_events"),
        (
            "unit/delivery/test_egress.py::test_the_queue_is_bounded",
            "unit/delivery/test_pump.py::test_overflow_stops_it",
            _GATEWAY + "test_outbound.py::test_events_without_a_number_are_bounded_while_the_client_does_not_read",
        ),
    ),
    Bound(
        "the batch that waits for the journal (egress)",
        f"one, {_EGRESS.batch_events} events, {size(_EGRESS.batch_bytes)}",
        "`delivery/egress.py`",
        "the rest waits without a number",
        ("duologue_gateway_unnumbered_events",),
        (
            "unit/delivery/test_egress.py::test_one_batch_is_out_at_a_time",
            "unit/delivery/test_egress.py::test_a_batch_is_bounded_by_events_and_bytes",
        ),
    ),
    Bound(
        "the write buffer of a socket",
        size(wire.ROOM_BYTES),
        "`gateway/wire.py`",
        "no further event gets a number until the client reads",
        ("duologue_gateway_socket_waits_total",),
        (
            "unit/delivery/test_pump.py::test_a_full_socket_stops_the_numbering",
            _GATEWAY + "test_gateway.py::test_a_client_that_reads_nothing_does_not_delay_a_takeover",
        ),
    ),
    Bound(
        "store calls that nobody waits for",
        str(chores.MAX_WAITING),
        "`gateway/chores.py`",
        "the oldest is given up: what it would have done happens later by itself",
        ("duologue_gateway_chores_dropped_total",),
        (_GATEWAY + "test_chores.py::test_beyond_the_bound_the_oldest_is_given_up_and_counted",),
    ),
)

SHARD = (
    Bound(
        "chat turns of one pipeline in a shard",
        f"`max_chat_turns` of the pipeline's file; each for {chat_turn.TURN_S:g} s",
        "`session/chat_turns.py`, `session/chat_turn.py`",
        "the turn is refused `resource_exhausted`, or ended by `timeout`",
        ("duologue_session_chat_turns_total", "duologue_session_chat_used_slots"),
        (
            _SHELL + "test_chat_turns.py::"
            "test_beyond_the_bound_a_turn_is_refused_and_counted_and_a_cancelled_one_makes_room",
            _SHELL + "test_chat_turns.py::test_a_turn_that_takes_too_long_is_ended",
        ),
    ),
    Bound(
        "what a chat turn has said and its gateway has no credit for",
        size(chat_turn.MAX_WAITING_BYTES),
        "`session/chat_turn.py`",
        "the turn ends with `output_backpressure`",
        ("duologue_session_chat_turns_total",),
        (_SHELL + "test_chat_turns.py::test_more_than_may_wait_for_credit_ends_the_turn",),
    ),
    Bound(
        "opens that the store may have carried out for nobody",
        str(opening.MAX_UNDONE),
        "`session/opening.py`",
        "their keys are left to expire",
        ("duologue_session_admissions_refused_total",),
        (_SHELL + "test_open_without_store.py::test_more_than_may_be_taken_back_are_left_to_expire",),
    ),
    Bound(
        "sessions of a shard, and of one pipeline",
        f"{_SET.session.max_sessions}; the pipeline's `max_sessions`",
        "`[session] max_sessions`",
        "`resource_exhausted` with `retry_after_ms`",
        ("duologue_session_admissions_refused_total", "duologue_session_headroom_sessions"),
        (
            _SHELL + "test_sessions.py::test_a_full_shard_says_when_to_come_back",
            _SHELL + "test_meters.py::test_sessions_headroom_and_refusals",
        ),
    ),
    Bound(
        "commands that come while a session is being opened",
        str(opening.MAX_EARLY),
        "`session/opening.py`",
        "the gateway is told that the session is not here, and closes with `shard_lost`",
        ("duologue_session_stale_drops_total",),
        (_SHELL + "test_sessions.py::test_commands_that_come_too_early_are_bounded",),
    ),
    Bound(
        "the mailbox of a session",
        f"{_SET.session.mailbox} facts, half of them media",
        "`[session] mailbox`",
        "media is refused with `input_backpressure`, in its place; without room for control the session ends with "
        "`internal_error`",
        ("duologue_session_mailbox_full_total", "duologue_session_core_faults_total"),
        (
            _SHELL + "test_mailbox_output.py::test_media_is_shed_while_control_still_fits",
            _SHELL + "test_sessions.py::test_audio_that_comes_faster_than_it_is_handled_is_refused_and_control_is_not",
            _SHELL + "test_sessions.py::test_a_mailbox_without_room_for_control_ends_the_session",
        ),
    ),
    Bound(
        "input that no stage has used",
        size(_SET.session.max_pending_input_bytes),
        "`[session] max_pending_input_bytes`",
        "`input_backpressure` with `retry_after_ms`",
        ("duologue_session_input_rejected_total", "duologue_session_pending_input_bytes"),
        (
            _SHELL + "test_sessions.py::test_too_many_bytes_are_refused_in_their_place",
            _CORE + "test_append_commit.py::test_pending_input_is_bounded_and_the_refusal_is_retryable",
        ),
    ),
    Bound(
        "images in a conversation",
        f"{pictures.MAX_PICTURES}, {size(pictures.MAX_PICTURE_CHARS)} as data URLs",
        "`session/core/pictures.py`",
        "`input_backpressure`, param the part; deleting an item makes room",
        ("duologue_session_input_rejected_total",),
        (
            _CORE + "test_pictures.py::test_too_many_are_refused_by_name_until_one_is_deleted",
            _CORE + "test_pictures.py::test_too_large_ones_are_refused_by_name_and_leave_no_item",
        ),
    ),
    Bound(
        "commits that wait for their turn",
        str(_SET.session.max_pending_turns),
        "`[session] max_pending_turns`",
        "`input_backpressure` with `retry_after_ms`",
        ("duologue_session_input_rejected_total",),
        (_SHELL + "test_sessions.py::test_a_fifth_waiting_commit_is_refused",),
    ),
    Bound(
        "long payloads that are being converted",
        str(offload.MAX_QUEUED),
        "`session/offload.py`",
        "`input_backpressure` with `retry_after_ms`",
        ("duologue_session_offload_full_total",),
        (
            _SHELL + "test_sessions.py::test_offloaded_work_comes_back_as_a_fact",
            _SHELL + "test_meters.py::test_full_queues_are_told",
            _CORE + "test_life.py::test_a_failed_conversion_is_one_refusal",
        ),
    ),
    Bound(
        "sound that waits for the speech detector",
        f"{_SET.session.detector_frames} frames of 32 ms",
        "`[session] detector_frames`",
        "it is heard unjudged: it neither begins nor ends a turn",
        ("duologue_session_detector_full_total", "duologue_session_detector_seconds"),
        (
            _SHELL + "test_detector.py::test_beyond_the_bound_a_question_is_answered_full",
            _SHELL + "test_meters.py::test_the_detectors_work_is_told",
            _CORE + "test_turn_detection.py::test_a_full_detector_leaves_sound_unjudged",
        ),
    ),
    Bound(
        "pauses that wait for the end-of-turn model",
        str(detector.MAX_TURNS),
        "`session/detector.py`",
        "the pause lasts for the hard maximum of its `eagerness`",
        ("duologue_session_turn_model_full_total",),
        (
            _SHELL + "test_detector.py::test_beyond_the_bound_a_pause_is_not_judged",
            _CORE + "test_turn_detection.py::test_a_model_that_has_no_room_leaves_the_hard_maximum",
        ),
    ),
    Bound(
        "units of a session in its stages",
        "the model's `max_in_flight`",
        "the pipeline's plugin",
        "the rest waits as input",
        ("duologue_session_pending_input_bytes", "duologue_session_unit_lag_seconds"),
        (_CORE + "test_append_commit.py::test_the_window_bounds_what_is_in_flight_and_the_rest_waits",),
    ),
    Bound(
        "what waits for the credit of a worker, for each session",
        f"{binding.MAX_WAITING} messages",
        "`session/binding.py`",
        "the unit fails with `stage_backpressure`; its response ends `failed`",
        ("duologue_session_stage_queue_full_total",),
        (
            _SHELL + "test_stage_binding.py::test_units_wait_for_credit_in_order_and_a_bound_fails_the_rest",
            _SHELL + "test_meters.py::test_full_queues_are_told",
        ),
    ),
    Bound(
        "output made before its time (paced pipelines)",
        size(_SESSION.max_paced_bytes),
        "`session/core/limits.py`",
        "the oldest is told at once; from there the output buffer decides",
        ("duologue_session_unpaced_outputs_total",),
        (_CORE + "test_pacing.py::test_beyond_its_bound_the_oldest_goes_ahead_of_its_time",),
    ),
    Bound(
        "the output buffer",
        f"{size(_SET.session.max_output_bytes)}, {_SET.session.max_output_events} events",
        "`[session] max_output_bytes`, `max_output_events`, `overflow_policy`",
        "error `output_backpressure`, audio purged, `response.done` `failed`; then close 1013, or on without the "
        "response",
        (
            "duologue_session_output_overflows_total",
            "duologue_session_output_buffer_bytes",
            "duologue_session_output_buffer_events",
        ),
        (
            _CORE + "test_output_commit.py::test_a_slow_client_loses_its_session_by_default",
            _CORE + "test_output_commit.py::test_or_only_its_response",
            _CORE + "test_output_commit.py::test_the_count_limits_too",
        ),
    ),
    Bound(
        "its reserve for errors and `response.done`",
        f"{size(_SESSION.reserve_output_bytes)}, {_SESSION.reserve_output_events} events",
        "`session/core/limits.py`",
        "the session closes under either policy",
        ("duologue_session_output_overflows_total",),
        (_CORE + "test_output_commit.py::test_where_even_the_reserve_is_full_the_session_ends_under_either_policy",),
    ),
    Bound(
        "its slot for the terminal event",
        size(_SESSION.close_slot_bytes),
        "`session/core/limits.py`",
        "the reason is replaced by `close_details_exceed_output_limit`",
        ("duologue_session_ended_total",),
        (_CORE + "test_life.py::test_a_terminal_event_that_is_too_large_loses_its_details",),
    ),
    Bound(
        "checkpoints on their way",
        "one; of those that wait the newest",
        "`session/checkpoints.py`",
        "an older one is never written",
        ("duologue_session_checkpoint_seconds",),
        (_SHELL + "test_checkpoints.py::test_of_those_that_wait_only_the_newest_is_written",),
    ),
    Bound(
        "releases of ended sessions that the store has not confirmed",
        str(cleanup.MAX_PENDING),
        "`session/cleanup.py`",
        "the oldest is given up; its keys expire",
        ("duologue_session_releases_given_up_total",),
        (_SHELL + "test_reaper.py::test_releases_that_pile_up_are_bounded",),
    ),
)

WORKER = (
    Bound(
        "sessions in a stage",
        "the stage's `slots`",
        "the pipeline's file",
        "the open is refused with `resource_exhausted`",
        ("duologue_worker_opens_refused_total", "duologue_worker_used_slots"),
        ("unit/stages/test_worker.py::test_slots_are_given_until_there_are_none",),
    ),
    Bound(
        "units of a session that wait for a stage",
        str(stage_cursor.MAX_WAITING),
        "`stages/cursor.py`",
        "the unit fails with `stage_backlog`",
        ("duologue_worker_failed_units_total",),
        (
            "unit/stages/test_batching.py::test_what_waits_for_one_session_is_bounded",
            "unit/stages/test_worker.py::test_too_many_waiting_units_fail_by_name",
        ),
    ),
    Bound(
        "output that waits for the credit of a shard",
        f"{outbox.MAX_MESSAGES} messages of a session, {size(_SET.stages.pending_output_bytes)} of a shard",
        "`[stages] pending_output_bytes`",
        "the unit fails with `stage_output_overflow`",
        ("duologue_worker_pending_output_full_total", "duologue_worker_pending_output_bytes"),
        (
            "unit/stages/test_outbox.py::test_the_messages_of_a_session_are_bounded",
            "unit/stages/test_outbox.py::test_the_bytes_of_a_shard_are_bounded_and_come_back",
            "unit/stages/test_worker.py::test_what_there_is_no_credit_for_waits_and_what_does_not_fit_fails_its_unit",
        ),
    ),
)

BUS = (
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
        ("contract/bus/test_link_contract.py::test_a_stuck_peer_does_not_block_another",),
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

STORE = (
    Bound(
        "the journal of a session",
        f"{size(_SET.store.journal_max_bytes)}, {_SET.store.journal_ttl_s:g} s",
        "`[store] journal_max_bytes`, `journal_ttl_s`",
        "the oldest events go; a client whose cursor is older gets `session.resync_required`",
        ("duologue_store_journal_trimmed_events_total", "duologue_gateway_resumes_total"),
        (
            "contract/store/test_journal.py::test_overflow_trims_the_oldest_and_numbering_goes_on",
            "contract/store/test_scripts.py::test_keys_expire_and_age_is_the_servers",
            _GATEWAY + "test_gateway.py::test_a_gap_is_told_and_is_no_dead_end",
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

OTHERS = (
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

assert mailbox.MAX_FACTS == _SET.session.mailbox

BOUNDS = {
    "Gateway": GATEWAY,
    "Session shard": SHARD,
    "Stage worker": WORKER,
    "Bus": BUS,
    "Store": STORE,
    "Others": OTHERS,
}
