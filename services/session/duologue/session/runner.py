"""DuplexSessionRunner: one session's machine, its mailbox, its timer, and what performs its effects.

Rule 1. A fact that meets an idle runner is handled at once, in the loop turn that brought it; one that comes
        while effects are performed waits in the mailbox. No task, no re-entrance.
Rule 2. Effects are performed in order. Rendered events of one turn leave as one message.
Rule 3. One alarm, for the machine's next deadline. A deadline that moved back is found out when the alarm
        comes: nothing is set anew for it. One that is met late because this process stood still waits until what had
        come meanwhile is read: an answer of the store may be among it, and nobody is judged by what we missed.
Rule 4. A fault of ours in here ends this session with `internal_error`, and no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from math import inf
from time import perf_counter
from typing import Final, assert_never

from duologue.fence import DeliveryId, Owner
from duologue.protocol.realtime.errors import RealtimeProtocolError
from duologue.session.binding import StageBinding
from duologue.session.checkpoints import Checkpointer
from duologue.session.clockwork import Alarm, Clockwork
from duologue.session.core import commands as facts
from duologue.session.core import effects as orders
from duologue.session.detector import FAILED, SpeechDetector
from duologue.session.input_tape import InputTape
from duologue.session.mailbox import MAX_FACTS, Mailbox, Taken
from duologue.session.offload import OffloadPool
from duologue.session.output import SessionOutput
from duologue.session.port import SessionMachine
from duologue.session.recorder import SessionRecorder
from duologue.session.refusals import INTERNAL, render_error
from duologue.session.tallies import SAMPLE, Tallies

_log = logging.getLogger("duologue.session")

_TIMER_MARGIN_S: Final = 0.001
"""uvloop counts whole milliseconds and may be half of one early; a tick that comes early does nothing."""

LATE_S: Final = 0.1
"""So long after its deadline a tick is late by our own fault."""
CATCH_UP_S: Final = 0.03

_FAULT: Final = "internal_error"

CLOSE_TIMEOUT_S: Final = 5.0
"""How long the terminal event may wait for its acknowledgement."""


class DuplexSessionRunner:
    """See the module. `ended` is called once, when nothing of the session is left to do here."""

    __slots__ = (
        "_alarm",
        "_binding",
        "_broken",
        "_busy",
        "_checkpointer",
        "_clockwork",
        "_close_timer",
        "_detector",
        "_dialect",
        "_ended",
        "_excused",
        "_held",
        "_loop",
        "_machine",
        "_mailbox",
        "_offload",
        "_opened_at",
        "_output",
        "_recorder",
        "_tape",
        "_tallies",
        "_until_sample",
        "closing",
        "finished",
        "owner",
        "session_id",
        "turned",
    )

    def __init__(
        self,
        session_id: str,
        owner: Owner,
        dialect: str,
        machine: SessionMachine,
        *,
        output: SessionOutput,
        binding: StageBinding,
        checkpointer: Checkpointer,
        offload: OffloadPool,
        detector: SpeechDetector | None = None,
        ended: Callable[[str], None],
        tallies: Tallies,
        recorder: SessionRecorder | None = None,
        tape: InputTape | None = None,
        mailbox: Mailbox | None = None,
        clockwork: Clockwork | None = None,
    ) -> None:
        self.session_id = session_id
        self.owner = owner
        self.closing = ""
        """Not empty: the session is over for this reason, and waits for its last acknowledgement."""
        self.finished = False
        self.turned: Callable[[], None] | None = None
        """Called after facts were handled: for whoever waits for a state of the machine."""
        self._dialect = dialect
        self._machine = machine
        self._output = output
        self._binding = binding
        self._checkpointer = checkpointer
        self._offload = offload
        self._detector = detector
        self._ended = ended
        self._tallies = tallies
        self._until_sample = SAMPLE
        self._recorder = recorder
        self._tape = tape
        self._mailbox = Mailbox() if mailbox is None else mailbox
        self._broken = False
        self._held: deque[facts.SessionCommand] | None = None
        """Not None: the session is being handed over, and these came meanwhile."""
        self._busy = False
        self._loop = asyncio.get_running_loop()
        self._opened_at = self._loop.time()
        self._clockwork = Clockwork(0.0) if clockwork is None else clockwork
        self._alarm: Alarm | None = None
        self._excused = -inf
        """The last deadline that was met late and waits for what had come meanwhile, or has waited."""
        self._close_timer: asyncio.TimerHandle | None = None

    @property
    def machine(self) -> SessionMachine:
        return self._machine

    @property
    def output(self) -> SessionOutput:
        return self._output

    @property
    def binding(self) -> StageBinding:
        return self._binding

    @property
    def checkpointer(self) -> Checkpointer:
        return self._checkpointer

    @property
    def waiting(self) -> int:
        """Facts in the mailbox."""
        return len(self._mailbox)

    # -- in --------------------------------------------------------------------------------------------

    def start(self, first: list[orders.SessionEffect], elapsed_s: float = 0.0) -> None:
        """Perform what opening the machine asked for, and what comes of it. Session time begins, or goes on after
        `elapsed_s`."""
        self._opened_at = self._loop.time() - elapsed_s
        self._busy = True
        try:
            for effect in first:
                self._perform(effect)
        except Exception as error:
            self._break(error)
        self._work_off(self._loop.time())

    def post(self, fact: facts.SessionCommand) -> None:
        """One fact, in order. Never raises."""
        if self.finished or self._broken:
            return
        if self._held is not None:
            self._held.append(fact)  # the newest: what else falls out is sent again, or past
            return
        if self._busy:
            self._keep(fact)
            return
        self._busy = True
        self._work_off(self._step(fact))

    def hold(self) -> orders.Checkpoint:
        """Handle nothing more, and say with what an heir may go on."""
        self._held = deque(maxlen=MAX_FACTS)
        return self._machine.last_words()

    async def flush_input(self) -> None:
        """Have the store take what the stages have heard, for an heir that rebuilds. Raises StoreUnavailable."""
        if self._tape is not None:
            await self._tape.flush()

    def go_on(self) -> None:
        """The session stays here: what came meanwhile is handled now."""
        held, self._held = self._held or (), None
        for fact in held:
            self.post(fact)

    def _keep(self, fact: facts.SessionCommand) -> None:
        taken = self._mailbox.put(fact)
        if taken is Taken.YES:
            return
        self._tallies.shed += 1
        if taken is Taken.SHED and isinstance(fact, facts.FromClient):
            fact = facts.InputRefused(
                fact.command.event_id, "input_backpressure", "too much input is waiting", 1000, fact.no, "audio"
            )
            if self._mailbox.put(fact) is Taken.YES:
                return
        self._break(RuntimeError("the mailbox is full"))

    def _step(self, fact: facts.SessionCommand) -> float:
        """Have the machine handle one fact; the loop's time at which it did."""
        at = self._loop.time()
        now = at - self._opened_at
        if self._recorder is not None:
            self._recorder.record(fact, now)
        self._until_sample -= 1
        try:
            if self._until_sample:
                effects = self._machine.handle(fact, now)
            else:
                self._until_sample = SAMPLE
                started_at = perf_counter()
                effects = self._machine.handle(fact, now)
                self._tallies.handle_s(perf_counter() - started_at)
            for effect in effects:
                self._perform(effect)
        except Exception as error:
            self._break(error)
        return at

    def _work_off(self, at: float) -> None:
        """Everything in the mailbox, then what is due at the end of a turn; its last step was taken at `at`."""
        mailbox = self._mailbox
        while mailbox and not self._broken:
            at = self._step(mailbox.take())
        self._busy = False
        if self.finished:
            return
        self._output.flush()
        self._arm(self._machine.next_deadline())
        if self.turned is not None:
            self.turned()
        if self._clockwork.next <= at:
            self._clockwork.run_due(at)

    # -- effects ---------------------------------------------------------------------------------------

    def _perform(self, effect: orders.SessionEffect) -> None:
        if self.closing and not isinstance(effect, orders.Deliver | orders.CloseStages):
            return
        match effect:
            case orders.Deliver():
                self._output.add(effect)
            case orders.Submit():
                self._binding.submit(effect)
            case orders.Checkpoint():
                self._checkpointer.put(effect)
            case orders.RecordInput():
                if self._tape is not None:
                    self._tape.record(effect)
            case orders.RecallInput():
                self._recall(effect)
            case orders.Abort():
                self._binding.abort(effect)
            case orders.Invalidate():
                self._output.invalidate(effect.response_id, effect.through_epoch)
            case orders.ControlStage():
                self._binding.control(effect)
            case orders.OpenStages():
                self._binding.open(effect)
            case orders.CloseStages():
                self._binding.close(effect.fence)
            case orders.Offload():
                self._offload_job(effect)
            case orders.Detect():
                self._detect(effect)
            case orders.JudgeTurn():
                self._judge_turn(effect)
            case orders.TellFault():
                _log.error("session %s met a fault and was restored: %s", self.session_id, effect.where)
            case orders.Close():
                self._close(effect.reason)
            case _:
                assert_never(effect)

    def _offload_job(self, effect: orders.Offload) -> None:
        ticket = effect.ticket
        self._offload.submit(
            effect.kind, effect.body, lambda result, error: self.post(facts.Offloaded(ticket, result, error))
        )

    def _recall(self, effect: orders.RecallInput) -> None:
        if self._tape is None:
            self._loop.call_soon(self.post, facts.InputRecalled(effect.ticket, error="not_recorded"))
        else:
            self._tape.recall(effect)

    def _detect(self, effect: orders.Detect) -> None:
        def answer(state: bytes, probabilities: tuple[float, ...], error: str) -> None:
            self.post(facts.Detected(effect.ticket, state, probabilities, error))

        if self._detector is None:
            self._loop.call_soon(answer, b"", (), FAILED)
        else:
            self._detector.detect(effect.state, effect.sound, answer)

    def _judge_turn(self, effect: orders.JudgeTurn) -> None:
        if self._detector is not None:  # unanswered, the pause lasts for its maximum
            self._detector.judge(
                effect.sound, lambda finished, error: self.post(facts.TurnJudged(effect.ticket, finished, error))
            )

    def _close(self, reason: str) -> None:
        """The terminal event is out: free the stages now, the rest when it has arrived."""
        if self.closing:
            return
        self.closing = reason
        if reason == _FAULT:
            _log.error("session %s failed; its story: %s", self.session_id, self._machine.story)
            if self._output.end is None:
                self._tell_fault()
        self._checkpointer.stop()
        if self._tape is not None:
            self._tape.stop()
        self._binding.close()
        self._close_timer = self._loop.call_later(CLOSE_TIMEOUT_S, self.finish)

    # -- out -------------------------------------------------------------------------------------------

    def delivered(self, through: DeliveryId) -> None:
        """Events through this one are on a socket, or in the journal."""
        self._output.acknowledged(through)
        self.post(facts.Delivered(through))
        if self.closing and not self._output.pending:
            self.finish()

    # -- time ------------------------------------------------------------------------------------------

    def _arm(self, deadline: float | None) -> None:
        """Have an alarm at the machine's next deadline, or before."""
        if deadline is None:
            return
        when = self._opened_at + deadline + _TIMER_MARGIN_S
        alarm = self._alarm
        if alarm is not None:
            if alarm.when <= when or deadline == self._excused:
                return
            alarm.cancel()
        self._alarm = self._clockwork.at(when, self._fire)

    def _fire(self) -> None:
        self._alarm = None
        if self.finished:
            return
        deadline, now = self._machine.next_deadline(), self._loop.time()
        if deadline is not None and self._opened_at + deadline <= now:
            if now > self._opened_at + deadline + LATE_S and self._excused < deadline:
                self._excused = deadline
                self._alarm = self._clockwork.at(now + CATCH_UP_S, self._fire)
                return
            self.post(facts.Tick())
        else:
            self._arm(deadline)

    # -- the end ---------------------------------------------------------------------------------------

    def _break(self, error: Exception) -> None:
        """A fault of ours: the client is told, and the session ends."""
        _log.error("session %s is broken and ends", self.session_id, exc_info=error)
        self._broken = True
        self._tallies.broken += 1
        self._mailbox.clear()
        if self.closing:
            return
        self._close(_FAULT)
        self._loop.call_soon(self._output.flush)

    def _tell_fault(self) -> None:
        """The terminal event that the core did not come to."""
        told = RealtimeProtocolError(_FAULT, "the session failed and is closed")
        body = render_error(told, self._dialect)
        n = self._output.last_n + 1
        self._output.add(orders.Deliver(n, body, close_code=INTERNAL, close_reason=_FAULT))

    def finish(self) -> None:
        """Let go of everything. Idempotent; tells the manager."""
        if self.finished:
            return
        self.finished = True
        self.turned = None
        for waiting in (self._alarm, self._close_timer):
            if waiting is not None:
                waiting.cancel()
        self._mailbox.clear()
        self._checkpointer.stop()
        if self._tape is not None:
            self._tape.stop()
        self._output.point_at(None)
        if self._recorder is not None:
            self._recorder.close()
        self._ended(self.closing)
