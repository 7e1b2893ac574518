"""`POST /v1/chat/completions`: one turn, answered whole or as server-sent events.

Rule 1. Nothing is written before the turn has said something: what is refused is an HTTP error, streamed or not.
        What fails later in a stream is an `error` in it.
Rule 2. A client that closes its connection cancels its turn.
Rule 3. The front door's time limit is for silence; while a turn is made, and until it is read, a longer one is.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from duologue.gateway.chat.answer import ChatAnswer, sse
from duologue.gateway.chat.request import read_request
from duologue.gateway.chat.turn import PendingTurn
from duologue.gateway.chat.turns import PendingTurns, ask
from duologue.gateway.coded import (
    ClientGone,
    Receive,
    Scope,
    Send,
    answer,
    error_answer,
    error_object,
    read_body,
    read_object,
)
from duologue.gateway.front_door import PATIENCE
from duologue.gateway.links import ShardLinks
from duologue.gateway.router import Router
from duologue.protocol.duplex import RealtimeProtocolError
from duologue.runtime import metrics

TURN_S: Final = 150.0
"""For a turn and the reading of its answer; a shard ends the turn itself before that."""
EVENT_STREAM: Final = b"text/event-stream; charset=utf-8"


class ChatCompletions:
    """The ASGI application of this one route; who asks has been let in."""

    def __init__(self, router: Router, links: ShardLinks, turns: PendingTurns, max_body_bytes: int) -> None:
        self._router = router
        self._links = links
        self._turns = turns
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        result = "cancelled"
        try:
            with self._turns.place():
                result = await self._serve(scope, receive, send)
        except RealtimeProtocolError as error:
            result = error.code
            await answer(send, *error_answer(error))
        except ClientGone:
            pass
        finally:
            metrics.GATEWAY_CHAT_TURNS.labels(result).inc()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> str:
        """How it ended. Raises RealtimeProtocolError while nothing is written."""
        body = await read_body(scope, receive, self._max_body_bytes)
        request = read_request(read_object(body))
        patience = scope.get("extensions", {}).get(PATIENCE)
        if patience is not None:
            patience["extend"](TURN_S)
        with self._turns.turn() as turn:
            watching = asyncio.create_task(_until_gone(receive, turn))
            try:
                first = await ask(turn, request, self._router, self._links)
                told = ChatAnswer(request, turn.id, int(time.time()))
                make = _streamed if request.stream else _whole
                return await make(turn, told, first, send)
            finally:
                watching.cancel()


async def _until_gone(receive: Receive, turn: PendingTurn) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    turn.client_gone()


async def _whole(turn: PendingTurn, told: ChatAnswer, event: bytes | None, send: Send) -> str:
    while event is not None:
        told.take(event)
        event = await turn.next()
    if turn.gone:
        return "cancelled"
    told.over()
    if failed := turn.error or told.error:
        raise failed
    await answer(send, 200, told.whole())
    return "completed"


async def _streamed(turn: PendingTurn, told: ChatAnswer, event: bytes | None, send: Send) -> str:
    begun = False
    while event is not None:
        chunks = b"".join(map(told.chunk, told.take(event)))
        if chunks:
            if not begun:
                begun = True
                await _begin(send)
            await send({"type": "http.response.body", "body": chunks, "more_body": True})
        event = await turn.next()
    if turn.gone:
        return "cancelled"
    told.over()
    failed = turn.error or told.error
    if failed is not None and not begun:
        raise failed
    if not begun:
        await _begin(send)
    end = told.tail() if failed is None else sse({"error": error_object(failed)})
    await send({"type": "http.response.body", "body": end})
    return "completed" if failed is None else failed.code


async def _begin(send: Send) -> None:
    headers = [(b"content-type", EVENT_STREAM), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
