"""The events of a turn as a chat completion: whole, or chunk by chunk. SANS-I/O.

Rule 1. What the model says of itself is passed on and nothing is made up: no usage where none was told.
Rule 2. The sound of a stream is passed on as it came: base64 of PCM16 at 24 kHz.
Rule 3. A turn that fails is an error, not a completion that happens to be short.
"""

from __future__ import annotations

import binascii
from typing import Any, Final

import msgspec

from duologue.gateway.chat.request import RATE_HZ, ChatRequest, param_of
from duologue.gateway.chat.wav import write_wav
from duologue.protocol.duplex import JsonObject, RealtimeProtocolError

_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode

MAX_WHOLE_BYTES: Final = 32 * 1024 * 1024
"""Of an answer that is not streamed: nothing of it can be sent before its end."""
DONE: Final = b"data: [DONE]\n\n"


def error_of(event: JsonObject) -> RealtimeProtocolError:
    """The error in an `error` event, in terms of the request."""
    told = event["error"]
    return RealtimeProtocolError(
        told["code"],
        told["message"],
        param=param_of(told.get("param")),
        retryable=told.get("retryable"),
        retry_after_ms=told.get("retry_after_ms"),
    )


def sse(payload: object) -> bytes:
    """One event of a stream."""
    return b"data: " + _encode(payload) + b"\n\n"


class ChatAnswer:
    """What a turn has said so far. `take` reads one event; `error` is set when it has failed."""

    def __init__(self, request: ChatRequest, turn_id: str, created: int) -> None:
        self.id = f"chatcmpl-{turn_id.removeprefix('turn-')}"
        self.error: RealtimeProtocolError | None = None
        self._request = request
        self._created = created
        self._told: RealtimeProtocolError | None = None
        """An error that may yet turn out to be of no consequence."""
        self._text: list[str] = []
        self._sound: list[str] = []
        self._calls: list[JsonObject] = []
        self._usage: JsonObject | None = None
        self._finish = "stop"
        self._begun = False
        self._bytes = 0

    def take(self, body: bytes) -> list[JsonObject]:
        """One event; the deltas of a stream that it leads to. Raises `output_backpressure`."""
        event = _decode(body)
        if not self._request.stream:
            self._bytes += len(body)
            if self._bytes > MAX_WHOLE_BYTES:
                raise RealtimeProtocolError("output_backpressure", "too long to be told whole: ask for a stream")
        match event["type"]:
            case "response.output_text.delta":
                self._text.append(event["delta"])
                return [{"content": event["delta"]}]
            case "response.output_audio_transcript.delta":
                self._text.append(event["delta"])
                return [{"audio": {"id": self._audio_id, "transcript": event["delta"]}}] if event["delta"] else []
            case "response.output_audio.delta":
                if self._request.stream:
                    return [{"audio": {"id": self._audio_id, "data": event["delta"]}}]
                self._sound.append(event["delta"])
            case "response.output_item.done":
                return self._called(event["item"])
            case "response.done":
                self._done(event["response"])
            case "error":
                self._told = self._told or error_of(event)
        return []

    @property
    def _audio_id(self) -> str:
        return f"audio_{self.id.removeprefix('chatcmpl-')}"

    def _called(self, item: JsonObject) -> list[JsonObject]:
        if item["type"] != "function_call":
            return []
        function = {"name": item["name"], "arguments": item["arguments"]}
        call = {"id": item["call_id"], "type": "function", "function": function}
        self._calls.append(call)
        return [{"tool_calls": [{"index": len(self._calls) - 1, **call}]}]

    def _done(self, response: JsonObject) -> None:
        usage = response.get("usage")
        if usage is not None and usage.get("total_tokens"):
            self._usage = _added(self._usage, _usage(usage))
        details = response.get("status_details") or {}
        match response["status"]:
            case "failed" | "cancelled":
                code = (details.get("error") or {}).get("code") or "internal_error"
                self.error = self._told or RealtimeProtocolError(code, f"the answer failed: {code}")
            case "incomplete":
                self._finish = "content_filter" if details.get("reason") == "content_filter" else "length"

    def over(self) -> None:
        """The turn is over. An error with no answer after it is what the turn came to."""
        if self.error is None and self._told is not None and not (self._text or self._sound or self._calls):
            self.error = self._told

    # -- shapes ------------------------------------------------------------------------------------------

    @property
    def finish_reason(self) -> str:
        return "tool_calls" if self._calls else self._finish

    def chunk(self, delta: JsonObject, finish_reason: str | None = None) -> bytes:
        """One chunk of a stream; the first one names the role."""
        if not self._begun:
            self._begun = True
            delta = {"role": "assistant", **delta}
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        return sse(self._object("chat.completion.chunk", [choice]))

    def tail(self) -> bytes:
        """What ends a stream that did not fail."""
        delta: JsonObject = {"audio": {"expires_at": self._created}} if self._request.audio_format else {}
        end = self.chunk(delta, self.finish_reason)
        if self._request.include_usage and self._usage is not None:
            end += sse(self._object("chat.completion.chunk", []) | {"usage": self._usage})
        return end + DONE

    def whole(self) -> bytes:
        """The completion of a request that is not streamed."""
        text = "".join(self._text)
        message: JsonObject = {"role": "assistant", "content": text, "refusal": None}
        if self._calls:
            message["tool_calls"] = self._calls
            message["content"] = text or None
        if self._request.audio_format:
            message["content"] = None
            if text or self._sound:
                message["audio"] = self._audio(text)
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason, "logprobs": None}
        completion = self._object("chat.completion", [choice])
        if self._usage is not None:
            completion["usage"] = self._usage
        return _encode(completion)

    def _audio(self, transcript: str) -> JsonObject:
        pcm = b"".join(map(binascii.a2b_base64, self._sound))
        file = write_wav(pcm, RATE_HZ) if self._request.audio_format == "wav" else pcm
        data = binascii.b2a_base64(file, newline=False).decode()
        # Nothing is kept: what it says is true from the moment it is said.
        return {"id": self._audio_id, "data": data, "transcript": transcript, "expires_at": self._created}

    def _object(self, kind: str, choices: list[JsonObject]) -> JsonObject:
        return {
            "id": self.id,
            "object": kind,
            "created": self._created,
            "model": self._request.model,
            "choices": choices,
        }


def _usage(told: JsonObject) -> JsonObject:
    """The counts of a response in the words of chat completions."""
    heard: JsonObject = told.get("input_token_details") or {}
    said: JsonObject = told.get("output_token_details") or {}
    return {
        "prompt_tokens": told["input_tokens"],
        "completion_tokens": told["output_tokens"],
        "total_tokens": told["total_tokens"],
        "prompt_tokens_details": {
            "audio_tokens": heard.get("audio_tokens", 0),
            "cached_tokens": heard.get("cached_tokens", 0),
        },
        "completion_tokens_details": {"audio_tokens": said.get("audio_tokens", 0)},
    }


def _added(before: JsonObject | None, more: JsonObject) -> JsonObject:
    """The sum, count by count."""
    if before is None:
        return more
    return {key: _sum(before[key], value) for key, value in more.items()}


def _sum(one: Any, other: Any) -> Any:
    return _added(one, other) if isinstance(one, dict) else one + other
