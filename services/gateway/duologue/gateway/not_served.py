"""What a client may ask for and does not get here, each with a coded answer. SANS-I/O."""

from __future__ import annotations

from typing import Final

from duologue.gateway.handshake import PATHS
from duologue.protocol.duplex import RealtimeProtocolError

_TURN_BASED: Final = frozenset(
    "assistants audio batches chat chatkit completions containers conversations embeddings evals files fine_tuning "
    "images moderations realtime responses skills threads uploads vector_stores videos".split()
)
"""The first segment of the OpenAI API's other routes."""


def refusal(method: str, path: str, status: int) -> RealtimeProtocolError:
    """The error for a path that has no route (404), or none for this method (405)."""
    path = path.rstrip("/")
    if path in PATHS:
        return RealtimeProtocolError("upgrade_required", f"{path} is a WebSocket: connect with an upgrade request")
    shown = f"{method[:16]} {path[:80]}"
    if status == 405:
        return RealtimeProtocolError("method_not_allowed", f"{shown} is not served: another method is")
    version, _, rest = path.removeprefix("/").partition("/")
    if version == "v1" and rest.partition("/")[0] in _TURN_BASED:
        return RealtimeProtocolError("not_available", f"{shown} is not available on this server; see docs/http.md")
    return RealtimeProtocolError("unknown_url", f"there is no {shown}")
