"""The ASGI application: WebSockets to `ClientSocket`, everything else to FastAPI.

Rule 1. Who may not connect is answered in plain HTTP, before the WebSocket is accepted.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from duologue.gateway.admission import Refusal
from duologue.gateway.client_socket import ClientSocket
from duologue.gateway.context import Gateway
from duologue.gateway.handshake import PATHS, SECRET_PREFIX, Offer, read_offer
from duologue.gateway.secrets import SecretPass, present
from duologue.gateway.wire import EXTENSION, Wire
from duologue.protocol.duplex import error_type_of
from duologue.store.ports import StoreUnavailable

_log = logging.getLogger("duologue.gateway")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

_STORE_AWAY = Refusal(503, "store_unavailable", "the store does not answer; try again", 1000)
_NOT_FOUND = Refusal(404, "unknown_url", "there is no WebSocket here; see /v1/realtime and /v1/duplex")

OPERATOR_PATHS = frozenset({"/metrics", "/readyz", "/health", "/drain"})
_NOT_OPERATORS = msgspec.json.encode(
    {
        "error": {
            "type": error_type_of("unknown_url"),
            "code": "unknown_url",
            "message": f"this is the operator's port: {', '.join(sorted(OPERATOR_PATHS))}",
        }
    }
)


class GatewayApp:
    """What uvicorn calls for each connection."""

    def __init__(self, gateway: Gateway, http: Asgi) -> None:
        self._gateway = gateway
        self.http = http

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        elif scope["type"] == "lifespan":
            await _lifespan(receive, send)
        else:
            await self.http(scope, receive, send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (await receive())["type"] != "websocket.connect":
            return
        path = str(scope["path"]).rstrip("/")
        if path not in PATHS:
            return await self._refuse(send, _NOT_FOUND)
        offer = read_offer(path, scope["query_string"], scope["headers"], scope["subprotocols"])
        gateway = self._gateway
        secret = await self._presented(offer)
        if isinstance(secret, Refusal):
            return await self._refuse(send, secret)
        known = None if secret is None else secret.principal
        judged = gateway.admission.judge(offer, lambda principal: gateway.place(offer, principal), known)
        if isinstance(judged, Refusal):
            return await self._refuse(send, judged)
        await send({"type": "websocket.accept", "subprotocol": offer.subprotocol, "headers": []})
        wire: Wire = scope["extensions"][EXTENSION]
        remote = gateway.proxies.client_of((scope.get("client") or ("",))[0], scope["headers"])
        await ClientSocket(gateway, offer, judged, wire, receive, secret, remote).run()

    async def _presented(self, offer: Offer) -> SecretPass | Refusal | None:
        """The client secret of this offer, if it has one that is good for what it may be here for."""
        gateway = self._gateway
        if not offer.key.startswith(SECRET_PREFIX) or gateway.admission.keys.principal(offer.key) is not None:
            return None
        if not gateway.store_ready():
            return _STORE_AWAY
        try:
            found = await present(gateway.secrets, offer.key)
        except StoreUnavailable:
            return _STORE_AWAY
        return found if found is not None and (found.fresh or offer.may_resume) else None

    async def _refuse(self, send: Send, refusal: Refusal) -> None:
        """Answer the upgrade request as HTTP (the ASGI extension `websocket.http.response`)."""
        self._gateway.tally.refused(refusal.reason or refusal.code)
        headers = [(b"content-type", b"application/json")]
        if refusal.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if refusal.retry_after_ms:
            headers.append((b"retry-after", str(refusal.retry_after_s).encode()))
        error: dict[str, object] = {
            "type": error_type_of(refusal.code),
            "code": refusal.code,
            "message": refusal.message,
        }
        if refusal.retry_after_ms:
            error["retry_after_ms"] = refusal.retry_after_ms
        body = msgspec.json.encode({"error": error})
        await send({"type": "websocket.http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": body})


class OperatorApp:
    """What is asked of one process, and nothing that a client asks."""

    def __init__(self, http: Asgi) -> None:
        self._http = http

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in OPERATOR_PATHS:
            return await self._http(scope, receive, send)
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 404, "headers": headers})
        await send({"type": "http.response.body", "body": _NOT_OPERATORS})


async def _lifespan(receive: Receive, send: Send) -> None:
    """Start and stop are the process's own business (see `serve`)."""
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return
