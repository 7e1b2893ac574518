"""What every adapter's endpoint does alike: who is accepted, who is dialled, when links are judged.

An adapter brings connections (`_connect`), feeds what it hears on the listening side (`_heard_accepted`) and
says when a stuck connection may take more (`_retry_stuck`).

Rule 1. One accepted link per peer name: another life of the name, or another dial of it, replaces it.
Rule 2. A lost dialled link is dialled again on a fresh connection, after a delay that grows to a second.
Rule 3. Our own loop standing still judges nobody.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor
from typing import Final, Protocol

from duologue.bus.codec import BYE, HELLO, Header, decode_greeting, decode_header
from duologue.bus.driven import Connection, DrivenLink, Surroundings
from duologue.bus.errors import BusError, KeyRefused
from duologue.bus.link import Endpoint, LinkHandler, Peer
from duologue.bus.machine import LinkMachine, LinkOptions, State, agreed_version, farewell
from duologue.bus.stats import BusStats

_log = logging.getLogger("duologue.bus")

MAX_PEERS: Final = 4096
_REDIAL_FIRST_S: Final = 0.05
_REDIAL_LAST_S: Final = 1.0
_TICKS_PER_HEARTBEAT: Final = 2
_REFUSAL_TOLD_S: Final = 10.0
"""A peer whose hello is refused tries again every second; the log hears of it so often. The counter has them all."""
_MAX_REFUSED: Final = 64
_TIMER_MARGIN_S: Final = 0.001
"""uvloop counts whole milliseconds and may be half of one early."""


class Broke(Protocol):
    """Told by an adapter of a dialled connection: it has ended. `for_good`: nothing will make it another try."""

    def __call__(self, for_good: bool = False) -> None: ...


@dataclass(slots=True)
class _Dial:
    """A peer that this endpoint was told to reach, until `hang_up`."""

    name: str
    address: str
    number: int = 0
    delay_s: float = _REDIAL_FIRST_S
    """Before the next attempt; starts anew only after a link that lasted."""
    live_since: float = 0.0
    link: DrivenLink | None = None
    timer: asyncio.TimerHandle | None = None


class LinkEndpoint(Endpoint, Surroundings):
    """Base of the adapters' endpoints."""

    def __init__(self, me: Peer, handler: LinkHandler, options: LinkOptions | None = None) -> None:
        self.me = me
        self.handler = handler
        self.options = options or LinkOptions()
        self.stats = BusStats()
        self._dials: dict[str, _Dial] = {}
        self._accepted: dict[bytes, DrivenLink] = {}
        self._accepted_names: dict[str, bytes] = {}
        self._to_flush: list[DrivenLink] = []
        self._gathering: dict[DrivenLink, float] = {}
        """Links that were given something lazily, and when that leaves if nothing takes it along."""
        self._gather_timer: asyncio.TimerHandle | None = None
        self._stuck: dict[DrivenLink, None] = {}
        self._flush_scheduled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self._ticked_at = 0.0
        self._refusals_told: dict[tuple[str, str], float] = {}
        """When the log heard of this refusal of this peer."""
        self._links_made = 0
        self._closing = False

    # -- for the adapter -------------------------------------------------------------------------------

    @abstractmethod
    def _connect(self, address: str, heard: Callable[[Sequence[bytes]], None], broke: Broke) -> Connection:
        """A fresh connection to a listener. `heard` gets each multipart message from it, `broke` is called
        if it is known to have ended. Raises `BusError` if there can be none."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("the endpoint is not started")
        return self._loop

    @property
    def running(self) -> bool:
        return self._loop is not None and not self._closing

    def _begin(self) -> None:
        """Start the clockwork; dials that were asked for before go out now."""
        self._loop = asyncio.get_running_loop()
        self._ticked_at = self._loop.time()
        self._arm_tick()
        for dial in self._dials.values():
            self._place_if_allowed(dial)

    def _finish(self, *, tell: bool = True) -> None:
        """End every link (saying goodbye if `tell`) and stop the clockwork."""
        self._closing = True
        if self._tick_timer is not None:
            self._tick_timer.cancel()
            self._tick_timer = None
        for name in list(self._dials):
            self._forget_dial(name, tell=tell)
        for link in list(self._accepted.values()):
            link.end("closed", tell=tell)
        if self._gather_timer is not None:
            self._gather_timer.cancel()
        self._gathering.clear()
        self._to_flush.clear()
        self._stuck.clear()
        self._loop = None

    def _heard_accepted(
        self, key: bytes, parts: Sequence[bytes], make_connection: Callable[[bytes], Connection]
    ) -> None:
        """A multipart message that came in on the listening side, from the connection called `key`."""
        header = decode_header(parts[0]) if parts else None
        link = self._accepted.get(key)
        if header is None:
            if link is not None:
                link.drop("corrupt")
            else:
                self.stats.corrupt += 1
        elif header.kind == HELLO:
            self._hello(key, header, parts, make_connection)
        elif link is not None:
            link.heard(header, parts)
        elif header.kind != BYE:
            # It believes in a link with an earlier life of ours: it should know at once.
            make_connection(key).write(farewell(self.me, header, "replaced"))

    def _heard_dialled(self, link: DrivenLink, parts: Sequence[bytes]) -> None:
        header = decode_header(parts[0]) if parts else None
        if header is None:
            link.drop("corrupt")
        else:
            link.heard(header, parts)

    def _connection_broke(self, link: DrivenLink, for_good: bool = False) -> None:
        """The adapter knows that a live dialled link's connection is gone. A greeting one just goes on, unless its
        connection is not tried again by itself: then it is dialled anew."""
        if for_good or link.machine.state is State.LIVE:
            link.end("closed", tell=False)

    def _retry_stuck(self) -> None:
        for link in list(self._stuck):
            link.flush()
            if not link.stuck:
                self._stuck.pop(link, None)

    # -- the port --------------------------------------------------------------------------------------

    def dial(self, name: str, address: str) -> None:
        known = self._dials.get(name)
        if known is not None:
            if known.address == address:
                return
            self._forget_dial(name, tell=True)
        dial = self._dials[name] = _Dial(name, address)
        if self.running:
            try:
                self._place_if_allowed(dial)
            except BusError:
                del self._dials[name]
                raise

    def hang_up(self, name: str) -> None:
        if name in self._dials:
            self._forget_dial(name, tell=True)
        key = self._accepted_names.get(name)
        if key is not None:
            self._accepted[key].end("closed")

    # -- dialling --------------------------------------------------------------------------------------

    def _place_if_allowed(self, dial: _Dial) -> None:
        try:
            self._place(dial)
        except KeyRefused:  # told and counted by who found it
            self._place_later(dial)

    def _place(self, dial: _Dial) -> None:
        dial.timer = None
        self._links_made += 1
        dial.number = self._links_made
        machine = LinkMachine.dial(self.me, self.options, dial.number, dial.name, self.stats.of(dial.name), self.now())
        links: list[DrivenLink] = []
        connection = self._connect(
            dial.address,
            lambda parts: self._heard_dialled(links[0], parts),
            lambda for_good=False: self._connection_broke(links[0], for_good),
        )
        dial.link = DrivenLink(machine, connection, self)
        links.append(dial.link)
        self.want_flush(dial.link)

    def _place_later(self, dial: _Dial) -> None:
        dial.timer = self.loop.call_later(dial.delay_s, self._place_again, dial)
        dial.delay_s = min(_REDIAL_LAST_S, dial.delay_s * 2)

    def _place_again(self, dial: _Dial) -> None:
        try:
            self._place_if_allowed(dial)
        except BusError as error:
            _log.warning("%s is dialled again later: %s", dial.name, error)
            self._place_later(dial)

    def _forget_dial(self, name: str, *, tell: bool) -> None:
        dial = self._dials.pop(name)
        if dial.timer is not None:
            dial.timer.cancel()
        if dial.link is not None:
            dial.link.end("closed", tell=tell)

    # -- accepting -------------------------------------------------------------------------------------

    def _hello(
        self,
        key: bytes,
        header: Header,
        parts: Sequence[bytes],
        make_connection: Callable[[bytes], Connection],
    ) -> None:
        greeting = decode_greeting(parts)
        known = self._accepted.get(key)
        if greeting is None:
            self.stats.corrupt += 1
        elif known is not None and known.machine.greeted_again(header, self.now()):
            self.want_flush(known)
        elif agreed_version(self.options.version, header.version) is None:
            self._refuse(make_connection(key), header, "version", greeting.name)
        else:
            old = self._accepted.get(self._accepted_names.get(greeting.name, b""))
            if old is None and len(self._accepted) >= MAX_PEERS:
                return self._refuse(make_connection(key), header, "full", greeting.name)
            if old is not None and _is_stale(header, old):
                return self._refuse(make_connection(key), header, "stale", greeting.name)
            if old is not None:
                if old.machine.peer.incarnation != header.sender:
                    _log.info("%s came back as another life of itself", greeting.name)
                old.end("replaced")
            if known is not None and known is not old:
                known.end("replaced")
            stats = self.stats.of(greeting.name)
            machine = LinkMachine.accept(self.me, self.options, header, greeting, stats, self.now())
            link = DrivenLink(machine, make_connection(key), self)
            self._accepted[key] = link
            self._accepted_names[greeting.name] = key
            link.announce()
        return None

    def _refuse(self, connection: Connection, header: Header, why: str, name: str) -> None:
        self.stats.refuse_hello(why)
        if self._is_news(name, why):
            ours = self.options.version
            _log.warning("hello of %s refused: %s (it speaks bus version %d, we %d)", name, why, header.version, ours)
        connection.write(farewell(self.me, header, "version" if why == "version" else "replaced"))

    def _is_news(self, name: str, why: str) -> bool:
        """Whether the log is to hear of this refusal now."""
        now, told_at = self.now(), self._refusals_told.get((name, why))
        if told_at is not None and now - told_at < _REFUSAL_TOLD_S:
            return False
        if len(self._refusals_told) >= _MAX_REFUSED:
            self._refusals_told.clear()
        self._refusals_told[name, why] = now
        return True

    # -- Surroundings ----------------------------------------------------------------------------------

    def now(self) -> float:
        loop = self._loop
        return self._ticked_at if loop is None else loop.time()

    def want_flush(self, link: DrivenLink) -> None:
        if link.flush_wanted and not link.lazy:
            return
        link.flush_wanted = True
        link.lazy = False
        self._to_flush.append(link)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.loop.call_soon(self._flush_all)

    def want_flush_soon(self, link: DrivenLink) -> None:
        link.flush_wanted = link.lazy = True
        due = self._gathering[link] = self.now() + self.options.gather_s
        if self._gather_timer is None:
            self._gather_timer = self.loop.call_at(due, self._flush_gathered)

    def _flush_gathered(self) -> None:
        """All links in one turn, so that what the peers make of it comes back together, too."""
        self._gather_timer = None
        kept = {link: due for link, due in self._gathering.items() if link.lazy}
        first = min(kept.values(), default=0.0)
        if first > self.now() + _TIMER_MARGIN_S:  # what the timer was set for has left with something else
            self._gathering = kept
            self._gather_timer = self.loop.call_at(first, self._flush_gathered)
            return
        self._gathering = {}
        for link in kept:
            link.flush()

    def _flush_all(self) -> None:
        self._flush_scheduled = False
        links, self._to_flush = self._to_flush, []
        for link in links:
            if link.flush_wanted:
                link.flush()
        if self._stuck:
            self._retry_stuck()  # sending to others may have eaten the word that one may be sent to again

    def got_stuck(self, link: DrivenLink) -> None:
        self._stuck[link] = None

    def went_live(self, link: DrivenLink) -> None:
        self.stats.live += 1
        dial = self._dials.get(link.machine.dials)
        if dial is not None and dial.link is link:
            dial.live_since = self.now()

    def ended(self, link: DrivenLink) -> None:
        self._stuck.pop(link, None)
        if link.was_live:
            self.stats.live -= 1
        dial = self._dials.get(link.machine.dials)
        if dial is not None and dial.link is link:
            dial.link = None
            if link.machine.lost_reason == "version" and self._is_news(dial.name, "version"):
                _log.warning("%s does not speak our bus version (%d); dialling on", dial.name, self.options.version)
            if link.was_live and self.now() - dial.live_since > self.options.expiry_s:
                dial.delay_s = _REDIAL_FIRST_S
            self._place_later(dial)
            return
        key = self._accepted_names.get(link.peer.name)
        if key is not None and self._accepted.get(key) is link:
            del self._accepted[key], self._accepted_names[link.peer.name]

    def handler_failed(self, error: Exception, link: DrivenLink) -> None:
        self.loop.call_exception_handler(
            {"message": f"the handler of the link to {link.peer.name} failed", "exception": error}
        )

    # -- time ------------------------------------------------------------------------------------------

    def _arm_tick(self) -> None:
        period_s = self.options.heartbeat_s / _TICKS_PER_HEARTBEAT
        # On a grid, where other timers of the process ring too: a wake-up costs more than what is done in it.
        due = floor(self.loop.time() / period_s + 1.5) * period_s
        self._tick_timer = self.loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._arm_tick()
        now = self.now()
        links = [d.link for d in self._dials.values() if d.link is not None]
        links.extend(self._accepted.values())
        if now - self._ticked_at > self.options.stall_s:
            for link in links:
                link.machine.excuse(now)
        self._ticked_at = now
        for link in links:
            link.tick(now)
        self._retry_stuck()


def _is_stale(header: Header, old: DrivenLink) -> bool:
    """A HELLO of the same life as the live link, but of an earlier attempt: it was under way for long."""
    return header.sender == old.machine.peer.incarnation and header.link < old.machine.number
