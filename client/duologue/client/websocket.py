"""The WebSocket of `DuplexClient`, and what a server says that does not let it in."""

from __future__ import annotations

from typing import Final

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.http11 import Response

from duologue.client.errors import DuplexConnectionError, DuplexRefusedError
from duologue.client.transport import Transport, TransportClosed

#: The largest frame that is read.
MAX_FRAME_BYTES: Final = 64 * 1024 * 1024


class WebSocketTransport(Transport):
    """See `dial`."""

    def __init__(self, ws: ClientConnection) -> None:
        self._ws = ws

    async def send(self, frame: str) -> None:
        try:
            await self._ws.send(frame)
        except ConnectionClosed as closed:
            raise self._end(closed) from None

    async def receive(self) -> str | bytes:
        try:
            return await self._ws.recv()
        except ConnectionClosed as closed:
            raise self._end(closed) from None

    async def close(self) -> None:
        await self._ws.close()

    def abort(self) -> None:
        self._ws.transport.abort()

    def _end(self, closed: ConnectionClosed) -> TransportClosed:
        return TransportClosed(1006 if closed.rcvd is None else closed.rcvd.code, self._ws.close_reason or "")


async def dial(url: str, headers: dict[str, str], timeout_s: float) -> Transport:
    """Connect. Raises DuplexConnectionError, or DuplexRefusedError where the server says why."""
    try:
        ws = await connect(
            url,
            additional_headers=headers,
            max_size=MAX_FRAME_BYTES,
            compression=None,
            open_timeout=timeout_s,
        )
    except InvalidStatus as refused:
        raise _refusal(url, refused.response) from None
    except (OSError, InvalidHandshake, ConnectionClosed, TimeoutError) as error:  # closed: before it was asked
        raise DuplexConnectionError(f"cannot connect to {_shown(url)}: {error}") from None
    return WebSocketTransport(ws)


class _Said(msgspec.Struct):
    code: str = ""
    message: str = ""


class _Refusal(msgspec.Struct):
    error: _Said = msgspec.field(default_factory=_Said)


def _refusal(url: str, response: Response) -> DuplexRefusedError:
    try:
        said = msgspec.json.decode(response.body or b"{}", type=_Refusal).error
    except msgspec.DecodeError:
        said = _Said()
    seconds = response.headers.get("Retry-After", "")
    status = response.status_code
    return DuplexRefusedError(
        f"{_shown(url)} answered HTTP {status}: {said.message or response.reason_phrase}",
        status=status,
        code=said.code or f"http_{status}",
        retry_after_ms=int(seconds) * 1000 if seconds.isdecimal() else None,
    )


def _shown(url: str) -> str:
    """Without its query: that may hold a token."""
    return url.partition("?")[0]
