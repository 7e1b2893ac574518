"""The bounds of a gateway. See `row`."""

from __future__ import annotations

from bounds.row import Bound, size

from duologue.delivery.egress import EgressLimits
from duologue.gateway import chores, connect_rate, departures, envelope, front_door, outbound, secrets, wire
from duologue.gateway.chat import answer as chat_answer
from duologue.gateway.chat import request as chat_request
from duologue.gateway.chat import turn as chat_turn_here
from duologue.runtime.settings import SystemSettings

_SET = SystemSettings()
_EGRESS = EgressLimits()
_GATEWAY = "unit/gateway/"

BOUNDS = (
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
        "what left clients were sent with the store away, and waits for the credit of their shards",
        size(departures.MAX_BYTES),
        "`gateway/departures.py`",
        "it is lost to the journal; whoever resumes from before that is told of a gap",
        ("duologue_gateway_kept_events_total",),
        (
            _GATEWAY + "test_departures.py::test_what_waits_is_bounded_and_the_detach_goes_all_the_same",
            _GATEWAY + "test_departures.py::test_what_waits_is_lost_with_its_link",
        ),
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
        "WebSockets that are accepted each second",
        f"{_SET.gateway.max_connects_per_s}; {connect_rate.BURST_S:g} s of them at once",
        "`[gateway] max_connects_per_s`",
        "the upgrade is answered 503 `resource_exhausted`; `Retry-After` and `retry_after_ms` are spread by chance "
        "over the time that the crowd takes",
        ("duologue_gateway_refused_total",),
        (
            _GATEWAY + "test_connect_rate.py::test_a_small_crowd_is_let_in_at_once_and_a_large_one_by_the_rate",
            _GATEWAY + "test_gateway.py::test_a_crowd_is_let_in_by_the_rate",
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
            _GATEWAY + "test_resuming.py::test_res_02_a_client_that_reads_nothing_does_not_delay_a_takeover",
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
