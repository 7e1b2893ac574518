"""ChatTurns: the turns of `/v1/chat/completions` that this shard carries out, beside its sessions.

Rule 1. A turn takes no session slot. Each pipeline has a bound of its own (`max_chat_turns`); at it, and where the
        stages have no room, a turn is refused `resource_exhausted`.
Rule 2. A turn belongs to the gateway that asked for it and ends with its link.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from duologue.bus.link import Link
from duologue.bus.messages import AnyMessage, CancelTurn, StartTurn
from duologue.model.plugin import DuplexModelPlugin
from duologue.protocol.duplex import decode_command
from duologue.protocol.realtime.dialect import Dialect
from duologue.protocol.realtime.errors import RealtimeProtocolError
from duologue.session.chat_turn import OWNER, TURN_S, ChatTurn
from duologue.session.core.limits import SessionLimits
from duologue.session.offload import OffloadPool
from duologue.session.opening import OpenMachine
from duologue.session.pipelines import Pipelines, ServedPipeline
from duologue.session.refusals import exhausted, refused
from duologue.session.stages import StageHub

NEVER_S: Final = 10 * TURN_S
"""For a session's own deadlines: the turn's comes first."""

_decoder: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])


class ChatTurns:
    """See the module. Called from the bus, in the loop's thread."""

    def __init__(
        self,
        *,
        pipelines: Pipelines,
        open_machine: OpenMachine,
        limits: SessionLimits,
        hub: StageHub,
        offload: OffloadPool,
        accepting: Callable[[], bool],
        turn_s: float = TURN_S,
    ) -> None:
        self._pipelines = pipelines
        self._open_machine = open_machine
        self._limits = msgspec.structs.replace(
            limits, max_session_s=NEVER_S, idle_ttl_s=NEVER_S, disconnect_grace_s=NEVER_S, overflow_policy="close"
        )
        self._hub = hub
        self._offload = offload
        self._accepting = accepting
        self._turn_s = turn_s
        self._turns: dict[str, ChatTurn] = {}
        self._used: Counter[str] = Counter()
        self._plugins: dict[str, DuplexModelPlugin[Any]] = {}
        self.results: dict[str, int] = {}
        """Turns that are over, by result; refused ones by their code."""

    def __len__(self) -> int:
        return len(self._turns)

    def used(self, pipeline: str) -> int:
        """Turns of this pipeline that are under way."""
        return self._used[pipeline]

    def on_message(self, link: Link, message: AnyMessage, frames: Sequence[bytes]) -> bool:
        """One message of a gateway. False: it is no business of a turn's."""
        if isinstance(message, StartTurn):
            self._start(link, message, frames)
        elif isinstance(message, CancelTurn):
            turn = self._turns.get(message.session_id)
            if turn is not None and turn.link is link:
                turn.cancel()
        else:
            return False
        return True

    def on_credit(self, link: Link) -> None:
        for turn in self._of(link):
            turn.on_credit()

    def gateway_lost(self, link: Link) -> None:
        for turn in self._of(link):
            turn.cancel()

    def close_all(self) -> None:
        """For the end of the process."""
        for turn in list(self._turns.values()):
            turn.fail("server_draining", "this shard is being taken out of service")

    def _of(self, link: Link) -> list[ChatTurn]:
        return [turn for turn in self._turns.values() if turn.link is link]

    # -- a turn begins ---------------------------------------------------------------------------------

    def _start(self, link: Link, message: StartTurn, frames: Sequence[bytes]) -> None:
        try:
            self._begin(link, message, frames)
        except RealtimeProtocolError as error:
            self._count(error.code)
            link.send(*refused(message.session_id, error, Dialect.openai.value))

    def _begin(self, link: Link, message: StartTurn, frames: Sequence[bytes]) -> None:
        turn_id = message.session_id
        pipeline = self._pipelines.find(message.model)
        self._admit(turn_id, pipeline)
        machine, effects = self._open_machine(
            session_id=turn_id,
            seed=secrets.token_bytes(16),
            owner=OWNER,
            dialect=Dialect.openai,
            model=pipeline.name,
            plugin=self._plugin(pipeline),
            limits=self._limits,
            request=_decoder.decode(frames[0]),
            update_event_id=None,
            announced=True,
            opened_unix_s=time.time(),
            max_sessions=pipeline.spec.max_sessions,
        )
        commands = [decode_command(frame) for frame in frames[1:]]
        binding = self._hub.bind(turn_id, pipeline.spec)

        def ended(turn: ChatTurn, result: str) -> None:
            self._hub.release(binding)
            del self._turns[turn_id]
            self._used[pipeline.name] -= 1
            self._count(result)

        turn = ChatTurn(
            turn_id,
            pipeline.name,
            link,
            machine,
            binding=binding,
            offload=self._offload,
            ended=ended,
            turn_s=self._turn_s,
        )
        binding.post = turn.post
        self._turns[turn_id] = turn
        self._used[pipeline.name] += 1
        turn.start(effects, commands)

    def _admit(self, turn_id: str, pipeline: ServedPipeline) -> None:
        """Raises RealtimeProtocolError."""
        limit = pipeline.spec.max_chat_turns
        if not limit or not pipeline.capabilities.supports_chat_completions:
            raise RealtimeProtocolError(
                "model_not_supported", f"{pipeline.name} answers no chat completions", param="model"
            )
        if turn_id in self._turns:
            raise RealtimeProtocolError("session_exists", "the turn is under way already")
        if not self._accepting():
            raise exhausted("this shard takes no more turns")
        if self._used[pipeline.name] >= limit:
            raise exhausted(f"chat_turn_capacity_exhausted: limit={limit}")
        workers = self._hub.workers
        if missing := workers.missing(pipeline.spec):
            raise exhausted(f"no stage worker for {', '.join(missing)}")
        if workers.choose(pipeline.spec) is None:
            raise exhausted("no free slot in the stage workers")

    def _plugin(self, pipeline: ServedPipeline) -> DuplexModelPlugin[Any]:
        """The pipeline's plugin without pacing: nobody listens along, so an answer leaves as it is made."""
        plugin = self._plugins.get(pipeline.name)
        if plugin is None:
            unpaced = msgspec.structs.replace(pipeline.spec, max_output_lead_ms=0)
            plugin = self._plugins[pipeline.name] = type(pipeline.plugin)(unpaced)
        return plugin

    def _count(self, result: str) -> None:
        self.results[result] = self.results.get(result, 0) + 1
