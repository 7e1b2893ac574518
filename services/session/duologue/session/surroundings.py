"""What all sessions of a shard share."""

from __future__ import annotations

from dataclasses import dataclass, field

from duologue.session.accounts import Accounts
from duologue.session.attachment import MakeEgress
from duologue.session.background import Background
from duologue.session.cleanup import Cleanup
from duologue.session.clockwork import Clockwork
from duologue.session.detector import SpeechDetector
from duologue.session.mailbox import MAX_FACTS
from duologue.session.offload import OffloadPool
from duologue.session.recorder import Recorder
from duologue.session.stages import StageHub
from duologue.session.tallies import Tallies
from duologue.store.ports import Journal, SessionStore


@dataclass(frozen=True, slots=True)
class Surroundings:
    store: SessionStore
    journal: Journal
    background: Background
    cleanup: Cleanup
    offload: OffloadPool
    hub: StageHub
    make_egress: MakeEgress
    tallies: Tallies
    recorder: Recorder | None = None
    max_facts: int = MAX_FACTS
    """The bound of each session's mailbox."""
    detector: SpeechDetector | None = None
    clockwork: Clockwork | None = None
    """None: each session has its own."""
    accounts: Accounts = field(default_factory=Accounts)
