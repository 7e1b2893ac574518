"""The shard's metrics: counted as plain integers where things happen, told to the registry at each scrape.

Rule 1. Nothing here runs on the way of a unit.
Rule 2. Label children are made once, when the label is first seen; labels are reasons and pipelines only.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from prometheus_client import Counter

from duologue.runtime import metrics
from duologue.runtime.metric_registry import render
from duologue.session.core.engine_session import Totals as Used

if TYPE_CHECKING:
    from duologue.session.shard import Shard

REBUILD_OUTCOMES: Final = ("done", "empty", "cut_short", "failed", "lost", "store_away")
"""Shown from the start; others are as rare as an unreadable entry in the store."""
ADOPTIONS: Final = (
    *("adopted", "taken_up", "taken", "gone", "full", "store_away", "unreadable", "not_served"),
    *("newer_version", "too_many", "failed", "gap"),
)
HAND_OVERS: Final = ("handed_over", "store_away", "refused", "no_reader")
PROCESSES: Final = ("session", "bus", "store", "process")


class Total:
    """A prometheus counter that follows one of ours."""

    __slots__ = ("_child", "_told")

    def __init__(self, child: Counter) -> None:
        self._child = child
        self._told = 0.0

    def follow(self, value: float) -> None:
        if value > self._told:
            self._child.inc(value - self._told)
            self._told = value


class Totals:
    """The same for a tally by one label. `known`: shown at 0 from the start, so that the first one is a rise."""

    def __init__(self, counter: Counter, known: Sequence[str] = ()) -> None:
        self._counter = counter
        self._children = {label: Total(counter.labels(label)) for label in known}

    def follow(self, tally: Mapping[str, int]) -> None:
        for label, value in tally.items():
            child = self._children.get(label)
            if child is None:
                child = self._children[label] = Total(self._counter.labels(label))
            child.follow(value)


class PipelineUsage:
    """What the sessions of one pipeline came to."""

    def __init__(self, pipeline: str) -> None:
        self._input_s = Total(metrics.SESSION_INPUT_AUDIO.labels(pipeline))
        self._output_s = Total(metrics.SESSION_OUTPUT_AUDIO.labels(pipeline))
        self._interruptions = Total(metrics.SESSION_INTERRUPTIONS.labels(pipeline))
        self._responses = {
            outcome: Total(metrics.SESSION_RESPONSES.labels(pipeline, outcome))
            for outcome in ("completed", "cancelled", "failed")
        }

    def follow(self, used: Used) -> None:
        self._input_s.follow(used.input_ms / 1000)
        self._output_s.follow(used.output_ms / 1000)
        self._interruptions.follow(used.interruptions)
        self._responses["completed"].follow(used.responses - used.cancelled - used.failed)
        self._responses["cancelled"].follow(used.cancelled)
        self._responses["failed"].follow(used.failed)


class Meters:
    """Reads one shard. Used from the loop's thread."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._refused = Totals(metrics.SESSION_REFUSED)
        self._ended = Totals(metrics.SESSION_ENDED)
        self._stale = Totals(metrics.SESSION_STALE)
        self._hand_overs = Totals(metrics.SESSION_HAND_OVERS, HAND_OVERS)
        self._drains = Total(metrics.SESSION_DRAINS)
        self._moved = Totals(metrics.SESSION_MOVED, ("state", "rebuild", "deadline"))
        self._moves_failed = Totals(metrics.SESSION_MOVES_FAILED)
        self._adoptions = Totals(metrics.SESSION_ADOPTIONS, ADOPTIONS)
        self._chat = Totals(metrics.SESSION_CHAT_TURNS)
        self._rejected = Total(metrics.SESSION_INPUT_REJECTED)
        self._shed = Total(metrics.SESSION_MAILBOX_FULL)
        self._owner_lost = Total(metrics.SESSION_OWNER_LOST)
        self._waits = Total(metrics.SESSION_CREDIT_WAITS)
        self._stage_full = Total(metrics.SESSION_STAGE_FULL)
        self._offload_full = Total(metrics.SESSION_OFFLOAD_FULL)
        self._frames = Total(metrics.SESSION_DETECTOR_FRAMES)
        self._detector_full = Total(metrics.SESSION_DETECTOR_FULL)
        self._turn_model_full = Total(metrics.SESSION_TURN_MODEL_FULL)
        self._releases_lost = Total(metrics.SESSION_RELEASES_LOST)
        self._unpaced = Total(metrics.SESSION_UNPACED)
        self._uncovered = Total(metrics.SESSION_UNCOVERED)
        self._told_beyond = Total(metrics.SESSION_TOLD_BEYOND)
        self._poison = Total(metrics.SESSION_POISON)
        self._purged = Total(metrics.SESSION_PURGED)
        self._late_acks = Total(metrics.SESSION_LATE_ACKS)
        self._overflows = Totals(metrics.SESSION_OUTPUT_OVERFLOWS, ("close", "fail_response"))
        self._faults = Totals(metrics.SESSION_CORE_FAULTS, ("restored", "closed", "broken"))
        self._tokens = Totals(metrics.SESSION_TOKENS, ("input_text_tokens", "output_text_tokens"))
        self._usage = {pipeline.name: PipelineUsage(pipeline.name) for pipeline in shard.pipelines}
        self._accounts = Totals(metrics.SESSION_ACCOUNTS, ("sent", "dropped", "given_up"))
        self._account_retries = Total(metrics.SESSION_ACCOUNT_RETRIES)
        self._rebuilds = {
            (kind, outcome): Total(metrics.SESSION_REBUILDS.labels(kind, outcome))
            for kind in ("input", "history")
            for outcome in REBUILD_OUTCOMES
        }
        self._rebuild_units = Total(metrics.SESSION_REBUILD_UNITS)
        self._recorded = Total(metrics.SESSION_INPUT_RECORDED)
        self._unrecorded = Total(metrics.SESSION_INPUT_UNRECORDED)
        self._live = {
            (state, pipeline.name): metrics.SESSION_LIVE.labels(state, pipeline.name)
            for pipeline in shard.pipelines
            for state in ("attached", "detached", "closing")
        }
        metrics.PROCESS_UP_SINCE.set(time.time())
        metrics.PROCESS_INFO.labels("shard", shard.options.id, shard.incarnation).set(1)

    def render(self) -> bytes:
        """The text exposition of this process, as of now."""
        self._sessions()
        self._counts()
        self._observed()
        self._used()
        return render(PROCESSES)

    def _sessions(self) -> None:
        live: Tally[tuple[str, str]] = Tally()
        pending_input = events = size = 0
        for resident in self._shard.manager.residents:
            runner = resident.runner
            state = "attached" if resident.attachment.attached else "detached"
            live["closing" if runner.closing else state, resident.pipeline] += 1
            pending_input += runner.machine.pending_input_bytes
            events += runner.output.pending
            size += runner.output.pending_bytes
        for key, child in self._live.items():
            child.set(live[key])
        metrics.SESSION_INPUT_PENDING.set(pending_input)
        metrics.SESSION_OUTPUT_EVENTS.set(events)
        metrics.SESSION_OUTPUT_BYTES.set(size)

    def _counts(self) -> None:
        shard = self._shard
        admission, tallies = shard.admission, shard.tallies
        metrics.SESSION_ACCEPTING.set(admission.accepting)
        metrics.SESSION_HEADROOM.set(admission.headroom)
        metrics.SESSION_STANDBY.set(shard.options.standby)
        self._refused.follow(admission.refused)
        self._chat.follow(shard.chat.results)
        for pipeline in shard.pipelines:
            metrics.SESSION_CHAT_SLOTS.labels(pipeline.name).set(shard.chat.used(pipeline.name))
        self._ended.follow(shard.manager.ended)
        self._hand_overs.follow(shard.hand_over.outcomes)
        self._drains.follow(tallies.drains)
        self._adoptions.follow(shard.manager.inheritance.outcomes)
        self._owner_lost.follow(shard.manager.ended.get("owner_changed", 0))
        self._poison.follow(shard.manager.ended.get("poison_input", 0))
        self._stage_full.follow(shard.workers.queue_full)
        self._offload_full.follow(shard.offload.refused)
        if (detector := shard.detector) is not None:
            self._frames.follow(detector.frames)
            self._detector_full.follow(detector.full)
            self._turn_model_full.follow(detector.turns_refused)
        self._releases_lost.follow(shard.cleanup.given_up)
        self._shed.follow(tallies.shed)
        self._waits.follow(tallies.credit_waits)
        stale = Tally(tallies.stale)
        stale["late"] += shard.manager.late + shard.hub.late + shard.hub.moves.late
        self._moved.follow(shard.hub.moves.moved)
        self._moves_failed.follow(shard.hub.moves.failed)
        for resident in shard.manager.residents:
            stale.update(resident.runner.machine.stale)
        self._stale.follow(stale)

    def _used(self) -> None:
        """What sessions came to, by pipeline, and what became of their accounts."""
        used = dict(self._shard.tallies.totals)
        for resident in self._shard.manager.residents:
            used[resident.pipeline] = used.get(resident.pipeline, Used()).plus(resident.totals_here)
        for pipeline, meter in self._usage.items():
            meter.follow(used.get(pipeline, Used()))
        if (hook := self._shard.accounts.hook) is not None:
            self._accounts.follow(hook.outcomes)
            self._account_retries.follow(hook.retries)
            metrics.SESSION_ACCOUNTS_WAITING.set(len(hook))

    def _observed(self) -> None:
        """What the sessions measured of themselves, those that have ended included."""
        tallies = self._shard.tallies
        late_acks, purged, rejected, unpaced = tallies.late_acks, tallies.purged, tallies.rejected, tallies.unpaced
        uncovered, told_beyond = tallies.uncovered, tallies.told_beyond
        overflows, faults = Tally(tallies.overflows), Tally(tallies.faults)
        tokens = Tally(tallies.tokens)
        faults["broken"] += tallies.broken
        rebuilds, rebuild_units = Tally(tallies.rebuilds), tallies.rebuild_units
        for resident in self._shard.manager.residents:
            observed = resident.runner.machine.observed
            tallies.take(observed, resident.pipeline)
            late_acks += observed.late_acks
            purged += observed.purged
            rejected += observed.rejected
            unpaced += observed.unpaced
            uncovered += observed.uncovered
            told_beyond += observed.told_beyond
            overflows.update(observed.overflows)
            faults.update(observed.faults)
            tokens.update(observed.tokens)
            rebuilds.update(observed.rebuilds)
            rebuild_units += observed.rebuild_units
        self._late_acks.follow(late_acks)
        self._purged.follow(purged)
        self._rejected.follow(rejected)
        self._unpaced.follow(unpaced)
        self._uncovered.follow(uncovered)
        self._told_beyond.follow(told_beyond)
        self._overflows.follow(overflows)
        self._faults.follow(faults)
        self._tokens.follow(tokens)
        for labels, count in rebuilds.items():
            child = self._rebuilds.get(labels)
            if child is None:
                child = self._rebuilds[labels] = Total(metrics.SESSION_REBUILDS.labels(*labels))
            child.follow(count)
        self._rebuild_units.follow(rebuild_units)
        self._recorded.follow(tallies.input_recorded)
        self._unrecorded.follow(tallies.input_unrecorded)
