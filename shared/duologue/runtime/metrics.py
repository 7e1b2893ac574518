"""Every metric of every process, by kind. Callers resolve label children once and keep them.

Labels have few values: reasons, kinds, pipelines, stages, peer names; never a session, a user or a text.
The rules of naming and registries are in `metric_registry`.
"""

from __future__ import annotations

from duologue.runtime.loop_lag import cpu_seconds, rss_bytes
from duologue.runtime.metric_registry import (
    BATCHES,
    FAST_SECONDS,
    SIZE_BYTES,
    SPOKEN_SECONDS,
    counter,
    gauge,
    histogram,
)

# -- gateway ---------------------------------------------------------------------------------------------

GATEWAY_ATTACHED = gauge("gateway", "attached_sessions", "Sessions with a socket here.", ["dialect"])
GATEWAY_WAITING = gauge("gateway", "waiting_sessions", "Sockets that have not opened a session yet.")
GATEWAY_REFUSED = counter("gateway", "refused", "Connections and sessions refused, by reason.", ["reason"])
GATEWAY_CLOSED = counter("gateway", "sockets_closed", "Sockets closed, by close code.", ["code"])
GATEWAY_FRAMES_IN = counter("gateway", "frames_received", "Client frames received.")
GATEWAY_BYTES_IN = counter("gateway", "received_bytes", "Bytes of client frames received.")
GATEWAY_FRAMES_OUT = counter("gateway", "frames_sent", "Frames written to client sockets.")
GATEWAY_BYTES_OUT = counter("gateway", "sent_bytes", "Bytes written to client sockets.")
GATEWAY_BAD_FRAMES = counter("gateway", "undecodable_frames", "Client frames that yielded no command.", ["code"])
GATEWAY_UNCOVERED = gauge("gateway", "uncovered_bytes", "Client commands kept until a checkpoint covers them.")
GATEWAY_UNCOVERED_FULL = counter("gateway", "uncovered_full", "Times that a session reached its bound of them.")
GATEWAY_SOCKET_WAITS = counter("gateway", "socket_waits", "Times that a full socket buffer held deliveries back.")
GATEWAY_PURGED = counter("gateway", "purged_events", "Audio events removed before they were numbered.")
GATEWAY_STALE = counter("gateway", "stale_drops", "Deliveries dropped as meaningless, by kind.", ["kind"])
GATEWAY_UNNUMBERED = gauge("gateway", "unnumbered_events", "Events waiting for their number.")
GATEWAY_UNNUMBERED_FULL = counter("gateway", "unnumbered_full", "Sockets closed because too many of those waited.")
GATEWAY_CHORES_DROPPED = counter("gateway", "chores_dropped", "Store calls given up that nobody waited for.")
GATEWAY_REASSERTED = counter("gateway", "reasserted", "Sessions told again to a store that may have gone back in time.")
GATEWAY_RESUMES = counter("gateway", "resumes", "Resumes, by result.", ["result"])
GATEWAY_RESUME_LATENCY = histogram(
    "gateway", "resume_seconds", "From the resume to the end of its replay.", SPOKEN_SECONDS
)
GATEWAY_KEPT = counter(
    "gateway", "kept_events", "Events sent with the store away and not journaled when the socket ended.", ["outcome"]
)
GATEWAY_MOVES = counter("gateway", "moves", "Attachments whose shard was lost, by what came of it.", ["result"])
GATEWAY_MOVE = histogram("gateway", "move_seconds", "From the loss of a shard to the next one.", SPOKEN_SECONDS)
GATEWAY_REPLAYED = counter("gateway", "replayed_events", "Events sent again from the journal.")
GATEWAY_TAKEOVERS = counter("gateway", "takeovers", "Sockets replaced by another one of the same session.")

GATEWAY_CHAT_TURNS = counter("gateway", "chat_turns", "Requests of chat completions, by result.", ["result"])
GATEWAY_SECRETS = counter("gateway", "client_secrets", "Client secrets asked for, by result.", ["result"])
GATEWAY_CERTIFICATES = counter(
    "gateway", "certificates", "Certificate files that changed, by result (taken, refused).", ["result"]
)

# -- session shard ---------------------------------------------------------------------------------------

SESSION_LIVE = gauge("session", "live_sessions", "Sessions here.", ["state", "pipeline"])
SESSION_ACCEPTING = gauge("session", "accepting_sessions", "1: this shard takes new sessions.")
SESSION_HEADROOM = gauge("session", "headroom_sessions", "Sessions that this shard can still take.")
SESSION_STANDBY = gauge("session", "standby_ratio", "1: new sessions go here only when no active shard takes them.")
SESSION_REFUSED = counter("session", "admissions_refused", "Sessions refused at open, by reason.", ["reason"])
SESSION_ENDED = counter("session", "ended", "Sessions ended, by reason.", ["reason"])
SESSION_INPUT_PENDING = gauge("session", "pending_input_bytes", "Input accepted and not yet used.")
SESSION_INPUT_REJECTED = counter("session", "input_rejected", "Commands refused by backpressure.")
SESSION_MAILBOX_FULL = counter("session", "mailbox_full", "Commands refused by a full mailbox.")
SESSION_OUTPUT_BYTES = gauge("session", "output_buffer_bytes", "Output queued or not yet acknowledged.")
SESSION_OUTPUT_EVENTS = gauge("session", "output_buffer_events", "Output events queued or not acknowledged.")
SESSION_OUTPUT_OVERFLOWS = counter("session", "output_overflows", "Output overflows, by policy.", ["policy"])
SESSION_PURGED = counter("session", "purged_events", "Audio events that a cancel removed from the output buffer.")
SESSION_UNPACED = counter("session", "unpaced_outputs", "Outputs told too early because too many waited.")
SESSION_UNCOVERED = counter("session", "uncovered_events", "Events freed because their checkpoint was late.")
SESSION_TOLD_BEYOND = counter("session", "told_beyond_events", "Events of a lost shard that no checkpoint contained.")
SESSION_STAGE_FULL = counter("session", "stage_queue_full", "Messages refused because too many waited for a worker.")
SESSION_RELEASES_LOST = counter("session", "releases_given_up", "Ended sessions whose keys are left to expire.")
SESSION_OFFLOAD_FULL = counter("session", "offload_full", "Conversions refused because too many waited.")
SESSION_DETECTOR_FRAMES = counter("session", "detector_frames", "Frames that the speech detector judged.")
SESSION_DETECTOR_FULL = counter("session", "detector_full", "Sound left unjudged because too much waited.")
SESSION_TURN_MODEL_FULL = counter("session", "turn_model_full", "Pauses that the end-of-turn model had no room for.")
SESSION_DETECTOR_BATCH = histogram(
    "session", "detector_batch_sessions", "Sessions in one run of the speech detector.", BATCHES
)
SESSION_DETECTOR_LATENCY = histogram("session", "detector_seconds", "From an append to its verdict.", FAST_SECONDS)
SESSION_STALE = counter("session", "stale_drops", "Stage outputs dropped as meaningless, by kind.", ["kind"])
SESSION_TOKENS = counter("session", "model_tokens", "Tokens that models told, by kind.", ["kind"])
SESSION_INPUT_AUDIO = counter("session", "input_audio_seconds", "Sound that sessions took in.", ["pipeline"])
SESSION_OUTPUT_AUDIO = counter("session", "output_audio_seconds", "Sound of ended responses.", ["pipeline"])
SESSION_RESPONSES = counter("session", "responses", "Ended responses, by outcome.", ["pipeline", "outcome"])
SESSION_INTERRUPTIONS = counter("session", "interruptions", "Answers stopped by speech.", ["pipeline"])
SESSION_ACCOUNTS = counter("session", "usage_accounts", "Accounts for `[usage] url`, by outcome.", ["outcome"])
SESSION_ACCOUNT_RETRIES = counter("session", "usage_retries", "Further attempts to send one of those.")
SESSION_ACCOUNTS_WAITING = gauge("session", "usage_waiting_sessions", "Accounts that are not sent yet.")
SESSION_CREDIT_WAITS = counter("session", "output_credit_waits", "Times that a session's output waited for credit.")
SESSION_HANDLE = histogram("session", "handle_seconds", "One command in the session core.", FAST_SECONDS)
SESSION_FIRST_AUDIO = histogram(
    "session",
    "first_audio_seconds",
    "From the end of the user's turn to the first audio.",
    SPOKEN_SECONDS,
    ["pipeline"],
)
SESSION_BARGE_IN = histogram(
    "session", "barge_in_seconds", "From the speech that interrupts to the cancelled response.", SPOKEN_SECONDS
)
SESSION_UNIT_LAG = histogram(
    "session", "unit_lag_seconds", "How far units are behind real time.", SPOKEN_SECONDS, ["pipeline"]
)
SESSION_LATE_ACKS = counter("session", "late_acks", "Playback acknowledgements that changed nothing.")
SESSION_KEPT = counter("session", "kept_events", "Events that gateways could not journal, by what came.", ["outcome"])
SESSION_ADOPTIONS = counter("session", "adoptions", "Sessions taken over, by what came of it.", ["outcome"])
SESSION_ADOPTION = histogram("session", "adoption_seconds", "From the decision to a restored session.", FAST_SECONDS)
SESSION_HAND_OVERS = counter("session", "hand_overs", "Sessions given to another shard, by what came.", ["outcome"])
SESSION_DRAINS = counter("session", "drains", "Times that this shard began to hand its sessions over.")
SESSION_OWNER_LOST = counter("session", "owner_lost", "Sessions found to belong to another shard.")
SESSION_CHECKPOINT_BYTES = histogram("session", "checkpoint_bytes", "Size of a checkpoint.", SIZE_BYTES)
SESSION_CHECKPOINT_LATENCY = histogram(
    "session", "checkpoint_seconds", "From a checkpoint to its confirmation.", FAST_SECONDS
)
SESSION_POISON = counter("session", "poison_units", "Sessions closed because a unit was in flight at two deaths.")
SESSION_CORE_FAULTS = counter("session", "core_faults", "Faults of ours in a session, by what came of it.", ["result"])

SESSION_MOVED = counter("session", "moved", "Sessions that left a draining worker, by how.", ["how"])
SESSION_MOVES_FAILED = counter("session", "failed_moves", "Attempts to move with a model's state, by end.", ["reason"])
SESSION_REBUILDS = counter("session", "rebuilds", "Lost contexts given to new stages.", ["kind", "outcome"])
SESSION_REBUILD = histogram("session", "rebuild_seconds", "From open stages to a rebuilt context.", SPOKEN_SECONDS)
SESSION_REBUILD_UNITS = counter("session", "rebuild_units", "Units replayed to rebuild contexts.")
SESSION_INPUT_RECORDED = counter("session", "input_recorded_units", "Units of input kept for rebuilds.")
SESSION_INPUT_UNRECORDED = counter(
    "session", "input_unrecorded_units", "Such units forgotten because the store did not take them."
)
SESSION_CHAT_TURNS = counter("session", "chat_turns", "Chat turns that ended here, by result.", ["result"])
SESSION_CHAT_SLOTS = gauge("session", "chat_used_slots", "Chat turns under way.", ["pipeline"])

# -- stage worker ----------------------------------------------------------------------------------------

WORKER_SLOTS_USED = gauge("worker", "used_slots", "Slots taken.", ["pipeline", "stage"])
WORKER_SLOTS = gauge("worker", "total_slots", "Slots there are.", ["pipeline", "stage"])
WORKER_STATE_BYTES = gauge("worker", "state_bytes", "Model state held for sessions.", ["pipeline", "stage"])
WORKER_KV_TOKENS = gauge(
    "worker", "kv_tokens", "Tokens of sessions in a language model's cache.", ["pipeline", "stage"]
)
WORKER_QUEUE = histogram("worker", "queue_seconds", "A unit's wait for its step.", FAST_SECONDS, ["pipeline", "stage"])
WORKER_COMPUTE = histogram("worker", "compute_seconds", "One step of a stage.", FAST_SECONDS, ["pipeline", "stage"])
WORKER_BATCH = histogram("worker", "batch_units", "Units in one step.", BATCHES, ["pipeline", "stage"])
WORKER_UNITS = counter("worker", "units", "Units consumed.", ["pipeline", "stage"])
WORKER_REPLAYED = counter(
    "worker", "replayed_units", "Units consumed again, to rebuild a lost context.", ["pipeline", "stage"]
)
WORKER_FAILED = counter("worker", "failed_units", "Units that failed, by code.", ["pipeline", "stage", "code"])
WORKER_DEADLINES = counter("worker", "missed_deadlines", "Units past their deadline.", ["pipeline", "stage"])
WORKER_STALE = counter("worker", "stale_drops", "Units and outputs dropped as meaningless, by kind.", ["kind"])
WORKER_REFUSED = counter("worker", "opens_refused", "Sessions refused, by reason.", ["pipeline", "reason"])
WORKER_EXPORTS = counter("worker", "exports", "States of sessions asked for, by what came.", ["pipeline", "outcome"])
WORKER_ORPHANS = counter("worker", "orphan_slots_freed", "Slots freed because their shard was lost.")
WORKER_OUTPUT_PENDING = gauge("worker", "pending_output_bytes", "Output waiting for the credit of a shard.", ["peer"])
WORKER_OUTPUT_FULL = counter("worker", "pending_output_full", "Sessions failed because that output was too much.")

WORKER_UPSTREAM_LINKS = gauge("worker", "upstream_links", "Open sessions on upstream realtime servers.", ["pipeline"])
WORKER_UPSTREAM_ENDED = counter(
    "worker", "upstream_ended", "Upstream connections that ended, by what came of it.", ["pipeline", "reason"]
)
WORKER_UPSTREAM_ERRORS = counter(
    "worker", "upstream_errors", "Errors that upstream servers told.", ["pipeline", "code"]
)
WORKER_UPSTREAM_STALE = counter(
    "worker", "upstream_stale", "Upstream events dropped: of a cancelled or unknown response.", ["pipeline"]
)
WORKER_UPSTREAM_FULL = counter(
    "worker", "upstream_full", "Times that the bound of a way to or from upstream was met.", ["pipeline", "way"]
)

WORKER_TURN_REQUESTS = counter(
    "worker", "turn_requests", "Answers asked of a chat server, by what came of it.", ["pipeline", "result"]
)
WORKER_TURN_WAITS = counter(
    "worker", "turn_waits", "Times that an answer was not read on because too much of it waited.", ["pipeline"]
)
WORKER_VLLM_APPENDS = counter(
    "worker", "vllm_appends", "Appends to vLLM's requests, by what came of them.", ["model", "result"]
)
WORKER_VLLM_REOPENED = counter(
    "worker", "vllm_reopened", "Requests of vLLM opened anew with what a session had in one that was lost.", ["model"]
)
WORKER_TURN_CUTS = counter(
    "worker", "turn_cuts", "Times that sound or turns left a conversation because of its bounds.", ["pipeline"]
)

# -- every process ---------------------------------------------------------------------------------------

PROCESS_LOOP_LAG = histogram("process", "loop_lag_seconds", "How late the event loop's timer is.", FAST_SECONDS)
PROCESS_STALLS = counter("process", "loop_stalls", "Gaps of the event loop longer than a second.")
PROCESS_RSS = gauge("process", "resident_bytes", "Resident memory.")
PROCESS_RSS.set_function(rss_bytes)
PROCESS_CPU = gauge("process", "cpu_seconds", "User and system time since the start.")
PROCESS_CPU.set_function(cpu_seconds)
PROCESS_UP_SINCE = gauge("process", "start_time_seconds", "When this process started, since the epoch.")
PROCESS_INFO = gauge("process", "info_ratio", "1, with what this process is.", ["kind", "name", "incarnation"])
