"""InlineDuplexClient: `DuplexClient` for a session in this process. The same methods, the same events.

async with DuplexOmni("cascade") as omni, InlineDuplexClient(omni) as client:
    sending = asyncio.create_task(client.stream_pcm(question))
    async for response in client.responses():
        ...
"""

from __future__ import annotations

from duologue.client.base import DEFAULT_RECONNECT, HANDSHAKE_S, HEARTBEAT_S, DuplexClientBase
from duologue.client.config import SessionConfig
from duologue.client.lifeline import TraceFrame
from duologue.client.reconnect import ReconnectPolicy
from duologue.client.transport import Transport
from duologue.inline.omni import DuplexOmni


class InlineDuplexClient(DuplexClientBase):
    """A session of `omni`, which must run. `drop_connection` and what follows works as over a network."""

    def __init__(
        self,
        omni: DuplexOmni,
        *,
        model: str | None = None,
        config: SessionConfig | None = None,
        reconnect: ReconnectPolicy | None = DEFAULT_RECONNECT,
        heartbeat_interval_s: float | None = HEARTBEAT_S,
        handshake_timeout_s: float = HANDSHAKE_S,
        trace: TraceFrame | None = None,
    ) -> None:
        """As for `DuplexClient`."""
        self._omni = omni
        super().__init__(
            model=model,
            config=config,
            reconnect=reconnect,
            heartbeat_interval_s=heartbeat_interval_s,
            handshake_timeout_s=handshake_timeout_s,
            trace=trace,
        )

    async def _dial(self) -> Transport:
        return self._omni.connect(self.model)
