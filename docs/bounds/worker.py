"""The bounds of a stage worker. See `row`."""

from __future__ import annotations

from bounds.row import Bound, size

from duologue.models.bridge.options import Options
from duologue.models.bridge.replies import MAX_OPEN
from duologue.models.moshi import options as moshi
from duologue.models.qwen3_omni.options import Options as TurnOptions
from duologue.models.qwen3_omni.server import MAX_WAITING as MAX_PIECES
from duologue.models.vllm_stream.options import MAX_WAITING as MAX_ORDERS
from duologue.models.vllm_stream.options import EngineOptions as VllmOptions
from duologue.models.vllm_stream.options import TurnOptions as HearingOptions
from duologue.runtime.settings import SystemSettings
from duologue.stages import cursor as stage_cursor
from duologue.stages import outbox

_SET = SystemSettings()
_BRIDGE = Options(url="")
_TURNS = TurnOptions(url="")

BOUNDS = (
    Bound(
        "the state of a session that moves to another worker",
        f"{size(_SET.stages.max_export_bytes)}, all stages together",
        "`[stages] max_export_bytes`",
        "it stays (`state_too_large`), and the session moves at the end of its turn, by a rebuild",
        ("duologue_worker_exports_total", "duologue_session_failed_moves_total"),
        ("unit/stages/test_exporting.py::test_what_cannot_leave_stays_and_says_why",),
    ),
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
        "frames of a session that wait for its opening (PersonaPlex)",
        str(moshi.MAX_WAITING),
        "`models/moshi/options.py`",
        "the unit fails with `stage_backlog`",
        ("duologue_worker_failed_units_total",),
        ("models/personaplex/test_opening.py::test_what_waits_for_the_opening_is_bounded",),
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
    Bound(
        "bridge: commands of a session that wait to go up",
        size(_BRIDGE.pending_up_kib * 1024),
        "`models/bridge/options.py`",
        "the unit fails with `upstream_backpressure`",
        ("duologue_worker_upstream_full_total",),
        ("unit/models/bridge/test_engine.py::test_what_waits_to_go_up_is_bounded_and_the_unit_fails_by_name",),
    ),
    Bound(
        "bridge: upstream events of a session that wait to be read",
        size(_BRIDGE.pending_down_kib * 1024),
        "`models/bridge/options.py`",
        "the upstream server is not read until they were taken",
        ("duologue_worker_upstream_full_total",),
        ("unit/models/bridge/test_engine.py::test_a_server_that_says_too_much_is_not_read_until_it_was_taken",),
    ),
    Bound(
        "bridge: open responses of an upstream session",
        str(MAX_OPEN),
        "`models/bridge/replies.py`",
        "the oldest is forgotten: what still comes of it is dropped",
        ("duologue_worker_upstream_stale_total",),
        ("unit/models/bridge/test_replies.py::test_the_responses_that_are_known_are_bounded",),
    ),
    Bound(
        "qwen3-omni: the conversation of a session",
        f"{_TURNS.history_turns} turns, {_TURNS.history_audio_s:g} s of sound, {_TURNS.turn_audio_s:g} s of one turn",
        "`models/qwen3_omni/options.py`",
        "the oldest turns are left out of the next request; of a turn its beginning",
        ("duologue_worker_turn_cuts_total",),
        (
            "unit/models/qwen3_omni/test_talk.py::test_the_oldest_turns_go_and_it_is_told",
            "unit/models/qwen3_omni/test_talk.py::test_the_sound_of_all_turns_is_bounded_and_the_newest_stays",
            "unit/models/qwen3_omni/test_talk.py::test_of_a_turn_that_is_too_long_the_end_is_kept",
        ),
    ),
    Bound(
        "qwen3-omni: pieces of an answer that wait to be taken",
        str(MAX_PIECES),
        "`models/qwen3_omni/server.py`",
        "the answer is not read on until they were taken",
        ("duologue_worker_turn_waits_total",),
        ("unit/models/qwen3_omni/test_engine.py::test_an_answer_that_is_not_taken_is_not_read_on",),
    ),
    Bound(
        "vllm: sessions, and the KV cache of their whole contexts",
        "the stage's `slots`, and `context_tokens` of each in the cache",
        "the pipeline's file",
        "the open is refused with `resource_exhausted`",
        ("duologue_worker_opens_refused_total", "duologue_worker_kv_tokens"),
        (
            "unit/models/vllm_stream/test_admission.py::test_sequences_are_counted_and_given_back",
            "unit/models/vllm_stream/test_admission.py::test_contexts_are_set_aside_in_whole_blocks",
            "models/vllm/test_streams.py::test_a_ninth_session_is_refused_and_the_eight_go_on",
            "models/vllm/test_sound.py::test_a_session_that_does_not_fit_into_the_pool_is_refused_at_open",
        ),
    ),
    Bound(
        "vllm: the wait for the next token of an append",
        f"{VllmOptions().append_timeout_s:g} s",
        "`models/vllm_stream/options.py`",
        "the request is aborted, the answer fails with `append_timeout` (the cascade's with `thinker_timeout`)",
        ("duologue_worker_vllm_appends_total",),
        ("models/vllm/test_streams.py::test_an_append_that_nobody_answers_fails_by_code_and_the_session_goes_on",),
    ),
    Bound(
        "vllm: orders of a session that its request has not come to",
        str(MAX_ORDERS),
        "`models/vllm_stream/options.py`",
        "the unit fails with `stage_backlog`",
        ("duologue_worker_failed_units_total",),
        ("models/vllm/test_sound.py::test_what_waits_for_a_request_is_bounded",),
    ),
    Bound(
        "vllm: sound of one turn",
        f"{HearingOptions(model='-').turn_audio_s:g} s",
        "`models/vllm_stream/options.py`",
        "its end is kept",
        ("duologue_worker_turn_cuts_total",),
        ("models/vllm/test_sound.py::test_of_a_turn_that_is_too_long_the_end_is_kept",),
    ),
)
