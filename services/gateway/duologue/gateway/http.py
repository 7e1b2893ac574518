"""The plain HTTP of the gateway: chat, client secrets, models, health, readiness, metrics, drain.

Rule 1. `/health` says only that this process runs its loop; it waits for nothing.
Rule 2. `/readyz` says whether a session could be opened here now, and what is missing.
Rule 3. Where keys are configured, what tells, makes or changes something needs one; a client secret is none.
Rule 4. Every error is coded, those of routes that are not served included.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Protocol

from fastapi import FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.routing import Route

from duologue.gateway.admission import KeyRing
from duologue.gateway.coded import Receive, Scope, Send, answer, bearer_of, error_answer
from duologue.gateway.models import model_object
from duologue.gateway.not_served import refusal
from duologue.gateway.router import Router
from duologue.protocol.duplex import RealtimeProtocolError

Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


class Operations(Protocol):
    """What HTTP may ask of the running gateway."""

    def unready(self) -> Sequence[str]:
        """What keeps it from being ready, in words."""
        ...

    def drain(self, deadline_s: float) -> None:
        """Take no new sockets; close what is left at the deadline."""


class Guarded:
    """A route that needs a key."""

    def __init__(self, keys: KeyRing, route: Asgi) -> None:
        self._keys = keys
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._keys.principal(bearer_of(scope)) is None:
            await answer(send, *error_answer(_no_key()))
        else:
            await self._route(scope, receive, send)


def http_app(
    router: Router,
    keys: KeyRing,
    operations: Operations,
    metrics: Callable[[], bytes],
    *,
    chat: Asgi,
    client_secrets: Asgi,
) -> FastAPI:
    """The FastAPI application; WebSockets never reach it."""
    app = FastAPI(title="Duologue gateway", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(HTTPException, _not_served)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.router.routes += [
        Route("/v1/chat/completions", Guarded(keys, chat), methods=["POST"]),
        Route("/v1/realtime/client_secrets", client_secrets, methods=["POST"]),
    ]

    def refused(authorization: str | None) -> Response | None:
        scheme, _, key = (authorization or "").partition(" ")
        known = keys.principal(key.strip() if scheme.lower() == "bearer" else "") is not None
        return None if known else _response(_no_key())

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        missing = list(operations.unready())
        return JSONResponse({"ready": not missing, "missing": missing}, 503 if missing else 200)

    @app.get("/v1/models", response_model=None)
    async def models(authorization: Annotated[str | None, Header()] = None) -> Response:
        data = [model_object(pipeline) for pipeline in router.models.values()]
        return refused(authorization) or JSONResponse({"object": "list", "data": data})

    @app.get("/v1/models/{name:path}", response_model=None)
    async def model(name: str, authorization: Annotated[str | None, Header()] = None) -> Response:
        if answer := refused(authorization):
            return answer
        pipeline = router.models.get(name)
        if pipeline is None:
            error = RealtimeProtocolError("model_not_found", f"there is no model {name[:80]!r}", param="model")
            return _response(error)
        return JSONResponse(model_object(pipeline))

    @app.get("/metrics")
    async def exposition() -> Response:
        return Response(metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.post("/drain", response_model=None)
    async def drain(
        authorization: Annotated[str | None, Header()] = None,
        deadline_s: Annotated[float, Query(ge=0, le=3600)] = 30.0,
    ) -> Response:
        answer = refused(authorization)
        if answer is None:
            operations.drain(deadline_s)
            answer = JSONResponse({"draining": True, "deadline_s": deadline_s}, 202)
        return answer

    return app


def _no_key() -> RealtimeProtocolError:
    return RealtimeProtocolError("invalid_api_key", "the API key is missing or unknown")


def _response(error: RealtimeProtocolError, more: dict[str, str] | None = None) -> Response:
    status, body, headers = error_answer(error)
    return Response(body, status, {**headers, **(more or {})}, media_type="application/json")


async def _not_served(request: Request, raised: Exception) -> Response:
    assert isinstance(raised, HTTPException)
    error = refusal(request.method, request.url.path, raised.status_code)
    more = dict(raised.headers or {})
    if error.code == "upgrade_required":
        more["Upgrade"] = "websocket"
    return _response(error, more)


async def _invalid(request: Request, raised: Exception) -> Response:
    assert isinstance(raised, RequestValidationError)
    found = raised.errors()[0]
    param = ".".join(str(place) for place in found["loc"][1:])
    return _response(RealtimeProtocolError("invalid_request", found["msg"], param=param))
