"""ChatTurn: one turn that belongs to no session, carried out by a session machine that nobody owns or stores.

Rule 1. The machine is the session core itself, so a chat turn hears, answers and fails as a session does. What
        durability and delivery would answer is answered at once: there is no journal, no checkpoint, no resume.
Rule 2. It takes the stages' slots and gives them back when its response is over, however it ends.
Rule 3. Bounded: in time (`TURN_S`), and in what waits for the gateway's credit (`MAX_WAITING_BYTES`).
Rule 4. A fault of ours in here ends this turn with `internal_error`, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from duologue.bus.link import Link
from duologue.bus.messages import TurnEvents
from duologue.fence import CommandNo, DeliveryId
from duologue.protocol.duplex import DuplexCommand
from duologue.protocol.realtime.dialect import Dialect
from duologue.protocol.realtime.errors import RealtimeProtocolError
from duologue.session.binding import StageBinding
from duologue.session.core import commands as facts
from duologue.session.core import effects as orders
from duologue.session.offload import OffloadPool
from duologue.session.port import SessionMachine
from duologue.session.refusals import refused

_log = logging.getLogger("duologue.session")

TURN_S: Final = 120.0
"""The longest that a turn may take."""
MAX_WAITING_BYTES: Final = 4 * 1024 * 1024
OWNER: Final = 1
"""A turn has an id of its own and one life: no other owner can ever be."""

_TOLD: Final = frozenset(
    {
        "response.output_audio.delta",
        "response.output_audio_transcript.delta",
        "response.output_text.delta",
        "response.output_item.done",
        "response.done",
        "error",
    }
)
"""The events that say something of an answer; the rest is a session's own business."""


class _Event(msgspec.Struct, gc=False):
    type: str


_type_of = msgspec.json.Decoder(_Event).decode


class ChatTurn:
    """See the module. `ended` is called once, with how: completed, failed, cancelled, or an error's code."""

    def __init__(
        self,
        turn_id: str,
        pipeline: str,
        link: Link,
        machine: SessionMachine,
        *,
        binding: StageBinding,
        offload: OffloadPool,
        ended: Callable[[ChatTurn, str], None],
        turn_s: float = TURN_S,
    ) -> None:
        self.turn_id = turn_id
        self.pipeline = pipeline
        self.link = link
        self._machine = machine
        self._binding = binding
        self._offload = offload
        self._ended = ended
        self._mailbox: deque[facts.SessionCommand] = deque()
        self._commands: deque[DuplexCommand] = deque()
        self._told: list[bytes] = []
        self._waiting: deque[bytes] = deque()
        """Events that the link has no credit for."""
        self._waiting_bytes = 0
        self._delivered = self._acknowledged = 0
        self._applied = 0
        self._open_responses = 0
        self._answered = False
        self._result = ""
        """Not empty: the turn is over, and how."""
        self._busy = False
        self.finished = False
        self._loop = asyncio.get_running_loop()
        self._opened_at = self._loop.time()
        self._alarm: asyncio.TimerHandle | None = None
        self._limit = self._loop.call_later(turn_s, self.fail, "timeout", "the turn took too long")

    # -- in --------------------------------------------------------------------------------------------

    def start(self, first: Sequence[orders.SessionEffect], commands: Sequence[DuplexCommand]) -> None:
        """Perform what opening the machine asked for, then give it the commands one after the other."""
        self._commands.extend(commands)
        self._busy = True
        self._perform_all(first)
        self._work_off()

    def post(self, fact: facts.SessionCommand) -> None:
        """One fact, in order. Never raises."""
        if self._result:
            return
        self._mailbox.append(fact)  # bounded by what the stages may have under way
        if not self._busy:
            self._busy = True
            self._work_off()

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self._result = self._result or "cancelled"
        self._finish()

    def fail(self, code: str, message: str) -> None:
        """End it with an error. The error needs no credit; what still waits for credit is dropped with it."""
        if self.finished:
            return
        error = RealtimeProtocolError(code, message)
        self.link.send(*refused(self.turn_id, error, Dialect.openai.value))
        self._result = code
        self._finish()

    def on_credit(self) -> None:
        if not self.finished and (self._waiting or self._result):
            self._hand_over()

    # -- the machine -------------------------------------------------------------------------------------

    def _work_off(self) -> None:
        while not self._result:
            if self._mailbox:
                self._step(self._mailbox.popleft())
            elif self._commands:
                self._applied += 1
                self._step(facts.FromClient(CommandNo(1, self._applied), self._commands.popleft()))
            else:
                break
        self._busy = False
        if self._answered and not self._open_responses:
            self._result = self._result or "completed"
        if self.finished:
            return
        self._arm()
        self._hand_over()

    def _step(self, fact: facts.SessionCommand) -> None:
        try:
            effects = self._machine.handle(fact, self._loop.time() - self._opened_at)
        except Exception as error:
            return self._break(error)
        self._perform_all(effects)

    def _perform_all(self, effects: Sequence[orders.SessionEffect]) -> None:
        try:
            for effect in effects:
                if self.finished:
                    return
                self._perform(effect)
        except Exception as error:
            self._break(error)
        if self._delivered > self._acknowledged:
            self._acknowledged = self._delivered
            self._mailbox.append(facts.Delivered(DeliveryId(OWNER, self._delivered)))

    def _break(self, error: Exception) -> None:
        _log.error("chat turn %s is broken and ends", self.turn_id, exc_info=error)
        self.fail("internal_error", "the turn failed")

    def _perform(self, effect: orders.SessionEffect) -> None:
        match effect:
            case orders.Deliver():
                self._deliver(effect)
            case orders.Submit():
                self._binding.submit(effect)
            case orders.Checkpoint():
                self._mailbox.append(facts.Covered(effect.number))
            case orders.Abort():
                self._binding.abort(effect)
            case orders.ControlStage():
                self._binding.control(effect)
            case orders.OpenStages():
                self._binding.open(effect)
            case orders.CloseStages():
                self._binding.close(effect.fence)
            case orders.Offload():
                self._offload_job(effect)
            case orders.TellFault():
                _log.error("chat turn %s met a fault: %s", self.turn_id, effect.where)
            case orders.Close():
                if not self._result:
                    self.fail("engine_error", f"the turn was closed: {effect.reason}")
            case _:  # it detects no turns, and what is handed over is not taken back
                pass

    def _offload_job(self, effect: orders.Offload) -> None:
        ticket = effect.ticket
        self._offload.submit(
            effect.kind, effect.body, lambda result, error: self.post(facts.Offloaded(ticket, result, error))
        )

    # -- out ---------------------------------------------------------------------------------------------

    def _deliver(self, event: orders.Deliver) -> None:
        self._delivered = event.n
        if self._result:
            return
        kind = _type_of(event.body).type
        if kind == "response.created":
            self._open_responses += 1
        if kind not in _TOLD:
            return
        self._told.append(event.body)
        if kind == "response.done":  # calls of functions follow in the same turn of the machine
            self._open_responses -= 1
            self._answered = True
        elif kind == "error" and not self._open_responses:
            self._result = "failed"

    def _hand_over(self) -> None:
        """Everything told so far, in order, as far as there is credit."""
        self._waiting.extend(self._told)
        self._waiting_bytes += sum(map(len, self._told))
        self._told.clear()
        over = bool(self._result)
        if not self._waiting and not over:
            return
        batch = tuple(self._waiting)
        if self.link.send(TurnEvents(self.turn_id, over), batch):
            self._waiting.clear()
            self._waiting_bytes = 0
            if over:
                self._finish()
        elif self._waiting_bytes > MAX_WAITING_BYTES:
            self.fail("output_backpressure", "the answer is not taken fast enough")
        elif over:
            self._let_go()

    # -- time and the end ------------------------------------------------------------------------------------

    def _arm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        deadline = None if self._result else self._machine.next_deadline()
        if deadline is not None:
            self._alarm = self._loop.call_at(self._opened_at + deadline + 0.001, self.post, facts.Tick())

    def _let_go(self) -> None:
        """The stages are free for others; what was said may still wait for credit."""
        self._mailbox.clear()
        self._commands.clear()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._binding.close()

    def _finish(self) -> None:
        if self.finished:
            return
        self.finished = True
        self._limit.cancel()
        self._let_go()
        self._waiting.clear()
        self._ended(self, self._result)
