"""DuplexClient: one full-duplex session over a WebSocket, resumed by itself when the connection is lost.

    async with DuplexClient("ws://127.0.0.1:8080", model="cascade") as client:
        sending = asyncio.create_task(client.stream_pcm(question))
        async for response in client.responses():
            async for pcm in response.audio():
                speaker.play(pcm)

Events are typed (docs/protocol.md); `ConnectionResumed` is the client's own. A lost connection is resumed
with the token; commands that the server did not hold are sent again.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Self

from msgspec import UNSET
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from duologue.client.config import ReconnectPolicy, SessionConfig
from duologue.client.cursor import ResumeCursor
from duologue.client.errors import (
    DuplexClientError,
    DuplexConnectionError,
    DuplexProtocolError,
    DuplexSessionClosedError,
)
from duologue.client.events import ConnectionResumed, Event
from duologue.client.inbox import Inbox
from duologue.client.responses import ResponseBook, ResponseHandle
from duologue.client.urls import build_realtime_url
from duologue.protocol.duplex import (
    ErrorDetail,
    ErrorEvent,
    RealtimeEvent,
    SessionClosed,
    SessionCreated,
    SessionExpired,
    SessionReplaced,
    SessionResumed,
    SessionResyncRequired,
    SessionUpdated,
    UnknownEvent,
    event_from_realtime,
)

Command = dict[str, Any]

MAX_FRAME_BYTES = 64 * 1024 * 1024
#: Answers that wait for `responses()`; beyond it the oldest are dropped.
MAX_RESPONSES = 1024
CLOSE_S = 20.0
DEFAULT_RECONNECT = ReconnectPolicy()

#: A resume that is answered with one of these will not succeed later either.
FATAL_RESUME = frozenset(
    {
        "invalid_session_resume",
        "session_resume_expired",
        "unsupported_session_resume",
        "invalid_resume_token",
        "session_resume_conflict",
    }
)


#: What a resume raises when the server no longer holds what was missed.
GAP = ErrorDetail(type="invalid_request_error", code="session_resume_conflict", message="the replay journal has a gap")


class DuplexClient:
    """Raises DuplexConnectionError and DuplexProtocolError from `connect`; see `errors`."""

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        config: SessionConfig | None = None,
        reconnect: ReconnectPolicy | None = DEFAULT_RECONNECT,
        heartbeat_interval_s: float | None = 30.0,
        handshake_timeout_s: float = 30.0,
        api_key: str | None = None,
        trace: Callable[[str, str], None] | None = None,
    ) -> None:
        """`trace(direction, frame)` sees every frame. `reconnect=None` never resumes."""
        self.url = build_realtime_url(url, model)
        self.model = model
        self.config = config or SessionConfig()
        self.session_info: dict[str, Any] = {}
        self.resumes = 0
        self.dropped_responses = 0
        self._reconnect, self._heartbeat_s, self._handshake_s = (
            reconnect,
            heartbeat_interval_s,
            handshake_timeout_s,
        )
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._trace = trace
        self._cursor = ResumeCursor()
        self._book = ResponseBook()
        self._inboxes: list[Inbox] = []
        self._handles: asyncio.Queue[ResponseHandle] = asyncio.Queue(MAX_RESPONSES)
        self._ids = itertools.count(1)
        self._ws: ClientConnection | None = None
        self._online = asyncio.Event()
        self._created: asyncio.Future[None] | None = None
        self._ended = asyncio.Event()
        self._end: DuplexClientError | None = None
        self._closing = False
        self._clock_ms = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    # -- life ---------------------------------------------------------------------------------------

    @property
    def session_id(self) -> str:
        return self._cursor.session_id

    @property
    def resume_token(self) -> str:
        return self._cursor.token

    @property
    def last_seq(self) -> int:
        return self._cursor.last_seq

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def connect(self) -> None:
        """Open the session: dial, `session.update`, wait for `session.created`."""
        self._created = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._handshake_s):
                self._ws = await self._dial()
                self._online.set()
                self._tasks = [asyncio.create_task(self._keep_reading())]
                await self.send({"type": "session.update", "session": self.config.to_realtime(self.model)})
                await self._created
        except TimeoutError:
            await self._abandon()
            raise DuplexConnectionError(f"no session.created within {self._handshake_s:g} s") from None
        except DuplexClientError:
            await self._abandon()
            raise
        if self._heartbeat_s:
            self._tasks.append(asyncio.create_task(self._heartbeat(self._heartbeat_s)))

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        """End the session and wait for `session.closed`. Does nothing if it is over."""
        if not self._ended.is_set() and self._ws is not None:
            self._closing = True
            with contextlib.suppress(TimeoutError, DuplexClientError):
                async with asyncio.timeout(timeout_s):
                    await self.send({"type": "session.close", "reason": "client_close"})
                    await self._ended.wait()
        await self._abandon()

    async def _abandon(self) -> None:
        if self._created is not None:
            self._created.cancel()  # if nobody waits for it any more, nobody is to be told how it ended
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._ws is not None:
            await self._ws.close()
        self._finish(DuplexSessionClosedError("client_close", expected=True))

    def drop_connection(self) -> None:
        """Cut the TCP connection, as a tunnel does. For tests and demonstrations of resuming."""
        if self._ws is not None:
            self._ws.transport.abort()

    # -- sending --------------------------------------------------------------------------------------

    async def send(self, command: Command) -> str:
        """Send one command; an `event_id` is given to it if it has none. Waits while a resume is under way.

        Raises DuplexSessionClosedError when the session is over.
        """
        event_id = str(command.get("event_id") or f"evt_{next(self._ids):08x}")
        frame = json.dumps({**command, "event_id": event_id}, separators=(",", ":"))
        await self._wait_online()
        self._cursor.sent(event_id, command["type"], frame)
        await self._write(frame)
        return event_id

    async def _wait_online(self) -> None:
        """Until there is a connection, or never will be one again: the end of the session sets both events."""
        await self._online.wait()
        if self._ended.is_set():
            raise self._end or DuplexSessionClosedError("client_close", expected=True)

    async def _write(self, frame: str) -> None:
        """A frame that is lost with its connection is sent again by the resume, from the cursor."""
        assert self._ws is not None
        if self._trace:
            self._trace(">", frame)
        with contextlib.suppress(ConnectionClosed):
            await self._ws.send(frame)

    async def append_audio(
        self,
        pcm: bytes,
        *,
        is_speech: bool | None = None,
        video_frames: Sequence[str] | None = None,
        **hints: Any,
    ) -> str:
        """Append audio in the session's input format; `video_frames` are base64 JPEG or PNG, at most two."""
        format_ = self.config.input_audio
        duration_ms = len(pcm) / format_.bytes_per_ms
        self._clock_ms += duration_ms
        command: Command = {
            "type": "input_audio_buffer.append",
            "audio": base64.b64encode(pcm).decode(),
            "format": format_.name,
            "sample_rate_hz": format_.rate_hz,
            "duration_ms": round(duration_ms, 3),
            "audio_end_ms": round(self._clock_ms, 3),
            **hints,
        }
        if is_speech is not None:
            command["is_speech"] = is_speech
        if video_frames:
            command["video_frames"] = [frame.rsplit(",", 1)[-1] for frame in video_frames]
        return await self.send(command)

    async def stream_pcm(
        self, pcm: bytes, *, chunk_ms: float = 200, realtime: bool = True, is_speech: bool | None = None
    ) -> int:
        """Append in chunks, at the pace of speech unless told otherwise. Returns the number of appends."""
        size = max(1, round(chunk_ms * self.config.input_audio.bytes_per_ms / 4)) * 4
        start, count = time.monotonic(), 0
        for offset in range(0, len(pcm), size):
            await self.append_audio(pcm[offset : offset + size], is_speech=is_speech)
            count += 1
            if realtime:
                due = start + (offset + size) / self.config.input_audio.bytes_per_ms / 1000
                await asyncio.sleep(max(0.0, due - time.monotonic()))
        return count

    async def commit(self, *, final: bool = True, create_response: bool | None = None) -> str:
        wanted = {} if create_response is None else {"response_create": create_response}
        return await self.send({"type": "input_audio_buffer.commit", "final": final, **wanted})

    async def create_response(self, **options: Any) -> str:
        return await self.send({"type": "response.create", **({"response": options} if options else {})})

    async def cancel_response(self, response_id: str | None = None) -> str:
        named = {} if response_id is None else {"response_id": response_id}
        return await self.send({"type": "response.cancel", **named})

    async def clear_input(self) -> str:
        return await self.send({"type": "input_audio_buffer.clear"})

    async def send_text(self, text: str) -> str:
        """A typed user message; `create_response` asks for the answer."""
        content = [{"type": "input_text", "text": text}]
        item = {"type": "message", "role": "user", "content": content}
        return await self.send({"type": "conversation.item.create", "item": item})

    async def ack_playback(
        self,
        played_ms: float,
        *,
        response_id: str | None = None,
        item_id: str | None = None,
        committed_ms: float | None = None,
    ) -> str:
        """Tell how much of a response has been heard. Only that enters the model's memory."""
        named = {"response_id": response_id, "item_id": item_id, "committed_ms": committed_ms}
        named = {key: value for key, value in named.items() if value is not None}
        return await self.send({"type": "playback.ack", "played_ms": played_ms, **named})

    # -- receiving ------------------------------------------------------------------------------------

    async def events(self) -> AsyncIterator[Event]:
        """Every event from now on. A listener that does not keep up loses the oldest (see Inbox)."""
        inbox = self._listen()
        try:
            while True:
                try:
                    event = await inbox.get()
                except StopAsyncIteration:
                    return
                yield event
        finally:
            self._inboxes.remove(inbox)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self.events()

    async def wait_for(self, *types: str, timeout_s: float | None = 30.0) -> Event:
        """The next event of one of these wire types. Raises TimeoutError, or what ended the session."""
        inbox = self._listen()
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        event = await inbox.get()
                    except StopAsyncIteration:
                        raise DuplexSessionClosedError("client_close", expected=True) from None
                    if event.type in types:
                        return event
        finally:
            self._inboxes.remove(inbox)

    async def responses(self) -> AsyncIterator[ResponseHandle]:
        """Each answer as it begins. Ends with the session. May be entered again."""
        while True:
            getting = asyncio.ensure_future(self._handles.get())
            ended = asyncio.ensure_future(self._ended.wait())
            try:
                await asyncio.wait((getting, ended), return_when=asyncio.FIRST_COMPLETED)
                if not getting.done():
                    return
                handle = getting.result()
            finally:
                getting.cancel()
                ended.cancel()
            yield handle

    def _listen(self) -> Inbox:
        inbox = Inbox()
        if self._ended.is_set():
            inbox.close(self._visible_end())
        self._inboxes.append(inbox)
        return inbox

    # -- the connection ---------------------------------------------------------------------------------

    async def _dial(self) -> ClientConnection:
        try:
            return await connect(
                self.url,
                additional_headers=self._headers,
                max_size=MAX_FRAME_BYTES,
                compression=None,
                open_timeout=self._handshake_s,
            )
        except (OSError, InvalidHandshake, TimeoutError) as error:
            raise DuplexConnectionError(f"cannot connect to {self.url.partition('?')[0]}: {error}") from None

    async def _keep_reading(self) -> None:
        while not self._ended.is_set():
            assert self._ws is not None
            await self._read(self._ws)
            self._online.clear()
            if self._ended.is_set():
                return
            if self._closing or self._reconnect is None or not self._cursor.resumable:
                code, reason = self._ws.close_code, self._ws.close_reason
                self._finish(DuplexConnectionError(f"the connection was closed ({code} {reason})".rstrip()))
                return
            await self._come_back(self._reconnect)

    async def _read(self, ws: ClientConnection) -> None:
        try:
            async for frame in ws:
                if self._trace:
                    self._trace("<", str(frame))
                await self._receive(event_from_realtime(frame))
        except ConnectionClosed:
            return

    async def _receive(self, event: RealtimeEvent | UnknownEvent) -> None:
        seq = _seq(event)
        if not self._cursor.is_new(seq):
            return
        self._take(event)
        if seq is not None and not self._ended.is_set():
            await self._write(f'{{"type":"session.event_ack","server_event_seq":{seq}}}')

    def _take(self, event: Event) -> None:
        match event:
            case SessionCreated():
                self._know(event.session, "" if event.resume_token is UNSET else event.resume_token)
            case SessionResumed():
                self._know(event.session, event.resume_token)
            case SessionUpdated():
                self.session_info = event.session
            case ErrorEvent() if self._created is not None and not self._created.done():
                self._created.set_exception(DuplexProtocolError(event.error))
            case SessionResyncRequired():
                self._cursor.forget()
        self._publish(event)
        match event:
            case SessionClosed():
                self._finish(DuplexSessionClosedError(event.reason, expected=True))
            case SessionExpired():
                self._finish(DuplexSessionClosedError(event.reason))
            case SessionReplaced():
                self._finish(DuplexSessionClosedError("session_replaced"))

    def _know(self, session: dict[str, Any], token: str) -> None:
        self.session_info = session
        self._cursor.learn(str(session.get("id") or ""), token)
        if self._created is not None and not self._created.done():
            self._created.set_result(None)

    def _publish(self, event: Event) -> None:
        handle = self._book.feed(event)
        if handle is not None:
            if self._handles.full():
                self._handles.get_nowait()
                self.dropped_responses += 1
            self._handles.put_nowait(handle)
        for inbox in self._inboxes:
            inbox.put(event)

    async def _come_back(self, policy: ReconnectPolicy) -> None:
        last: DuplexClientError = DuplexConnectionError("the connection was lost")
        for attempt in range(1, policy.max_attempts + 1):
            await asyncio.sleep(policy.pause_s(attempt))
            try:
                ws, resumed = await self._resume()
            except DuplexProtocolError as error:
                last = error
                if error.code in FATAL_RESUME:
                    break
                continue
            except DuplexConnectionError as error:
                last = error
                continue
            await self._continue_on(ws, resumed, attempt)
            return
        self._finish(last)

    async def _resume(self) -> tuple[ClientConnection, SessionResumed]:
        ws = await self._dial()
        try:
            async with asyncio.timeout(self._handshake_s):
                await ws.send(json.dumps(self._cursor.claim()))
                event = event_from_realtime(await ws.recv())
        except (ConnectionClosed, TimeoutError) as error:
            raise DuplexConnectionError(f"the resume was not answered: {error}") from None
        if isinstance(event, SessionResumed):
            return ws, event
        await ws.close()
        if isinstance(event, ErrorEvent):
            raise DuplexProtocolError(event.error)
        if isinstance(event, SessionResyncRequired):
            self._take(event)
            raise DuplexProtocolError(GAP)
        raise DuplexConnectionError(f"the resume was answered by {event.type}")

    async def _continue_on(self, ws: ClientConnection, resumed: SessionResumed, attempt: int) -> None:
        self._ws = ws
        self._take(resumed)
        last = None if resumed.last_client_event_id is UNSET else resumed.last_client_event_id
        for frame in self._cursor.to_resend(last):
            await self._write(frame)
        self.resumes += 1
        self._online.set()
        self._publish(ConnectionResumed(attempt))

    async def _heartbeat(self, interval_s: float) -> None:
        with contextlib.suppress(DuplexClientError):
            while True:
                await asyncio.sleep(interval_s)
                await self.send({"type": "session.heartbeat"})

    def _finish(self, error: DuplexClientError) -> None:
        if self._ended.is_set():
            return
        self._end = error
        self._ended.set()
        self._online.set()
        if self._created is not None and not self._created.done():
            self._created.set_exception(error)
        self._book.fail_all()
        for inbox in self._inboxes:
            inbox.close(self._visible_end())

    def _visible_end(self) -> DuplexClientError | None:
        """What a listener gets at the end: nothing if it was expected."""
        expected = isinstance(self._end, DuplexSessionClosedError) and self._end.expected
        return None if expected else self._end


def _seq(event: RealtimeEvent | UnknownEvent) -> int | None:
    """The number of an event. That of `session.created` is the server's head, not a number."""
    if event.server_event_seq is UNSET or isinstance(event, SessionCreated):
        return None
    return event.server_event_seq
