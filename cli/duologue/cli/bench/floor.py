"""The floor: the least that a Python WebSocket server can do with this workload.

uvicorn with websockets-sansio and uvloop, one raw ASGI application. Of an append it reads the first bytes and
counts; every `--appends` of them it sends one prebuilt audio delta and one transcript delta of the same size
as the product's. Nothing is decoded, nothing is encoded, nothing is remembered.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn

Message = MutableMapping[str, Any]

APPEND = '{"type":"input_audio_buffer.append"'
SESSION = '"session":{"id":"floor","object":"realtime.session"}'
SCOPED = '"response_id":"r","item_id":"item_r","output_index":0,"content_index":0'


class Floor:
    def __init__(self, appends_per_unit: int, audio_chars: int) -> None:
        self._appends = appends_per_unit
        head = f'"event_id":"event_0",{SCOPED},"delta":'
        self._audio = (
            f'{{"type":"response.output_audio.delta",{head}"{"A" * audio_chars}",'
            '"format":"pcm16","sample_rate_hz":24000,"server_event_seq":'
        )
        self._text = f'{{"type":"response.output_audio_transcript.delta",{head}"word ","server_event_seq":'

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await self._serve(receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"ok"})

    async def _serve(
        self, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        seq = appended = 0
        while (message := await receive())["type"] != "websocket.disconnect":
            text = message["text"]
            if text.startswith(APPEND):
                appended += 1
                if appended % self._appends:
                    continue
                frames = [f"{self._audio}{seq + 1}}}", f"{self._text}{seq + 2}}}"]
            elif "session.update" in text[:40]:
                created = f'{{"type":"session.created","event_id":"event_c",{SESSION}}}'
                frames = [created, f'{{"type":"session.updated",{SESSION},"server_event_seq":{seq + 1}}}']
            elif "response.cancel" in text[:40]:
                done = '"response":{"id":"r","status":"cancelled"},"response_id":"r"'
                frames = [f'{{"type":"response.done",{done},"server_event_seq":{seq + 1}}}']
            elif "session.close" in text[:40]:
                await send({"type": "websocket.close"})
                return
            else:
                continue
            seq += sum("server_event_seq" in frame for frame in frames)
            for frame in frames:
                await send({"type": "websocket.send", "text": frame})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--appends", type=int, default=1, help="appends in one unit")
    parser.add_argument("--audio-chars", type=int, default=5120, help="base64 characters of audio in one unit")
    options = parser.parse_args()
    uvicorn.run(
        Floor(options.appends, options.audio_chars),
        host="127.0.0.1",
        port=options.port,
        ws="websockets-sansio",
        loop="uvloop",
        lifespan="off",
        log_level="warning",
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=2,
    )


if __name__ == "__main__":
    main()
