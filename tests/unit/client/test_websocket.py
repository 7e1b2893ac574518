"""Dialling: whatever goes wrong with a connection is told as the client's own error."""

from __future__ import annotations

from typing import NoReturn

import pytest
from websockets.exceptions import ConnectionClosedError, InvalidMessage

from duologue.client import DuplexConnectionError
from duologue.client import websocket as module

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "error",
    [
        ConnectionClosedError(None, None),  # the connection ended before the request was written
        InvalidMessage("did not receive a valid HTTP response"),
        ConnectionResetError("reset"),
        TimeoutError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_connection_that_does_not_come_about_can_be_tried_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def connect(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr(module, "connect", connect)
    with pytest.raises(DuplexConnectionError) as told:
        await module.dial("ws://127.0.0.1:1/v1/realtime?token=secret", {}, 1.0)
    assert told.value.retryable and "secret" not in str(told.value)
