"""Accounts that are sent: in order, tried again while that may help, bounded, and never lost without a word."""

from __future__ import annotations

import asyncio
import http.server
import logging
import threading
from collections.abc import Iterator
from typing import ClassVar

import pytest

from duologue.session.background import Background
from duologue.session.usage_hook import ATTEMPTS, LONGEST_PAUSE_S, HttpPost, UsageHook

pytestmark = pytest.mark.unit


class Receiver:
    """Answers what it is told to; then 200."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)
        self.got: list[str] = []
        self.pauses: list[float] = []

    async def post(self, session_id: str, body: bytes) -> int:
        self.got.append(session_id)
        return self.answers.pop(0) if self.answers else 200

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def hook(self, background: Background, capacity: int = 8) -> UsageHook:
        return UsageHook(self.post, background, capacity=capacity, sleep=self.sleep, jitter=lambda: 1.0)


async def test_accounts_are_sent_in_order() -> None:
    background, receiver = Background(), Receiver()
    hook = receiver.hook(background)
    for number in range(5):
        hook.put(f"s{number}", b"{}")
    await background.settle()
    hook.put("later", b"{}")
    await background.settle()
    assert receiver.got == ["s0", "s1", "s2", "s3", "s4", "later"]
    assert hook.outcomes == {"sent": 6}


async def test_what_may_pass_is_tried_again_with_growing_pauses() -> None:
    background, receiver = Background(), Receiver(0, 503, 429, 408, 500)
    hook = receiver.hook(background)
    hook.put("s", b"{}")
    await background.settle()
    assert receiver.pauses == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert (hook.outcomes, hook.retries) == ({"sent": 1}, 5)


@pytest.mark.parametrize("status", [400, 401, 404, 302])
async def test_what_will_not_pass_is_given_up_at_once_and_logged(status: int, caplog: pytest.LogCaptureFixture) -> None:
    background, receiver = Background(), Receiver(status)
    hook = receiver.hook(background)
    hook.put("s", b'{"session_id":"s"}')
    hook.put("next", b"{}")
    with caplog.at_level(logging.WARNING, "duologue.usage"):
        await background.settle()
    assert receiver.got == ["s", "next"]
    assert hook.outcomes == {"given_up": 1, "sent": 1}
    assert '{"session_id":"s"}' in caplog.text


async def test_a_receiver_that_stays_away_is_given_up_after_so_many_attempts() -> None:
    background, receiver = Background(), Receiver(*[0] * ATTEMPTS)
    hook = receiver.hook(background)
    hook.put("s", b"{}")
    await background.settle()
    assert (len(receiver.got), hook.outcomes) == (ATTEMPTS, {"given_up": 1})
    assert max(receiver.pauses) <= LONGEST_PAUSE_S


async def test_what_waits_is_bounded_and_what_is_dropped_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    background, receiver = Background(), Receiver()
    hook = receiver.hook(background, capacity=3)
    for number in range(5):
        hook.put(f"s{number}", b'{"n":%d}' % number)
    assert (len(hook), hook.outcomes) == (3, {"dropped": 2})
    assert '{"n":3}' in caplog.text and '{"n":4}' in caplog.text
    await background.settle()
    assert receiver.got == ["s0", "s1", "s2"]


async def test_what_is_left_at_the_end_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    background = Background()
    hook = UsageHook(_never, background)
    hook.put("one", b'{"n":1}')
    hook.put("two", b'{"n":2}')
    await asyncio.sleep(0)
    await background.close()
    hook.close()
    assert '{"n":1}' in caplog.text and '{"n":2}' in caplog.text
    assert (len(hook), hook.outcomes) == (0, {"given_up": 2})


async def _never(session_id: str, body: bytes) -> int:
    await asyncio.Event().wait()
    return 200


class Handler(http.server.BaseHTTPRequestHandler):
    status = 204
    seen: ClassVar[list[tuple[str, dict[str, str], bytes]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(self.status)
        if self.status == 302:
            self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[Handler]]]:
    class Own(Handler):
        seen: ClassVar[list[tuple[str, dict[str, str], bytes]]] = []

    listening = http.server.HTTPServer(("127.0.0.1", 0), Own)
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{listening.server_port}/usage", Own
    listening.shutdown()
    thread.join()
    listening.server_close()


async def test_a_post_is_json_with_the_token_and_names_the_session(server: tuple[str, type[Handler]]) -> None:
    url, handler = server
    assert await HttpPost(url, token="secret")("sess_1", b'{"a":1}') == 204
    ((path, headers, body),) = handler.seen
    assert (path, body) == ("/usage", b'{"a":1}')
    assert headers["content-type"] == "application/json"
    assert headers["authorization"] == "Bearer secret"
    assert headers["idempotency-key"] == "sess_1"


@pytest.mark.parametrize("status", [302, 404, 503])
async def test_a_refusal_is_told_by_its_status_and_no_redirect_is_followed(
    server: tuple[str, type[Handler]], status: int
) -> None:
    url, handler = server
    handler.status = status
    assert await HttpPost(url)("s", b"{}") == status
    assert len(handler.seen) == 1


async def test_nobody_there_is_no_answer() -> None:
    assert await HttpPost("http://127.0.0.1:1/usage", timeout_s=1.0)("s", b"{}") == 0
