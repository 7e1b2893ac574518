"""A simulated client: a script of commands, one session after the other, and a will to come back.

It does what a good client does and no more: it counts what it got, resumes from there, sends again what
`session.resumed` does not state as covered, and asks again later when it is told to.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from simulation.commands import CUTS, Commands
from simulation.network import Socket
from simulation.record import Record
from simulation.script import act

if TYPE_CHECKING:
    from simulation.network import Event
    from simulation.nodes import GatewayNode
    from simulation.world import World

QUERY = "duplex=1&autostart=0"
ATTEMPT_S = 6.0
GIVE_UP_S = 40.0


class Client:
    """Number `number` of a world. `run` is its whole life."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.random = world.fork(f"client {number}")
        self.turn_based = self.random.random() < 0.3
        self.lives = 0
        self.commands = 0
        self.record: Record
        self.socket: Socket | None = None
        self.attached = asyncio.Event()
        self.over = asyncio.Event()
        """The present session has ended."""
        self.token = ""
        self.talk_on = 0
        """So many times more it has the model speak, whatever else it might do."""
        self.resumed: Event | None = None
        self._commands: Commands
        self._at = 0
        """How many of them have gone out on this connection."""
        self._covered = 0
        """How many of them the last resume stated as covered."""
        self._resuming = False
        self._unsure = False
        """An attempt to resume may have been carried out without our knowledge."""
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._trying_since = 0.0
        self._retry_soon: asyncio.TimerHandle | None = None

    # -- life ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        budget = self.world.commands_each
        while self.commands < budget or not self.world.faults.over:
            await self._begin()
            while (self.commands < budget or not self.world.faults.over) and not self.over.is_set():
                await act(self)
            if self.record.inherited:
                await self.leave()
            elif not self.over.is_set():
                await self._finish()

    async def _begin(self) -> None:
        self.record = Record(self.world, self.number, self.lives)
        self.lives += 1
        self.attached, self.over = asyncio.Event(), asyncio.Event()
        self.token, self.resumed = "", None
        self._commands = Commands(f"c{self.number}.{self.lives}", self.record)
        self._closing = self._unsure = self._resuming = False
        self._trying_since = self.world.now
        self._connect()
        await self._either(self.attached, self.over)

    async def _either(self, *events: asyncio.Event) -> None:
        waits = [self.world.loop.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _finish(self) -> None:
        """Come to rest, hold every command against its answer, and close."""
        world, record = self.world, self.record
        if record.gapped:
            return await self._close()
        await self.settle()
        # The answer to a takeover states what is covered; all of it, unless its shard was lost just now.
        while True:
            sent = len(self._commands.sent)
            await world.until(lambda: self._gone() or (self._store_is_whole() and self.takeover()))
            await self.settle()
            if self._gone() or self._covered >= sent:
                break
        if record.inherited:
            return await self.leave()
        if self.over.is_set():
            return None
        if not record.gapped:
            assert self.resumed is not None
            self._commands.check(self.resumed["input_audio_end_ms"])
            world.check_at_rest(self)
        return await self._close()

    async def _close(self) -> None:
        self._closing = True
        self.send("session.close", reason="done")
        await self.over.wait()

    def _gone(self) -> bool:
        return self.over.is_set() or self.record.inherited or self.record.gapped

    def _store_is_whole(self) -> bool:
        """Nothing is wrong with the store, and it has everything that was sent."""
        return not self.world.depot.troubled and not self.world.witness.unconfirmed(self.record.session_id)

    async def leave(self) -> None:
        """Its session is another owner's: wait until the old one has noticed."""
        deadline = self.world.now + GIVE_UP_S
        while not self.over.is_set():
            self.send("session.heartbeat")
            await asyncio.sleep(0.2)
            if self.world.now > deadline:
                self.record.fail("the old owner does not notice that it was replaced")
                return

    async def settle(self) -> None:
        """Wait until everything that was sent is answered and nothing is being said."""
        deadline = self.world.now + GIVE_UP_S
        self.send("input_audio_buffer.clear")
        self.send("session.heartbeat")
        while not self.over.is_set() and not self.record.inherited:
            await asyncio.sleep(0.1)
            if self.record.gapped and self.attached.is_set():
                return
            if self.attached.is_set() and self.record.open is None and not self._commands.unanswered():
                await asyncio.sleep(0.3)
                if self.attached.is_set() and self.record.open is None:
                    return
            if self.world.now > deadline:
                self.record.fail(
                    f"does not come to rest; open {self.record.open}, unanswered {self._commands.unanswered()}"
                )
                return

    # -- what it sends ---------------------------------------------------------------------------------

    def send(self, kind: str, *, audio_ms: int = 0, **fields: Any) -> None:
        """One command; while nothing is attached it is kept for later."""
        self.commands += 1
        if kind in CUTS:
            self.record.cut_asked_at = self.world.now
        self._commands.add(kind, audio_ms, fields)
        self._push()

    def _push(self) -> None:
        """Everything that has not gone out on this connection."""
        if not self.attached.is_set() or self.socket is None:
            return
        sent_ever = self._commands.sent
        while self._at < len(sent_ever):
            sent = sent_ever[self._at]
            self._at += 1
            self.world.note(f"c{self.number} > {sent.event_id} {sent.kind} {sent.audio_ms or ''}")
            self.socket.send_text(sent.text)

    # -- connections -----------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Open a connection; what comes first on it depends on whether there is a session."""
        self._retry_soon = None
        if self.over.is_set():
            return
        if self.world.now - self._trying_since > GIVE_UP_S:
            self.record.fail("cannot get through")
            return self._end("lost")
        gateway = self.world.choose_gateway(self.random, self.socket.gateway if self.socket else None)
        if gateway is None:
            return self._again(0.3)
        return self._connect_to(gateway)

    def _connect_to(self, gateway: GatewayNode) -> None:
        self._leave()
        self.socket = Socket(self.world, gateway, self, self.record, QUERY)
        gateway.accept(self.socket)
        self._timer = self.world.loop.call_later(ATTEMPT_S, self._attempt_failed, self.socket)

    def _attempt_failed(self, socket: Socket) -> None:
        if socket is self.socket and not self.attached.is_set():
            self.world.note(f"c{self.number}: no answer to its attempt")
            self._unsure = True
            self.drop(0.1)

    def _again(self, delay_s: float) -> None:
        """Try again after a while."""
        if not self.record.session_id:
            self.world.open_lost_at = self.world.now
        self.attached.clear()
        self._stop_timer()
        if self._retry_soon is None and not self.over.is_set():
            self._retry_soon = self.world.loop.call_later(delay_s * self.random.uniform(0.7, 1.3), self._connect)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _leave(self) -> None:
        self._stop_timer()
        self._resuming = False

    def drop(self, noticed_after_s: float) -> None:
        """The network takes the connection away."""
        socket = self.socket
        if socket is None or self.over.is_set():
            return
        if self._resuming:
            self._unsure = True
        socket.vanish(noticed_after_s)
        if self.attached.is_set():
            self._trying_since = self.world.now
        self._again(0.2)

    def drop_attempt(self, noticed_after_s: float) -> None:
        """The network takes the connection away while it is being resumed."""
        if not self.attached.is_set() and self._retry_soon is None:
            self.drop(noticed_after_s)

    def takeover(self) -> bool:
        """Come a second time while the first connection is there. False: not now."""
        if not self.attached.is_set() or self.over.is_set():
            return False
        gateway = self.world.choose_gateway(self.random, self.socket.gateway if self.socket else None)
        if gateway is None:
            return False
        self.world.count["takeover"] += 1
        self.attached.clear()
        self._trying_since = self.world.now
        self._connect_to(gateway)
        return True

    def _end(self, why: str) -> None:
        """This session is over."""
        self.world.note(f"c{self.number}: over: {why}")
        self._stop_timer()
        if self._retry_soon is not None:
            self._retry_soon.cancel()
            self._retry_soon = None
        self.attached.clear()
        self.over.set()

    # -- ClientEnd -------------------------------------------------------------------------------------

    def on_open(self, socket: Socket) -> None:
        if socket is not self.socket:
            return
        if not self.record.session_id:
            session = self.world.session_of(self)
            opening = {"type": "session.update", "event_id": f"open{self.number}", "session": session}
            socket.send_text(json.dumps(opening))
            return
        self._resuming = True
        body: dict[str, Any] = {
            "type": "session.resume",
            "session_id": self.record.session_id,
            "resume_token": self.token,
            "last_received_server_event_seq": self.record.seq,
        }
        self.world.note(f"c{self.number} > session.resume from {self.record.seq} at {socket.gateway.name}")
        socket.send_text(json.dumps(body))

    def on_refused(self, socket: Socket, status: int) -> None:
        if socket is self.socket:
            self._again(0.5)

    def on_frame(self, socket: Socket, event: Event, size: int) -> None:
        if socket is not self.socket or self.over.is_set():
            return None
        kind = event["type"]
        if "server_event_seq" in event:
            if not self.attached.is_set():
                return self.record.fail(f"{kind} before the session was announced on this connection")
            self.record.received(event)
            self.world.note(f"c{self.number} < {event['server_event_seq']} {kind}")
            return None
        self.world.note(f"c{self.number} < {kind} {_gist(event)}")
        if kind == "session.created":
            self._created(event)
        elif kind == "session.resumed":
            self._resumed(event)
        elif kind == "error":
            self._refused(event["error"])
        elif kind == "session.resync_required":
            self._resync(event)
        return None

    def on_closed(self, socket: Socket, code: int, reason: str) -> None:
        if socket is not self.socket or self.over.is_set():
            return
        self.world.note(f"c{self.number}: closed {code} {reason}")
        if self.record.inherited:
            return self._end("inherited")
        if self.record.terminal:
            self._check_end(code)
            return self._end(f"{self.record.terminal} {code}")
        if self._resuming:
            self._unsure = True
        if self.attached.is_set():
            self._trying_since = self.world.now
            if code not in (1006, 1012, 1013) or not self.world.may_lose_socket(reason):
                self.record.fail(f"closed with {code} {reason}")
        self._again(0.3)
        return None

    def _check_end(self, code: int) -> None:
        terminal, record = self.record.terminal, self.record
        if terminal == "done" and self._closing:
            due = 1000
        elif terminal == "output_backpressure":
            due = 1013
            if not self.world.was_slow(self):
                record.fail("output_backpressure to a client that reads, in a system without trouble")
        elif terminal in record.may_end.split():
            return
        else:
            return record.fail(f"ended by {terminal}")
        if code != due:
            record.fail(f"{terminal} closed with {code}")

    def _created(self, event: Event) -> None:
        self.record.session_id = event["session"]["id"]
        self.token = event["resume_token"]
        self._at = 0
        self._stop_timer()
        self.attached.set()

    def _resumed(self, event: Event) -> None:
        self.world.count["resume"] += 1
        if self.record.gapped and "items" not in event:
            self.record.fail("a resume after a gap does not tell the conversation")
        self.resumed = event
        self.token = event["resume_token"]
        self._resuming = self._unsure = False
        self._stop_timer()
        covered = event["last_client_event_id"]
        at = 0 if covered is None or covered.startswith("open") else self._commands.after(covered)
        if at is None:
            self.record.fail(f"{covered} is said to be covered and was never sent")
        self._at = self._covered = at or 0
        self.attached.set()
        self._push()

    def _refused(self, error: Event) -> None:
        """An error without a number: of the socket alone."""
        code = error["code"]
        if self.record.inherited:
            return self._end("inherited")
        if code in ("runtime_resume_failed", "shard_lost", "store_unavailable", "resource_exhausted", "timeout"):
            return
        if code in ("invalid_resume_token", "session_resume_conflict") and self._unsure:
            return
        if code == "session_resume_expired" and (self._closing or self.record.may_end or self.world.was_slow(self)):
            return self._end(code)
        self.record.fail(f"refused: {code} {error['message']}")
        self._end(code)

    def _resync(self, event: Event) -> None:
        if not self.world.gap_allowed(self.record):
            self.record.fail(f"a gap: {event['head_seq']} is the head, {self.record.seq} was received")
        self.world.count["gap told"] += 1
        self.record.gap(event["head_seq"])

    def __repr__(self) -> str:
        return f"client {self.number}"


def _gist(event: Event) -> str:
    error = event.get("error")
    if isinstance(error, dict):
        return f"{error['code']}: {error['message']}"
    return str(event.get("last_client_event_id", ""))
