"""SessionContext: one session while a command is handled: its state, what it was made with, and the effects so far.

SANS-I/O. Every other module of the core is functions over a context. Rule: an event is projected, rendered
and put into the output buffer in the step that emits it, so that overflow is decided there.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import UNSET

from duologue.model.plugin import DuplexModelPlugin, ModelTraits
from duologue.protocol.duplex import (
    Dialect,
    DuplexCapabilities,
    DuplexEvent,
    RealtimeProtocolError,
    SessionConfig,
    SessionView,
    error_event,
    project,
)
from duologue.session.core.detection import rules_for
from duologue.session.core.ears import Ears
from duologue.session.core.effects import SessionEffect
from duologue.session.core.engine_session import DuplexEngineSession, OpenResponse
from duologue.session.core.ledger import PlaybackLedger
from duologue.session.core.observations import Observations
from duologue.session.core.outbox import Entry
from duologue.session.core.voice import Voice

_SPREAD = 0x9E3779B1


class SessionContext:
    """`model` is the plugin's own state of this session; `ears` and `voice` are the converters, which hold
    what soxr cannot give away and are re-creatable from the state."""

    __slots__ = (
        "auto",
        "capabilities",
        "dialect",
        "duplex",
        "ears",
        "effects",
        "event_prefix",
        "lead_ms",
        "limits",
        "model",
        "now",
        "observed",
        "overflow",
        "plans",
        "plugin",
        "rebuilds",
        "rules",
        "silence",
        "spread",
        "state",
        "takes",
        "traits",
        "unit_bytes",
        "view",
        "voice",
        "window",
    )

    def __init__(self, state: DuplexEngineSession, plugin: DuplexModelPlugin[Any], model: msgspec.Struct) -> None:
        self.state = state
        self.plugin = plugin
        self.model = model
        self.traits: ModelTraits = plugin.traits
        self.plans = self.traits.answers == "plan"
        self.limits = state.limits
        self.dialect = state.dialect
        self.duplex = state.dialect is Dialect.duplex
        self.capabilities: DuplexCapabilities = plugin.capabilities(state.max_sessions)
        self.takes = (
            *self.capabilities.required_input_modalities,
            *self.capabilities.optional_input_modalities,
        )
        """What input the model takes, required or not."""
        self.now = state.now
        self.lead_ms = plugin.pipeline.max_output_lead_ms
        self.rebuilds = plugin.pipeline.rebuild
        """How a context that is lost with its stages is given to new ones."""
        self.window = self.traits.max_in_flight if plugin.pipeline.pipelined else 1
        """How many units of input may be in the pipeline at once."""
        self.effects: list[SessionEffect] = []
        self.overflow = False
        self.observed = Observations()
        self.unit_bytes = round(self.traits.unit_ms * self.traits.input_rate_hz / 1000) * 4
        self.silence = bytes(self.unit_bytes)
        self.ears = Ears(state.config.input_format, self.traits.input_rate_hz, state.sound.carry)
        self.voice = Voice()
        self.voice.take_up(state.sound.voice_carry)
        self.configured(state.config)
        digest = blake2b(b"%d" % state.owner, key=state.seed[:64], digest_size=12).hexdigest()
        self.event_prefix = f"event_{digest[:16]}"
        self.spread = int(digest[16:], 16)

    def configured(self, config: SessionConfig) -> None:
        """What follows from the configuration in force."""
        self.auto = config.auto_response
        self.view = SessionView(self.state.session_id, config)
        self.rules = rules_for(config, plans=self.plans)

    # -- what is asked all the time ---------------------------------------------------------------------

    @property
    def response(self) -> OpenResponse | None:
        return self.state.response

    def ledger(self, response_id: str) -> PlaybackLedger:
        return self.state.ledgers[response_id]

    def playing(self) -> PlaybackLedger | None:
        """The latest finished response that the client still plays."""
        ledger = self.state.ledgers.get(self.state.last_response_id)
        return ledger if ledger is not None and ledger.complete and ledger.playing(self.now) else None

    def busy(self) -> bool:
        """A response is being made or still played."""
        return self.state.response is not None or self.playing() is not None

    # -- ids ----------------------------------------------------------------------------------------------

    def event_id(self) -> str:
        state = self.state
        state.events = count = state.events + 1
        return f"{self.event_prefix}{count:016x}"

    def hex32(self) -> str:
        """A new id, the same for the same session, owner and count."""
        self.state.ids += 1
        text = b"%d:%d" % (self.state.owner, self.state.ids)
        return blake2b(text, key=self.state.seed[:64], digest_size=16).hexdigest()

    def item_id(self) -> str:
        return f"item_{self.hex32()}"

    def response_id(self) -> str:
        """Never the same twice under one owner: the count goes through a permutation of 32 bits."""
        self.state.ids += 1
        tail = (self.spread + self.state.ids * _SPREAD) & 0xFFFFFFFF
        return f"resp-{self.state.session_id}-{self.state.epoch}-{tail:08x}"

    # -- output -------------------------------------------------------------------------------------------

    def emit(
        self,
        event: DuplexEvent,
        *,
        structural: bool = True,
        reserved: bool = False,
        media_of: str = "",
        through_ms: float = 0.0,
        close_code: int = 0,
        close_reason: str = "",
    ) -> None:
        """Render one event and buffer it. Overflow suppresses it, and every ordinary one after it, until
        the policy has been carried out at the end of the step."""
        state = self.state
        outbox = state.outbox
        bodies = project(event, self.dialect, self.view)
        if structural and (state.echoes.told or state.echoes.silent):
            bodies = state.echoes.untold(bodies, self.now)
        last = len(bodies)
        for number, body in enumerate(bodies, 1):
            if not close_code and (
                (self.overflow and not reserved) or not outbox.fits(len(body), reserved, self.limits)
            ):
                self.overflow = True
                return
            outbox.n += 1
            entry = Entry(outbox.n, body, structural, media_of, state.epoch)
            if number == last:
                entry.through_ms, entry.close_code, entry.close_reason = through_ms, close_code, close_reason
            deliver = outbox.put(entry)
            if deliver is not None:
                self.effects.append(deliver)
        if structural:
            outbox.dirty = True

    def error(self, error: RealtimeProtocolError, event_id: str | None = None) -> None:
        """Tell the client of a refusal; `event_id` is the client's own, if it sent one."""
        self.observed.rejected += error.code == "input_backpressure"
        if event_id is not None and error.event_id is None:
            error.event_id = event_id
        self.emit(error_event(error, self.event_id()), reserved=True)

    def stale(self, kind: str) -> None:
        """Count something that came too late to mean anything."""
        self.state.stale[kind] = self.state.stale.get(kind, 0) + 1


__all__ = ["UNSET", "SessionContext"]
