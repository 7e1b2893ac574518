"""Who hears a message is decided by its sender: gateways speak to the manager, workers to the stages."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from duologue.bus.link import Link, LinkHandler, PeerLost
from duologue.bus.messages import AnyMessage, ClientInput, Output
from duologue.session.chat_turns import ChatTurns
from duologue.session.manager import DuplexSessionManager
from duologue.session.stages import StageHub

_log = logging.getLogger("duologue.session")


class Switchboard(LinkHandler):
    """The shard's side of all its links. What a peer of its kind has no business to say is counted."""

    def __init__(self, manager: DuplexSessionManager, hub: StageHub, turns: ChatTurns | None = None) -> None:
        self._manager = manager
        self._turns = turns
        self._hub = hub
        self.gateways = 0
        self.unexpected = 0

    def on_ready(self, link: Link) -> None:
        if link.peer.kind == "worker":
            self._hub.on_ready(link)
        else:
            self.gateways += 1
        _log.info("link to %s %s is up", link.peer.kind, link.peer.name)

    def on_message(self, link: Link, message: AnyMessage, frames: Sequence[bytes]) -> None:
        if isinstance(message, Output):
            self._hub.on_output(link, message, frames)
        elif isinstance(message, ClientInput):
            self._manager.on_input(link, message, frames)
        elif link.peer.kind == "worker":
            if not self._hub.on_message(link, message, frames):
                self.unexpected += 1
        elif not self._manager.on_message(link, message, frames) and not (
            self._turns is not None and self._turns.on_message(link, message, frames)
        ):
            self.unexpected += 1

    def on_credit(self, link: Link) -> None:
        if link.peer.kind == "worker":
            self._hub.on_credit(link)
        else:
            self._manager.on_credit(link)
            if self._turns is not None:
                self._turns.on_credit(link)

    def on_lost(self, link: Link, lost: PeerLost) -> None:
        _log.warning("link to %s %s is lost: %s", link.peer.kind, link.peer.name, lost.reason)
        if link.peer.kind == "worker":
            self._hub.on_lost(link, lost)
        else:
            self.gateways -= 1
            self._manager.gateway_lost(link)
            if self._turns is not None:
                self._turns.gateway_lost(link)
