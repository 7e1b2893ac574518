"""DuplexClient: one full-duplex session over a WebSocket, resumed by itself when the connection is lost.

    async with DuplexClient("ws://127.0.0.1:8080", model="cascade") as client:
        sending = asyncio.create_task(client.stream_pcm(question))
        async for response in client.responses():
            async for pcm in response.audio():
                speaker.play(pcm)

Events are typed (docs/protocol.md); `ConnectionResumed` is the client's own. A lost connection is resumed
with the token; commands that the server did not hold are sent again. docs/client.md tells the whole of it.
"""

from __future__ import annotations

from duologue.client import websocket
from duologue.client.base import DEFAULT_RECONNECT, HANDSHAKE_S, HEARTBEAT_S, DuplexClientBase
from duologue.client.config import SessionConfig
from duologue.client.lifeline import TraceFrame
from duologue.client.reconnect import ReconnectPolicy
from duologue.client.transport import Transport
from duologue.client.urls import build_realtime_url


class DuplexClient(DuplexClientBase):
    """A session on a server. Raises ValueError for an address that is none; see `errors` for the rest."""

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        config: SessionConfig | None = None,
        reconnect: ReconnectPolicy | None = DEFAULT_RECONNECT,
        heartbeat_interval_s: float | None = HEARTBEAT_S,
        handshake_timeout_s: float = HANDSHAKE_S,
        api_key: str | None = None,
        trace: TraceFrame | None = None,
    ) -> None:
        """`reconnect=None` never resumes. `trace(direction, frame)` sees every frame (see `DuplexTrace`)."""
        self.url = build_realtime_url(url, model)
        """What is dialled, the next time too."""
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        super().__init__(
            model=model,
            config=config,
            reconnect=reconnect,
            heartbeat_interval_s=heartbeat_interval_s,
            handshake_timeout_s=handshake_timeout_s,
            trace=trace,
        )

    async def _dial(self) -> Transport:
        return await websocket.dial(self.url, self._headers, self._handshake_s)
