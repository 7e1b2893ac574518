"""Counters of one endpoint, plain integers: the adapters count, the metrics room reads at each scrape.

Rule 1. No lock and no label look-up per message: everything here belongs to the loop's thread.
Rule 2. Bounded: past `MAX_NAMES` peer names the rest is counted together, as `other`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_NAMES = 256
OTHER = "other"


@dataclass(slots=True)
class LinkStats:
    """Counters of every link this endpoint has had with one peer name."""

    sent_bytes: int = 0
    sent_batches: int = 0
    sent_messages: int = 0
    received_bytes: int = 0
    received_batches: int = 0
    received_messages: int = 0
    refused: int = 0
    """Multipart messages of another incarnation or another link; nothing of them was used."""
    duplicates: int = 0
    blocked: int = 0
    """Batches kept because the socket took no more."""
    credit_exhausted: int = 0
    credit_exhausted_seconds: float = 0.0
    lost: dict[str, int] = field(default_factory=dict)
    """Links lost, by reason."""


@dataclass(slots=True)
class BusStats:
    """All links of one endpoint."""

    links: dict[str, LinkStats] = field(default_factory=dict)
    live: int = 0
    corrupt: int = 0
    """Multipart messages of nobody in particular that could not be read."""
    hellos_refused: dict[str, int] = field(default_factory=dict)
    """Handshakes refused, by reason: version | name | stale | full."""
    keys_refused: dict[str, int] = field(default_factory=dict)
    """Connections refused for their CURVE keys, by reason. Of who dials us: unknown_key | handshake. Of who is
    dialled: unlisted_peer | no_keys (of one side) | refused_there."""

    def of(self, name: str) -> LinkStats:
        """The counters of the peer of this name, made on first use."""
        found = self.links.get(name)
        if found is None:
            key = name if len(self.links) < MAX_NAMES else OTHER
            found = self.links.setdefault(key, LinkStats())
        return found

    def refuse_hello(self, reason: str) -> None:
        self.hellos_refused[reason] = self.hellos_refused.get(reason, 0) + 1

    def refuse_key(self, reason: str) -> None:
        self.keys_refused[reason] = self.keys_refused.get(reason, 0) + 1
