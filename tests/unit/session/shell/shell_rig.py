"""A shard's shell without a bus, a model or a server: links that remember, a machine that does as told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from duologue.bus.link import Frame, Link, Peer
from duologue.bus.messages import AnyMessage, Attach, ClientInput, OpenSession
from duologue.fence import CommandNo, DeliveryId, Owner, StageFence
from duologue.hearing.mel import Floats
from duologue.hearing.voice_activity import Stream
from duologue.model.outputs import Usage
from duologue.model.pipeline import PipelineSpec, StageSpec
from duologue.model.records import StageRecord, WorkerRecord, encode_record
from duologue.protocol.duplex import AppendAudio, DuplexCommand, encode_command
from duologue.protocol.realtime.errors import RealtimeProtocolError
from duologue.session.admission import Admission
from duologue.session.attachment import MakeEgress, Numbering, OwnEgress, OwnerRefused
from duologue.session.background import Background
from duologue.session.cleanup import Cleanup
from duologue.session.core import commands as facts
from duologue.session.core import effects as orders
from duologue.session.core.engine_session import Totals
from duologue.session.core.limits import SessionLimits
from duologue.session.core.observations import Observations
from duologue.session.detector import SpeechDetector
from duologue.session.inheriting import Inheritance
from duologue.session.last_word import LastWord
from duologue.session.manager import DuplexSessionManager
from duologue.session.offload import OffloadPool
from duologue.session.opening import Opener
from duologue.session.output import Event
from duologue.session.runner import DuplexSessionRunner
from duologue.session.stages import StageHub
from duologue.session.surroundings import Surroundings
from duologue.session.switchboard import Switchboard
from duologue.session.tallies import Tallies
from duologue.session.vitals import Vitals
from duologue.session.workers import StageWorkers
from duologue.store.memory import MemoryStore
from duologue.store.ports import Registration

_M = TypeVar("_M")

FENCE = StageFence(1, 1, 0)


class FakeLink(Link):
    """Keeps what is sent. `credit` False: takes nothing that needs credit."""

    def __init__(self, name: str, kind: str) -> None:
        self.peer = Peer(name, kind, f"{name}-life")
        self.sent: list[tuple[AnyMessage, list[bytes]]] = []
        self.credit = True
        self.lost = False
        self.dropped = ""

    def send(self, message: AnyMessage, frames: Sequence[Frame] = ()) -> bool:
        if self.lost or (message.needs_credit and not self.credit):
            return False
        self.sent.append((message, [bytes(frame) for frame in frames]))
        return True

    def flush(self) -> None:
        pass

    def drop(self, reason: str) -> None:
        self.dropped = reason

    def of(self, kind: type[_M]) -> list[_M]:
        """What was sent of one kind, in order."""
        return [message for message, _ in self.sent if isinstance(message, kind)]

    def frames_of(self, kind: type[Any]) -> list[list[bytes]]:
        return [frames for message, frames in self.sent if isinstance(message, kind)]

    def clear(self) -> None:
        self.sent.clear()


class FakeMachine:
    """Submits each append, delivers two events for each result, and does what `script` says beside."""

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.fence = StageFence(owner, 1, 0)
        self.handled: list[facts.SessionCommand] = []
        self.script: Callable[[facts.SessionCommand], list[orders.SessionEffect] | None] = lambda fact: None
        self.deadline: float | None = None
        self.pending_input_bytes = 0
        self.queued_commits = 0
        self.input_waits = False
        self.applied = CommandNo()
        self.covered = CommandNo()
        self.last_client_event_id: str | None = None
        self.input_audio_end_ms = 0
        self.closed = self.responding = self.gap = False
        self.made = 0
        self.time = 0.0
        self.detached_since: float | None = None
        self.stale: dict[str, int] = {}
        self.observed = Observations()
        self.story: list[dict[str, object]] = []
        self.totals = Totals()
        self.used: Usage | None = None
        self.n = 0
        self.unit = 0
        self.checkpoints = 0

    def handle(self, command: facts.SessionCommand, now: float) -> Sequence[orders.SessionEffect]:
        self.handled.append(command)
        done = self.script(command)
        if done is not None:
            return done
        match command:
            case facts.FromClient():
                self.applied = command.no
                if isinstance(command.command, AppendAudio):
                    return [self.submit(command.command.audio)]
            case facts.StageOutput():
                return [self.deliver(media_of="resp"), self.deliver()]
            case facts.CheckpointWanted():
                return [self.checkpoint()]
            case facts.Covered():
                if command.number >= self.checkpoints:
                    self.covered = self.applied
            case facts.CloseRequested():
                return self.close(command.reason, command.close_code)
        return []

    def submit(self, audio: bytes) -> orders.Submit:
        self.unit += 1
        return orders.Submit(self.fence, 0, self.unit, 0, b"head", (audio,))

    def deliver(self, *, media_of: str = "", close_code: int = 0) -> orders.Deliver:
        self.n += 1
        return orders.Deliver(self.n, b'{"n":%d}' % self.n, media_of, 0, close_code)

    def checkpoint(self) -> orders.Checkpoint:
        self.checkpoints += 1
        return orders.Checkpoint(self.checkpoints, b"state", self.applied, self.n)

    def last_words(self) -> orders.Checkpoint:
        return self.checkpoint()

    def close(self, reason: str, code: int = 1000) -> list[orders.SessionEffect]:
        self.closed = True
        return [self.deliver(close_code=code), orders.CloseStages(self.fence), orders.Close(reason)]

    def next_deadline(self) -> float | None:
        return self.deadline

    def session_object(self) -> bytes:
        return b'{"id":"s"}'

    def items_for_gap(self) -> bytes:
        return b"[]"

    def input_cost(self, command: DuplexCommand) -> int:
        return len(command.audio) if isinstance(command, AppendAudio) else 0


class FakeEgress(OwnEgress):
    def __init__(self, runner: DuplexSessionRunner, numbering: Numbering, refused: OwnerRefused) -> None:
        self.runner = runner
        self.numbering = numbering
        self.refused = refused
        self.events: list[Event] = []
        self.running = False
        self.stopped = False
        self.ready = True

    def start(self, after_s: float = 0.0) -> None:
        self.running = True
        self.after_s = after_s

    def journal_for(self, message: Attach, word: LastWord | None, done: Callable[[int], None]) -> None:
        self.running = True
        self.journals_for, self.word, self.done = message, word, done

    def stop(self) -> None:
        self.running = False
        self.stopped = True

    def take(self, events: Sequence[Event]) -> bool:
        if self.ready:
            self.events.extend(events)
        return self.ready

    def invalidate(self, response_id: str, through_epoch: int) -> None:
        self.events = [event for event in self.events if event[0].media_of != response_id]


def pipeline(
    name: str = "toy", *, max_sessions: int = 8, workers: Sequence[str] = ("a", "a", "b", "b")
) -> PipelineSpec:
    stages = tuple(StageSpec(f"s{i}", "engine", worker, slots=8) for i, worker in enumerate(workers))
    return PipelineSpec(name, "plugin", stages, max_sessions=max_sessions)


def registration(
    name: str, group: str, spec: PipelineSpec, *, used: int = 0, total: int = 8, accepting: bool = True
) -> Registration:
    """A worker of this group, as it registers; its life is the one that `FakeLink` has."""
    stages = tuple(StageRecord(spec.name, stage, used, total) for stage in spec.stages_of(group))
    record = WorkerRecord(group, stages, accepting)
    return Registration("worker", name, f"{name}-life", f"ipc://{name}", extra=encode_record(record))


class FakePipelines:
    """One pipeline, whose plugin nobody asks."""

    class Served(msgspec.Struct, frozen=True):
        spec: PipelineSpec
        plugin: Any = None

        @property
        def name(self) -> str:
            return self.spec.name

    def __init__(self, spec: PipelineSpec) -> None:
        self.served = self.Served(spec)

    def find(self, model: object) -> Any:
        if model not in (None, self.served.name):
            raise RealtimeProtocolError("model_not_found", "no such model", param="session.model")
        return self.served


class Shell:
    """Everything between the bus and the core, with one pipeline in two worker groups."""

    def __init__(self, *, max_sessions: int = 8, limits: SessionLimits | None = None, detects: bool = True) -> None:
        self.spec = pipeline()
        self.store = MemoryStore()
        self.background = Background()
        self.workers = StageWorkers(lambda name, address: None, lambda name: None)
        self.hub = StageHub(self.workers)
        self.worker_a, self.worker_b = FakeLink("a1", "worker"), FakeLink("b1", "worker")
        self.egresses: list[FakeEgress] = []
        self.make_egress: MakeEgress = self._egress
        self.machines: list[FakeMachine] = []
        self.refuse_open: RealtimeProtocolError | None = None
        self.offload = OffloadPool(_job, threads=1, max_queued=3)
        self.detector = SpeechDetector(FirstSample, FirstSample, gather_s=0.0)
        self.around = Surroundings(
            self.store.sessions,
            self.store.journal,
            self.background,
            Cleanup(self.store.sessions, self.store.journal, self.background),
            self.offload,
            self.hub,
            lambda *what: self.make_egress(*what),
            Tallies(),
            detector=self.detector if detects else None,
        )
        limits = limits or SessionLimits()
        opener = Opener(
            incarnation="shard-life",
            pipelines=FakePipelines(self.spec),  # type: ignore[arg-type]
            open_machine=self._open_machine,
            limits=limits,
            surroundings=self.around,
            deadline_s=0.0,
        )
        self.admission = Admission(max_sessions, {self.spec.name: self.spec.max_sessions})
        self.manager = DuplexSessionManager(admission=self.admission, opener=opener, around=self.around, limits=limits)
        self.vitals = self.manager.vitals = Vitals(0.5, 2.0)
        self.inheritance = self.manager.inheritance = Inheritance(
            incarnation="shard-life",
            pipelines=FakePipelines(self.spec),  # type: ignore[arg-type]
            restore=self._restore_machine,
            reopen=opener.again,
            admission=self.admission,
            surroundings=self.around,
            arrived=self.manager.inherited,
            failed=self.manager.nothing_came,
        )
        self.board = Switchboard(self.manager, self.hub)
        self.gateway = FakeLink("g1", "gateway")
        self.board.on_ready(self.gateway)

    def _egress(self, runner: DuplexSessionRunner, numbering: Numbering, refused: OwnerRefused) -> FakeEgress:
        self.egresses.append(FakeEgress(runner, numbering, refused))
        return self.egresses[-1]

    def _open_machine(self, **how: Any) -> tuple[FakeMachine, list[orders.SessionEffect]]:
        if self.refuse_open is not None:
            raise self.refuse_open
        machine = FakeMachine(how["owner"])
        if how["owner"]:
            self.machines.append(machine)
        fence = machine.fence
        return machine, [machine.deliver(), orders.OpenStages(fence, (b"c0", b"c1", b"c2", b"c3"))]

    def _restore_machine(self, body: bytes, *, plugin: Any, owner: int) -> FakeMachine:
        if body != b"state":
            raise ValueError("not a state")
        machine = FakeMachine(owner)
        self.machines.append(machine)
        return machine

    def register_workers(self) -> None:
        self.workers.update([registration("a1", "a", self.spec), registration("b1", "b", self.spec)])
        self.board.on_ready(self.worker_a)
        self.board.on_ready(self.worker_b)

    async def open(self, session_id: str = "s", gateway: FakeLink | None = None, model: str = "toy") -> FakeMachine:
        """A session with its stages asked for, attached to `gateway`; what was sent so far is kept."""
        link = gateway or self.gateway
        message = OpenSession(session_id, "duplex", "key", b"digest", link.peer.incarnation)
        self.board.on_message(link, message, [msgspec.json.encode({"model": model})])
        await self.background.settle()
        return self.machines[-1]

    async def open_refused(self) -> None:
        """An open that is answered at once."""
        message = OpenSession("s", "duplex", "key", b"digest", "g1")
        self.board.on_message(self.gateway, message, [b"{}"])

    async def turn(self) -> None:
        """One turn of the loop."""
        await asyncio.sleep(0)

    def say(
        self,
        session_id: str,
        n: int,
        command: DuplexCommand,
        *,
        generation: int = 1,
        link: FakeLink | None = None,
    ) -> None:
        bare, frames = command.detach()
        message = ClientInput(session_id, CommandNo(generation, n), encode_command(bare))
        self.board.on_message(link or self.gateway, message, frames)

    async def close(self) -> None:
        await self.background.close()
        self.offload.close()
        self.detector.close()


class FirstSample:
    """For both models of the detector: what the first sample says."""

    def judge(self, streams: Sequence[Stream], frames: Sequence[Floats]) -> list[float]:
        return [float(frame[0]) for frame in frames]

    def probability(self, pcm: Floats) -> float:
        return float(pcm[0])


def _job(kind: str, body: bytes) -> bytes:
    if kind == "upper":
        return body.upper()
    if kind == "refuse":
        raise RealtimeProtocolError("bad_audio", "not finite")
    raise ValueError(kind)


def through(owner: int, n: int) -> DeliveryId:
    return DeliveryId(owner, n)


def owned(number: int) -> Owner:
    return Owner(number, "shard-life")
