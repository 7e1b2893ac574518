"""One session's stages: which worker holds which, what is on its way there, and what they answer.

Rule 1. The core decides (open, submit, abort, close) and hears facts; nothing here interprets a unit.
Rule 2. What a worker's link has no credit for waits here, in order, at most `MAX_WAITING` messages; beyond
        it a unit fails with `stage_backpressure`.
Rule 3. A unit that still waits here when its epoch ends is dropped unread, as a worker would drop it.
Rule 4. Stages that a worker is drained of move with what they hold (`moving`), if they can; what is submitted to them
        waits here meanwhile, within the same bound.
Rule 5. Stages that were lost are opened again as soon as there are workers with room: the core is told that
        there are none only when the open timeout has passed. A session that was never open is refused at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from duologue.bus.link import Frame, Link
from duologue.bus.messages import (
    Abort,
    Aborted,
    AnyMessage,
    Append,
    CloseStages,
    Control,
    ExportRefused,
    ExportStages,
    ImportStages,
    OpenStages,
    Output,
    StagesExported,
    StagesOpened,
    StagesRefused,
    UnitFailed,
)
from duologue.fence import StageFence
from duologue.model.pipeline import PipelineSpec
from duologue.session.core import commands as facts
from duologue.session.core import effects as orders
from duologue.session.moving import MOVE_TIMEOUT_S, NOT_NOW, NOT_NOW_S, StageMove, StageMoves
from duologue.session.workers import StageWorkers, Worker

_log = logging.getLogger("duologue.session")

MAX_WAITING: Final = 256
OPEN_TIMEOUT_S: Final = 20.0
FIRST_BINDING: Final = 1

Post = Callable[[facts.SessionCommand], None]
_Waiting = tuple[AnyMessage, Sequence[Frame]]


class StageBinding:
    """See the module. `post` is set once, before anything is opened: where the facts go."""

    post: Post

    def __init__(
        self,
        session_id: str,
        pipeline: PipelineSpec,
        workers: StageWorkers,
        moves: StageMoves,
        open_timeout_s: float = OPEN_TIMEOUT_S,
    ) -> None:
        self.session_id = session_id
        self.pipeline = pipeline
        self._workers = workers
        self._moves = moves
        self._move: StageMove | None = None
        self._moved = 0
        """The binding of which stages have moved."""
        self._not_before = 0.0
        self._stays = 0
        """The binding whose stages do not move with what they hold any more: it came to nothing once."""
        self._open_timeout_s = open_timeout_s
        self._deadlines_ms = tuple(stage.deadline_ms for stage in pipeline.stages)
        self._fence = StageFence()
        self._leaving = 0
        """The binding that the core has been asked to give up."""
        self._held: tuple[Worker, ...] = ()
        self._links: tuple[Link, ...] = ()
        self._opening: dict[Link, None] = {}
        self._wanted: orders.OpenStages | None = None
        """An opening that waits for workers."""
        self._open_timer: asyncio.TimerHandle | None = None
        self._waiting: dict[Link, deque[_Waiting]] = {}

    @property
    def links(self) -> tuple[Link, ...]:
        """The link of each stage; empty while nothing is bound."""
        return self._links

    # -- what the core wants ---------------------------------------------------------------------------

    def open(self, order: orders.OpenStages) -> None:
        before = tuple(dict.fromkeys(self._links))
        old_fence = self._fence
        if self._leaving == old_fence.binding and before:
            self._moves.left("rebuild")
        self._let_go()
        self._fence = order.fence
        bound = self._bind(order)
        for link in before:
            if link not in self._links:
                link.send(CloseStages(self.session_id, old_fence))
        if not bound and order.fence.binding == FIRST_BINDING:
            return self.post(self._no_room(order.fence))
        self._wanted = None if bound else order
        loop = asyncio.get_running_loop()
        self._open_timer = loop.call_later(self._open_timeout_s, self._open_timed_out, order.fence)
        return None

    def leave(self, worker: Worker, *, at_once: bool) -> None:
        """A worker of this binding is being taken out of service: move what it holds, or bind anew at the next turn
        end, if there is room elsewhere; `at_once` whatever is being said."""
        if at_once:
            self._moves.left("deadline")
            self._lost("worker_drained", "the stage worker was taken out of service")
        elif self._move is None and self._leaving != self._fence.binding and not self._begin_move(worker):
            self._leave_at_turn_end()

    def _leave_at_turn_end(self) -> None:
        if self._workers.choose(self.pipeline) is not None:
            self._leaving = self._fence.binding
            self.post(facts.RebindWanted("worker_drained"))

    def retry(self) -> None:
        """There may be workers with room now."""
        if self._wanted is not None and self._bind(self._wanted):
            self._wanted = None

    def _bind(self, order: orders.OpenStages) -> bool:
        """Choose workers and have them open the stages. False: there is no room."""
        chosen = self._workers.choose(self.pipeline)
        if chosen is None:
            return False
        held = tuple(chosen[stage] for stage in range(len(self.pipeline.stages)))
        links = tuple(worker.link for worker in held if worker.link is not None)
        self._held = tuple(dict.fromkeys(held))
        for worker in self._held:
            self._count(worker, 1)
        self._links = links
        self._opening = dict.fromkeys(links)
        for link in dict.fromkeys(links):
            stages = tuple(stage for stage, of in enumerate(links) if of is link)
            message = OpenStages(self.session_id, order.fence, self.pipeline.name, stages)
            self._send(link, message, [order.configs[stage] for stage in stages])
        return True

    def submit(self, order: orders.Submit) -> None:
        stage = order.stage
        if not self._links:
            return  # the core has heard, or is about to hear, that they are lost
        message = Append(
            self.session_id,
            order.fence,
            stage,
            order.unit,
            order.turn_id,
            order.attempt,
            self._deadlines_ms[stage],
            order.urgent,
            replay=order.replay,
        )
        self._append(self._links[stage], message, (order.head, *order.frames))

    def abort(self, order: orders.Abort) -> None:
        move = self._end_move("cancelled")
        self._fence = order.fence
        dropped = self._forget_waiting(order.fence)
        message = Abort(self.session_id, order.fence)
        for link in dict.fromkeys(self._links):
            link.send(message)
        if move is not None:
            self.on_credit(move.source)
        if dropped:
            self.post(facts.UnitsAborted(order.fence, (), tuple(dropped)))

    def control(self, order: orders.ControlStage) -> None:
        if self._links:
            message = Control(self.session_id, order.fence, order.stage, order.kind)
            self._send(self._links[order.stage], message, [order.body])

    def close(self, fence: StageFence | None = None) -> None:
        """Free the slots of this binding (of `fence`) and of all before it. Idempotent."""
        message = CloseStages(self.session_id, fence or self._fence)
        for link in dict.fromkeys(self._links):
            link.send(message)
        self._let_go()

    # -- what the workers say --------------------------------------------------------------------------

    def on_output(self, link: Link, message: Output, frames: Sequence[bytes]) -> None:
        if self._moved and self._has_moved(link, message.fence, message.stage):
            return
        self.post(
            facts.StageOutput(
                message.fence,
                message.stage,
                message.to_stage,
                message.unit,
                message.turn_id,
                message.last,
                frames[0],
                tuple(frames[1:]),
            )
        )

    def on_opened(self, link: Link, message: StagesOpened) -> None:
        move = self._move
        if move is not None and move.importing and link is move.target and message.fence == self._fence:
            self._go_on_at_heir(move)
            return
        if message.fence != self._fence or link not in self._opening:
            return
        del self._opening[link]
        if not self._opening:
            self._stop_open_timer()
            self.post(facts.StagesReady(message.fence))

    def on_refused(self, link: Link, message: StagesRefused) -> None:
        move = self._move
        if move is not None and move.importing and link is move.target and message.fence == self._fence:
            self._stay(f"import_{message.code}", message.message)
            return
        if message.fence != self._fence or link not in self._opening:
            return
        if message.code in ("resource_exhausted", "worker_drained"):
            self._workers.had_no_room(link, self.pipeline)
        self._lost(message.code, message.message, refused=True)

    def on_failed(self, link: Link, message: UnitFailed) -> None:
        if self._moved and self._has_moved(link, message.fence, message.stage):
            return
        self.post(
            facts.StageFailed(
                message.fence, message.stage, message.unit, message.code, message.message, message.retryable
            )
        )

    def on_aborted(self, message: Aborted) -> None:
        self.post(facts.UnitsAborted(message.fence, message.consumed, message.dropped))

    def on_exported(self, link: Link, message: StagesExported, frames: Sequence[bytes]) -> None:
        """What the old worker held: the heir is to go on with it."""
        move = self._asked(link, message.ticket)
        if move is None or move.importing:
            return
        if message.stages != move.stages or len(frames) != len(message.stages):
            self._stay("malformed", "another set of stages was exported than there is")
            return
        move.importing = True
        wanted = ImportStages(self.session_id, self._fence, self.pipeline.name, move.stages)
        if not move.target.send(wanted, frames):
            self._stay("no_credit", "the heir takes nothing now")

    def on_export_refused(self, link: Link, message: ExportRefused) -> None:
        if self._asked(link, message.ticket) is not None:
            self._stay(message.code, message.message)

    def on_worker_lost(self, link: Link, reason: str) -> None:
        """The link of one of this session's workers is gone."""
        if link in self._links:
            self._lost("worker_lost", f"a stage worker was lost ({reason})")
        else:
            self._stay("heir_lost", reason)

    def reaches(self, link: Link) -> bool:
        """A worker of this session, or of one that it moves to, is at the other end."""
        return link in self._links or (self._move is not None and self._move.target is link)

    def on_credit(self, link: Link) -> bool:
        """Send what waits for this link. False: some of it still waits."""
        if self._move is not None and self._move.source is link:
            return True  # it waits for the heir
        waiting = self._waiting.get(link)
        while waiting:
            message, frames = waiting[0]
            if not link.send(message, frames):
                return False
            waiting.popleft()
        self._waiting.pop(link, None)
        return True

    def waits_for(self, link: Link) -> bool:
        return link in self._waiting

    # -- moving ----------------------------------------------------------------------------------------

    def _begin_move(self, old: Worker) -> bool:
        """Ask a draining worker for what it holds. False: it must be rebuilt elsewhere. It is called again if there is
        no room to ask now."""
        source = old.link
        stages = tuple(stage for stage, link in enumerate(self._links) if link is source)
        if source is None or self._stays == self._fence.binding or not old.exports(self.pipeline, stages):
            return False
        heir = self._workers.heir(old, self.pipeline, stages)
        if heir is None or heir.link is None:
            return False
        if self._opening or self._moves.full or source in self._waiting:
            return True
        loop = asyncio.get_running_loop()
        ticket = self._moves.next_ticket()
        if loop.time() < self._not_before or not source.send(ExportStages(self.session_id, self._fence, ticket)):
            return True
        self._move = move = self._moves.begin(StageMove(ticket, old, source, heir, heir.link, stages))
        self._count(heir, 1)
        self._waiting[source] = deque()  # what comes now is the heir's
        move.timer = loop.call_later(MOVE_TIMEOUT_S, self._stay, "timeout", "it took too long")
        return True

    def _asked(self, link: Link, ticket: int) -> StageMove | None:
        """The move that this answer is of, if it is still wanted."""
        move = self._move
        return move if move is not None and move.source is link and move.ticket == ticket else None

    def _go_on_at_heir(self, move: StageMove) -> None:
        """The heir has it all: what waited goes there, and the old worker is let go."""
        self._move, self._moved = None, self._fence.binding
        move.source.send(CloseStages(self.session_id, self._fence))
        self._links = tuple(move.target if link is move.source else link for link in self._links)
        self._held = tuple(move.heir if worker is move.old else worker for worker in self._held)
        self._count(move.old, -1)
        waiting = self._waiting.pop(move.source, None)
        if waiting:
            self._waiting[move.target] = waiting
            self.on_credit(move.target)
        self._moves.left("state")
        self._moves.end(move)

    def _stay(self, reason: str, why: str) -> None:
        """It comes to nothing: the old worker goes on, until a turn ends."""
        importing = self._move is not None and self._move.importing
        move = self._end_move(reason)
        if move is None:
            return
        _log.info("session %s does not move to %s with its state: %s, %s", self.session_id, move.heir.name, reason, why)
        if self.on_credit(move.source):
            move.source.send(ExportStages(self.session_id, self._fence, 0))  # in case that it is not told otherwise
        if reason == NOT_NOW and not importing:
            self._not_before = asyncio.get_running_loop().time() + NOT_NOW_S
        else:
            self._stays = self._fence.binding
            self._leave_at_turn_end()

    def _end_move(self, reason: str) -> StageMove | None:
        """The question is taken back. What waited goes on waiting, for the old worker now."""
        move, self._move = self._move, None
        if move is None:
            return None
        self._count(move.heir, -1)
        if move.importing:
            move.target.send(CloseStages(self.session_id, self._fence))
            self._stays = self._fence.binding  # a late answer of this heir could be taken for one to a later question
        if not self._waiting.get(move.source):
            self._waiting.pop(move.source, None)
        self._moves.end(move, reason)
        return move

    def _has_moved(self, link: Link, fence: StageFence, stage: int) -> bool:
        """Whether this comes from a worker that the stage has left, under a binding that is still in force."""
        if fence.binding != self._moved or fence.binding != self._fence.binding or not self._links:
            return False
        if self._links[stage] is link:
            return False
        self._moves.late += 1
        return True

    def _count(self, worker: Worker, more: int) -> None:
        """Of sessions that this shard has there."""
        count = worker.bound.get(self.pipeline.name, 0) + more
        if count > 0:
            worker.bound[self.pipeline.name] = count
        else:
            worker.bound.pop(self.pipeline.name, None)

    # -- inside ----------------------------------------------------------------------------------------

    def _append(self, link: Link, message: Append, frames: Sequence[Frame]) -> None:
        if not self._send(link, message, frames):
            self.post(
                facts.StageFailed(
                    message.fence,
                    message.stage,
                    message.unit,
                    "stage_backpressure",
                    "the stage does not take its input fast enough",
                )
            )

    def _send(self, link: Link, message: AnyMessage, frames: Sequence[Frame]) -> bool:
        """False: nothing was taken, and there is no room to wait."""
        waiting = self._waiting.get(link)
        if waiting is None:
            if link.send(message, frames):
                return True
            waiting = self._waiting[link] = deque()
        if len(waiting) >= MAX_WAITING:
            self._workers.queue_full += 1
            return False
        waiting.append((message, frames))
        return True

    def _forget_waiting(self, fence: StageFence) -> list[int]:
        """Drop appends of older epochs that never left; their units."""
        dropped: list[int] = []
        for link, waiting in list(self._waiting.items()):
            kept: deque[_Waiting] = deque()
            for message, frames in waiting:
                if isinstance(message, Append) and message.fence < fence:
                    dropped.append(message.unit)
                else:
                    kept.append((message, frames))
            if kept:
                self._waiting[link] = kept
            else:
                del self._waiting[link]
        return dropped

    def _open_timed_out(self, fence: StageFence) -> None:
        self._open_timer = None
        if fence != self._fence:
            return
        if self._wanted is not None:
            self._wanted = None
            self.post(self._no_room(fence))
        elif self._opening:
            self._lost("resource_exhausted", "a stage worker did not open its stages in time", refused=True)

    def _lost(self, code: str, message: str, *, refused: bool = False) -> None:
        """The binding is void: free what the other workers hold of it, then tell the core."""
        fence = self._fence
        self.close()
        self.post(facts.StagesLost(fence, code, message, refused))

    def _no_room(self, fence: StageFence) -> facts.StagesLost:
        missing = self._workers.missing(self.pipeline)
        why = f"no stage worker for {', '.join(missing)}" if missing else "no free slot in the stage workers"
        return facts.StagesLost(fence, "resource_exhausted", why, refused=True)

    def _stop_open_timer(self) -> None:
        if self._open_timer is not None:
            self._open_timer.cancel()
            self._open_timer = None

    def _let_go(self) -> None:
        self._stop_open_timer()
        self._end_move("ended")
        for worker in self._held:
            self._count(worker, -1)
        self._held = ()
        self._links = ()
        self._opening = {}
        self._wanted = None
        self._waiting.clear()
