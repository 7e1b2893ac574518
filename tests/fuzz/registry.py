"""Every target, by name."""

from __future__ import annotations

from fuzz import (
    bodies,
    bus_frames,
    client_frames,
    conversations,
    http_bodies,
    server_events,
    sounds,
    store_replies,
    upgrades,
)
from fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        client_frames.TARGET,
        conversations.TARGET,
        sounds.CONVERSION,
        sounds.ENCODED,
        bus_frames.TARGET,
        bodies.BODIES,
        bodies.CHECKPOINTS,
        store_replies.TARGET,
        http_bodies.TARGET,
        upgrades.TARGET,
        server_events.TARGET,
    )
}
