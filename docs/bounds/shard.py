"""The bounds of a session shard. See `row`."""

from __future__ import annotations

from bounds.row import Bound, size

from duologue.runtime.settings import SystemSettings
from duologue.session import (
    admission,
    backlog,
    binding,
    chat_turn,
    cleanup,
    detached,
    detector,
    handing_over,
    inheriting,
    input_tape,
    last_word,
    mailbox,
    moving,
    offload,
    opening,
    usage_hook,
)
from duologue.session.core import echoes, pictures, rebuild, stages, story
from duologue.session.core.limits import SessionLimits

_SET = SystemSettings()
_SESSION = SessionLimits()
_SHELL = "unit/session/shell/"
_CORE = "unit/session/core/"

BOUNDS = (
    Bound(
        'input kept of a session whose context can be rebuilt (`rebuild = "input"`)',
        f"`rebuild_window_s` of the pipeline's file, {size(input_tape.MAX_BYTES)} at most",
        "`session/input_tape.py`",
        "the oldest is forgotten; what the store did not take in time is counted",
        ("duologue_session_input_unrecorded_units_total", "duologue_session_input_recorded_units_total"),
        (
            _SHELL + "test_input_tape.py::test_the_store_keeps_the_window_and_no_more",
            _SHELL + "test_input_tape.py::test_a_window_of_large_units_is_bounded_by_its_bytes",
            _SHELL + "test_input_tape.py::test_a_store_that_is_away_is_asked_again_and_what_does_not_fit_is_counted",
        ),
    ),
    Bound(
        "events that a gateway had sent with the store away, and left with the shard when its client went",
        f"{size(backlog.MAX_BYTES)} for each session",
        "`session/backlog.py`",
        "the oldest are lost to the journal: whoever resumes from before them is told of a gap",
        ("duologue_session_kept_events_total", "duologue_gateway_kept_events_total"),
        (_SHELL + "test_backlog.py::test_beyond_the_bound_the_oldest_are_lost",),
    ),
    Bound(
        "how long a gateway that attaches waits for those",
        f"{detached.KEPT_S:g} s, {last_word.WORD_S:g} s of it for the gateway before it to say what it has",
        "`session/detached.py`",
        "it is told how far the journal is whole; whoever resumes from before that is told of a gap",
        ("duologue_session_kept_events_total", "duologue_gateway_resumes_total"),
        (
            _SHELL + "test_detached.py::test_an_attachment_does_not_wait_for_ever_for_what_nobody_has",
            _SHELL
            + "test_detached.py::test_an_attachment_is_answered_although_the_journal_does_not_take_what_was_kept",
        ),
    ),
    Bound(
        "sessions that are being taken over, and that wait for it",
        f"{inheriting.MAX_RUNNING} at a time, {inheriting.MAX_WAITING} waiting, as many until the registry answers",
        "`session/inheriting.py`",
        "it is not taken now: its gateway asks again, and the next sweep finds it",
        ("duologue_session_adoptions_total",),
        (
            _SHELL + "test_inheriting.py::test_many_wait_their_turn",
            _SHELL + "test_inheriting.py::test_no_more_is_remembered_than_may_wait",
        ),
    ),
    Bound(
        "sessions that a shard inherits beyond `max_sessions`",
        f"half of that (x {admission.INHERITED:g})",
        "`session/admission.py`",
        "the next heir in order is asked",
        ("duologue_session_adoptions_total", "duologue_session_admissions_refused_total"),
        (_SHELL + "test_inheriting.py::test_an_heir_makes_room_for_half_as_many_again",),
    ),
    Bound(
        "facts that come for a session while it is handed over",
        f"{mailbox.MAX_FACTS}, for {handing_over.HELD_S:g} s",
        "`session/runner.py`, `session/handing_over.py`",
        "the oldest is forgotten; without an answer of the store the session goes on here",
        ("duologue_session_hand_overs_total",),
        (_SHELL + "test_handing_over.py::test_a_store_that_does_not_answer_leaves_the_session_here",),
    ),
    Bound(
        "live sound that comes while a context is rebuilt",
        f"{_SESSION.max_rebuild_queue_s:g} s",
        "`session/core/rebuild.py`",
        "the rebuild is cut short and told: `context_lost`",
        ("duologue_session_rebuilds_total",),
        (_CORE + "test_rebuild.py::test_a_rebuild_that_takes_too_long_is_cut_short_and_told",),
    ),
    Bound(
        "replays of a session in the pipeline",
        str(rebuild.WINDOW),
        "`session/core/rebuild.py`",
        "the next goes when one has come through",
        ("duologue_session_rebuild_units_total",),
        (_CORE + "test_rebuild.py::test_a_lost_worker_is_replaced_and_its_successor_hears_what_it_had_heard",),
    ),
    Bound(
        "cancelled units whose workers have not told whether they were heard",
        str(stages.MAX_VOIDED),
        "`session/core/stages.py`",
        "the oldest counts as not heard",
        ("duologue_session_input_recorded_units_total",),
        (_CORE + "test_rebuild.py::test_cancelled_units_that_nobody_accounts_for_are_bounded",),
    ),
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
        "the gateway is told that the session is not here; it asks the store who has it, and sends them again",
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
        "how long input waits for a model that hears all the time",
        f"{_SET.session.max_input_age_s:g} s",
        "`[session] max_input_age_s`",
        "`input_backpressure` with `retry_after_ms`, until the model has caught up so far",
        ("duologue_session_input_rejected_total", "duologue_session_unit_lag_seconds"),
        (_CORE + "test_input_age.py::test_a_slow_model_gets_no_further_behind_than_the_limit",),
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
        "sessions that move with a model's state at once, of a draining worker",
        f"{moving.MAX_MOVES}, each for at most {moving.MOVE_TIMEOUT_S:g} s",
        "`session/moving.py`",
        "the others follow; what takes longer stays where it is and moves at the end of its turn, by a rebuild",
        ("duologue_session_moved_total", "duologue_session_failed_moves_total"),
        (
            _SHELL + "test_moving.py::test_so_many_move_at_once_and_the_others_follow",
            _SHELL + "test_moving.py::test_what_takes_too_long_stays",
        ),
    ),
    Bound(
        "events of a dead shard beyond its checkpoint that an heir remembers",
        f"{echoes.MAX_TOLD}, for {echoes.VALID_S:g} s",
        "`session/core/echoes.py`",
        "the newest are known; whoever attaches next is told of a gap (`session.resync_required`)",
        ("duologue_session_told_beyond_events_total", "duologue_session_adoptions_total"),
        (
            _CORE + "test_told_beyond.py::test_more_than_is_remembered_is_a_gap_and_the_newest_are_known",
            _CORE + "test_told_beyond.py::test_an_heir_of_the_heir_knows_them_too_and_nobody_for_ever",
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
        "accounts of ended sessions that `[usage] url` has not taken",
        str(usage_hook.MAX_WAITING),
        "`session/usage_hook.py`",
        "the newest is written to the log instead; so is one that is refused, or not taken after 8 attempts",
        ("duologue_session_usage_accounts_total", "duologue_session_usage_waiting_sessions"),
        (
            _SHELL + "test_usage_hook.py::test_what_waits_is_bounded_and_what_is_dropped_is_logged",
            _SHELL + "test_usage_hook.py::test_a_receiver_that_stays_away_is_given_up_after_so_many_attempts",
        ),
    ),
    Bound(
        "steps in the story of a session (`duologue session show`)",
        str(story.LENGTH),
        "`session/core/story.py`",
        "the oldest is forgotten",
        ("duologue_session_live_sessions",),
        (_CORE + "test_story.py::test_only_the_last_steps_are_kept_and_an_endless_id_is_cut",),
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

assert mailbox.MAX_FACTS == _SET.session.mailbox
