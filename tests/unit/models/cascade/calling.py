"""A whole session of the cascade by text: the real machine, the thinker and the voice, and a language model's server
that says what a test tells it. No ears, no processes, one thread beside the engines' own.

The server speaks server-sent events as the chat-completions API has them; a script is a list of steps, one a request.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Self

import msgspec
from unit.models.cascade.harness import Engines
from unit.session.core.session_world import Event, World, pick

from duologue.model.engine import NEXT, SESSION, Emission, Slot, StageUnit
from duologue.models.cascade.plugin import Cascade
from duologue.protocol.duplex import ContentPart, CreateItem, CreateResponse, Dialect, Item
from duologue.session.core import (
    Abort,
    CloseStages,
    OpenStages,
    SessionCommand,
    SessionEffect,
    StageFailed,
    StageOutput,
    Submit,
)

Json = dict[str, Any]
WEATHER: Json = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CLOCK: Json = {"type": "function", "name": "clock"}
USAGE: Json = {"prompt_tokens": 20, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}


def words(*deltas: str) -> list[Json]:
    return [{"choices": [{"delta": {"content": delta}}]} for delta in deltas]


def part(index: int | None, arguments: str = "", **more: str) -> Json:
    """One piece of a tool call, as servers stream it."""
    function: Json = {"arguments": arguments}
    if "name" in more:
        function["name"] = more["name"]
    told: Json = {"function": function, "type": "function"}
    if index is not None:
        told["index"] = index
    if "id" in more:
        told["id"] = more["id"]
    return {"choices": [{"delta": {"tool_calls": [told]}}]}


def call(index: int, name: str, *arguments: str, id: str = "") -> list[Json]:
    pieces = [part(index, name=name, id=id or f"call_{name}")]
    return pieces + [part(index, piece) for piece in arguments]


def end(reason: str = "stop", usage: Json | None = USAGE) -> list[Json]:
    last: list[Json] = [{"choices": [{"delta": {}, "finish_reason": reason}]}]
    return last if usage is None else [*last, {"choices": [], "usage": usage}]


class Brain:
    """The server. `script`: for each request the chunks of its answer, or a number: an HTTP status. A None among the
    chunks holds the stream until the asker has gone; "cut" ends the connection there."""

    def __init__(self) -> None:
        self.asked: list[Json] = []
        self.script: deque[Any] = deque()
        self.left = threading.Event()
        """Somebody has closed the connection of an answer that was being streamed."""
        kind = type("Bound", (_Handler,), {"brain": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.left.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    brain: ClassVar[Brain]

    def do_POST(self) -> None:
        brain = self.brain
        brain.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        step = brain.script.popleft()
        if isinstance(step, int):
            self.send_error(step)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        try:
            for chunk in step:
                if chunk == "cut":
                    return
                if chunk is None:
                    self._hold()
                    return
                self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")
        except (BrokenPipeError, ConnectionResetError):
            brain.left.set()

    def _hold(self) -> None:
        while not self.brain.left.wait(0.01):
            self.wfile.write(b": thinking\n\n")

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


class Conversation(World):
    """A session. `wait` lets the engines do what is to be done; session time passes only by `advance`."""

    def __init__(self, engines: Engines, **session: Any) -> None:
        self.host = engines
        self.slot: Slot | None = None
        self.emitted: list[Emission] = []
        self.handed: dict[int, list[bool]] = {}
        """Units given from the thinker to the voice: whether each is the last of its kind, as a worker keeps it."""
        dialect = session.pop("dialect", Dialect.duplex)
        auto = session.pop("auto", True)
        super().__init__(Cascade(engines.spec), dialect=dialect, auto=auto, **session)  # type: ignore[arg-type]

    # -- what a client does ---------------------------------------------------------------------------------

    def write(self, text: str, *images: str) -> list[Event]:
        parts = [ContentPart(type="input_text", text=text)] if text else []
        parts += [ContentPart(type="input_image", image_url=url) for url in images]
        return self.send(CreateItem(item=Item(id="", role="user", content=tuple(parts))))

    def ask(self, text: str, *images: str, **create: Any) -> list[Event]:
        """A typed turn, answered as far as the engines get."""
        before = len(self.events)
        self.write(text, *images)
        self.send(CreateResponse(**create))
        self.wait()
        return self.events[before:]

    def send_create(self) -> list[Event]:
        return self.send(CreateResponse())

    def result(self, call_id: str, output: str) -> list[Event]:
        item = Item(id="", type="function_call_output", call_id=call_id, output=output)
        return self.send(CreateItem(item=item))

    def wait(self) -> None:
        """Until the engines rest and everything that was made has been told."""
        deadline = time.monotonic() + 50
        while True:
            self._take()
            if not self.host.busy:
                self.advance(20.0)
                if not self.host.busy:
                    return
            assert time.monotonic() < deadline, "the engines do not come to rest"
            self.host.called.wait(0.05)
            self.host.called.clear()

    def until(self, *wanted: str) -> None:
        """Until such an event has come, while the engines go on."""
        deadline = time.monotonic() + 50
        while not pick(self.events, *wanted):
            assert time.monotonic() < deadline, f"no {wanted}"
            self.host.called.wait(0.05)
            self.host.called.clear()
            self._take()

    def close(self) -> None:
        if self.slot is not None:
            for engine in self.host.engines.values():
                engine.close(self.slot)

    # -- the worker's part ----------------------------------------------------------------------------------

    def _one(self, effect: SessionEffect, follow: list[SessionCommand]) -> None:
        super()._one(effect, follow)
        match effect:
            case OpenStages():
                self.slot = self.host.slot()
                for engine in self.host.engines.values():
                    engine.open(self.slot, b"")
            case Abort() if self.slot is not None:
                self.emitted, self.handed = [], {}
                for engine in self.host.engines.values():
                    engine.cancel(self.slot, effect.fence.epoch)
            case CloseStages():
                self.close()
            case Submit() if effect.stage >= 2:
                self._step(effect.stage, effect.unit, effect.turn_id, effect.head)

    def _step(self, stage: int, unit: int, turn_id: int, head: bytes) -> None:
        assert self.slot is not None
        one = StageUnit(self.slot, unit, turn_id, self.fences[-1].epoch, 0, head, ())
        self._sort(stage, self.host.engines[stage].append_batch([one]))

    def _take(self) -> None:
        for stage, engine in self.host.engines.items():
            self._sort(stage, engine.read())
        while self.emitted:
            emission = self.emitted.pop(0)
            fence = self.fences[-1]
            if emission.failure is not None:
                failure = emission.failure
                self.fact(StageFailed(fence, 0, emission.unit, failure.code, failure.message, failure.retryable))
                continue
            unit, turn = emission.unit, emission.turn_id
            self.fact(StageOutput(fence, 3, SESSION, unit, turn, emission.last, emission.head, emission.frames))

    def _sort(self, stage: int, emissions: Any) -> None:
        for emission in emissions:
            if emission.slot != self.slot:
                continue
            if stage == 3 and (emission.last or emission.failure is not None):
                last = self.handed[emission.unit].pop(0)
                emission = msgspec.structs.replace(emission, last=last and emission.last)
            if emission.to == NEXT and emission.failure is None:
                self.handed.setdefault(emission.unit, []).append(emission.last)
                self._step(stage + 1, emission.unit, emission.turn_id, emission.head)
            else:
                self.emitted.append(emission)


def responses(events: list[Event]) -> list[Event]:
    return [event["response"] for event in pick(events, "response.done")]


def calls(events: list[Event]) -> list[tuple[str, Any]]:
    """The function calls that were told: name and arguments."""
    told = pick(events, "response.function_call_arguments.done")
    return [(event["name"], json.loads(event["arguments"])) for event in told]


def spoken_text(events: list[Event]) -> str:
    return "".join(event["delta"] for event in pick(events, "response.output_audio_transcript.delta"))
