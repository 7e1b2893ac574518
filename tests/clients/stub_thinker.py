"""An OpenAI-compatible chat-completions server that thinks by a script: the far end of the cascade's thinker.

Rule 1. It speaks the protocol whole: server-sent events in small pieces, tool calls whose arguments come in parts,
        `[DONE]`, usage when it is asked for, and the same without streaming.
Rule 2. It is as strict as the services: a tool result must follow the call that it answers, and every call must have
        its result before anybody speaks again; otherwise 400 with an error object.
Rule 3. What it says is a script, one step an answer: `{"say": TEXT}`, `{"call": NAME, "arguments": {...}}`,
        `{"calls": [...]}`, `{"status": 503}`, `{"break": true}` (the connection ends in the middle). Without a script,
        or after its end: the first tool is called for a user's words, and a result is told.

It runs alone too: `python tests/clients/stub_thinker.py --port 9000`; `POST /script` takes a list of steps.
"""

from __future__ import annotations

import argparse
import itertools
import json
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Json = dict[str, Any]
PIECE = 12
"""Characters in one piece of a stream."""


class BadRequest(Exception):
    """The request is not what the API takes."""


class StubThinker:
    """The server, in a thread of its own while it is entered."""

    def __init__(self, port: int = 0) -> None:
        self.requests: deque[Json] = deque(maxlen=1024)
        """What was asked, oldest first."""
        self.script: deque[Json] = deque()
        self._ids = itertools.count(1)
        self._server = ThreadingHTTPServer(("127.0.0.1", port), type("Bound", (_Handler,), {"thinker": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def next_id(self, kind: str) -> str:
        return f"{kind}{next(self._ids)}"

    def step(self, request: Json) -> Json:
        """What to do about a request. Raises BadRequest."""
        check(request)
        self.requests.append(request)
        try:
            return self.script.popleft()
        except IndexError:
            return by_itself(request)


def check(request: Json) -> None:
    """Raises BadRequest for what the services refuse."""
    messages = request.get("messages")
    if not isinstance(request.get("model"), str) or not isinstance(messages, list) or not messages:
        raise BadRequest("model and messages are required")
    for tool in request.get("tools") or ():
        if tool.get("type") != "function" or not (tool.get("function") or {}).get("name"):
            raise BadRequest("a tool is {type: function, function: {name, ...}}")
    due: set[str] = set()
    for message in messages:
        role = message.get("role")
        if role not in ("system", "developer", "user", "assistant", "tool"):
            raise BadRequest(f"no role is called {role!r}")
        if role == "tool":
            if message.get("tool_call_id") not in due:
                raise BadRequest("a message of the role tool must answer a preceding tool call")
            due.discard(message["tool_call_id"])
            continue
        if due:
            raise BadRequest(f"tool calls without a result: {sorted(due)}")
        calls = message.get("tool_calls") or ()
        due = {call["id"] for call in calls}
        if not calls and not isinstance(message.get("content"), (str, list)):
            raise BadRequest("content is required")
        for call in calls:
            if call.get("type") != "function" or not isinstance(call["function"]["arguments"], str):
                raise BadRequest("a tool call is {id, type: function, function: {name, arguments: text}}")
    if due:
        raise BadRequest(f"tool calls without a result: {sorted(due)}")


def by_itself(request: Json) -> Json:
    """Without a script: call the first tool for a user's words, tell a result."""
    last = request["messages"][-1]
    if last["role"] == "tool":
        return {"say": f"The answer is {last['content']}."}
    tools = request.get("tools") or ()
    if tools and request.get("tool_choice", "auto") != "none":
        return {"call": tools[0]["function"]["name"], "arguments": {"city": "Paris"}}
    return {"say": "I have no tool for that, but I am here."}


def _calls(step: Json) -> list[Json]:
    if "call" in step:
        return [{"name": step["call"], "arguments": step.get("arguments", {})}]
    return list(step.get("calls", ()))


def _arguments(call: Json) -> str:
    given = call.get("arguments", {})
    return given if isinstance(given, str) else json.dumps(given)


class _Handler(BaseHTTPRequestHandler):
    thinker: StubThinker
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: what was asked is in `requests`."""

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._json(200, {"object": "list", "data": [{"id": "stub", "object": "model", "owned_by": "tests"}]})
        elif self.path == "/requests":
            self._json(200, {"requests": list(self.thinker.requests)})
        else:
            self._error(404, f"there is no {self.path}")

    def do_POST(self) -> None:
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        except ValueError:
            return self._error(400, "the body is not JSON")
        if self.path == "/script":
            self.thinker.script.extend(body)
            return self._json(200, {"steps": len(self.thinker.script)})
        if self.path != "/v1/chat/completions":
            return self._error(404, f"there is no {self.path}")
        try:
            step = self.thinker.step(body)
        except BadRequest as error:
            return self._error(400, str(error))
        if "status" in step:
            return self._error(step["status"], "as the script says")
        if body.get("stream"):
            return self._stream(body, step)
        return self._whole(body, step)

    def _whole(self, request: Json, step: Json) -> None:
        calls = [
            {
                "id": self.thinker.next_id("call_"),
                "type": "function",
                "function": {"name": call["name"], "arguments": _arguments(call)},
            }
            for call in _calls(step)
        ]
        message: Json = {"role": "assistant", "content": step.get("say")}
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
        head = self._head(request, "chat.completion")
        self._json(200, {**head, "choices": [choice], "usage": _usage(request, step)})

    def _stream(self, request: Json, step: Json) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        head = self._head(request, "chat.completion.chunk")
        deltas = list(self._deltas(step))
        if step.get("break"):
            deltas = deltas[: max(1, len(deltas) // 2)]
        try:
            for delta in deltas:
                self._event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
            if step.get("break"):
                return
            ended = "tool_calls" if _calls(step) else step.get("finish_reason", "stop")
            self._event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": ended}]})
            if (request.get("stream_options") or {}).get("include_usage"):
                self._event({**head, "choices": [], "usage": _usage(request, step)})
            self.wfile.write(b"data: [DONE]\n\n")
        except ConnectionError:
            return  # whoever asked wants no more: that is how an answer is cancelled

    def _deltas(self, step: Json) -> Any:
        yield {"role": "assistant", "content": "" if "say" in step else None}
        for piece in _pieces(step.get("say", "")):
            yield {"content": piece}
        for index, call in enumerate(_calls(step)):
            function = {"name": call["name"], "arguments": ""}
            first = {"index": index, "id": self.thinker.next_id("call_"), "type": "function", "function": function}
            yield {"tool_calls": [first]}
            for piece in _pieces(_arguments(call)):
                yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}

    def _head(self, request: Json, kind: str) -> Json:
        return {"id": self.thinker.next_id("chatcmpl-"), "object": kind, "created": 0, "model": request["model"]}

    def _event(self, chunk: Json) -> None:
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.flush()

    def _json(self, status: int, body: Json) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _error(self, status: int, message: str) -> None:
        self._json(
            status, {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
        )


def _pieces(text: str) -> list[str]:
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]


def _usage(request: Json, step: Json) -> Json:
    """By characters: it only has to add up."""
    asked = sum(len(str(message.get("content") or "")) for message in request["messages"])
    said = len(step.get("say", "")) + sum(len(_arguments(call)) for call in _calls(step))
    return {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}


def main() -> None:
    parser = argparse.ArgumentParser(description="an OpenAI-compatible server that thinks by a script")
    parser.add_argument("--port", type=int, default=9000)
    with StubThinker(parser.parse_args().port) as thinker:
        print(f"listening at {thinker.url}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
