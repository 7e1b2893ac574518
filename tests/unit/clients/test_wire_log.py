"""What the server wrote is read back from bytes, and what is wrong in it is found."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from clients.wire_log import Received, read, violations

pytestmark = pytest.mark.unit

HEAD = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
DONE = {"type": "input_audio_buffer.cleared", "event_id": "e1"}


def frame(payload: bytes, first: int) -> bytes:
    size = len(payload)
    length = bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2, "big")
    return bytes([first]) + length + payload


def received(*events: dict[str, Any]) -> Received:
    return Received(101, [json.dumps(event).encode() for event in events])


def test_plain_split_and_closing_frames() -> None:
    body = json.dumps(DONE).encode()
    data = HEAD + b"\r\n" + frame(body, 0x81) + frame(body[:9], 0x01) + frame(b"", 0x89) + frame(body[9:], 0x80)
    log = read(data + frame((1012).to_bytes(2, "big"), 0x88) + b"\x81\x20cut off")
    assert log.events == [DONE, DONE] and log.close_code == 1012


def test_compressed_frames_share_their_window() -> None:
    deflate = zlib.compressobj(wbits=-15)
    data = HEAD + b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
    for _ in range(2):
        packed = deflate.compress(json.dumps(DONE).encode()) + deflate.flush(zlib.Z_SYNC_FLUSH)
        data += frame(packed[:-4], 0xC1)
    assert read(data).events == [DONE, DONE]


def test_a_refused_upgrade_has_its_status() -> None:
    assert read(b"HTTP/1.1 503 Service Unavailable\r\n\r\n{}").status == 503


def test_what_is_wrong_is_found() -> None:
    assert violations(received(DONE)) == []
    delta = {"type": "response.output_audio.delta", "event_id": "e", "response_id": "r", "delta": ""}
    whole = {**delta, "item_id": "i", "output_index": 0, "content_index": 0}
    assert "output_audio.delta is not what" in violations(received(delta))[0]
    done = {"type": "response.done", "event_id": "d", "response": {"id": "r", "output": []}}
    assert violations(received(done, whole)) == ["response.output_audio.delta came after response.done"]
    added = {"type": "response.content_part.added", "part": {"type": "audio"}}
    assert violations(received(whole, {**whole, **added})) == ["response.content_part.added of i came too late"]
    error = {"type": "error", "event_id": "x", "error": {"type": "server_error", "code": "odd", "message": "m"}}
    assert "nobody asked for" in violations(received(error))[0]
    assert violations(received(error), ["odd"]) == []
