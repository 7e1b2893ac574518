"""The plain HTTP of the gateway: models, health, readiness, metrics, drain.

Rule 1. `/health` says only that this process runs its loop; it waits for nothing.
Rule 2. `/readyz` says whether a session could be opened here now, and what is missing.
Rule 3. Where keys are configured, what tells or changes something about sessions needs one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Protocol

from fastapi import FastAPI, Header, Query
from fastapi.responses import JSONResponse, Response

from duologue.gateway.admission import KeyRing
from duologue.gateway.router import Router


class Operations(Protocol):
    """What HTTP may ask of the running gateway."""

    def unready(self) -> Sequence[str]:
        """What keeps it from being ready, in words."""
        ...

    def drain(self, deadline_s: float) -> None:
        """Take no new sockets; close what is left at the deadline."""


def http_app(router: Router, keys: KeyRing, operations: Operations, metrics: Callable[[], bytes]) -> FastAPI:
    """The FastAPI application; WebSockets never reach it."""
    app = FastAPI(title="Duologue gateway", docs_url=None, redoc_url=None, openapi_url=None)

    def refused(authorization: str | None) -> JSONResponse | None:
        scheme, _, key = (authorization or "").partition(" ")
        if keys.principal(key.strip() if scheme.lower() == "bearer" else "") is not None:
            return None
        error = {
            "type": "invalid_request_error",
            "code": "invalid_api_key",
            "message": "the API key is missing or unknown",
        }
        return JSONResponse({"error": error}, 401, {"WWW-Authenticate": "Bearer"})

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        missing = list(operations.unready())
        return JSONResponse({"ready": not missing, "missing": missing}, 503 if missing else 200)

    @app.get("/v1/models", response_model=None)
    async def models(authorization: Annotated[str | None, Header()] = None) -> Response:
        data = [
            {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": "duologue",
                "ready": pipeline.ready,
                "input_rate_hz": pipeline.input_rate_hz,
                "output_rate_hz": pipeline.output_rate_hz,
                "capabilities": pipeline.capabilities.to_realtime(),
            }
            for name, pipeline in router.models.items()
        ]
        return refused(authorization) or JSONResponse({"object": "list", "data": data})

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
