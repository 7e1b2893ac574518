"""Sound of several sockets is taken in together; nothing that a client says changes places."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from duologue.gateway.gathering import Gathering
from duologue.gateway.wire import KEPT_BYTES, MEDIA_BYTES, RealtimeSocket

pytestmark = pytest.mark.unit

MEDIA = b"m" * MEDIA_BYTES


class Socket(RealtimeSocket):
    """Without a connection: what is taken in is written down."""

    def __init__(self, gathering: Gathering | None, log: list[tuple[str, bytes]], name: str) -> None:
        self.gathering = gathering
        self._kept = []
        self._log, self._name = log, name
        self.aborted = 0
        self.transport: Any = SimpleNamespace(abort=self._abort)

    def _abort(self) -> None:
        self.aborted += 1

    def _take_in(self, data: bytes) -> None:
        if data == b"fault":
            raise RuntimeError("planned")
        self._log.append((self._name, data))


async def busy() -> Gathering:
    """One that has gathered just now, and will not by itself within this test."""
    gathering = Gathering(3600.0)
    Socket(gathering, [], "first").data_received(MEDIA)
    gathering.window_s = 3600.0
    return gathering


async def test_the_first_after_a_quiet_time_does_not_wait() -> None:
    log: list[tuple[str, bytes]] = []
    Socket(Gathering(3600.0), log, "a").data_received(MEDIA)
    assert log == [("a", MEDIA)]


@pytest.mark.parametrize("longest_s", [0.040, 0.080, 0.0])
async def test_the_window_grows_with_those_who_send_and_has_an_end(
    monkeypatch: pytest.MonkeyPatch, longest_s: float
) -> None:
    now = 100.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    gathering = Gathering(longest_s)
    sockets = [Socket(gathering, [], str(n)) for n in range(64)]
    windows = []
    for senders in (1, 9, 33, 64, 1):
        now += 0.3  # a census is due: it counts who has sent since the one before
        sockets[0].data_received(MEDIA)
        for socket in sockets[:senders]:
            gathering._heard.add(socket)
        now += 0.3
        sockets[0].data_received(MEDIA)
        windows.append(gathering.window_s)
    assert windows == pytest.approx([0.0, longest_s / 16, longest_s, longest_s, 0.0])


async def test_who_sent_before_a_silence_is_no_company(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    gathering = Gathering(0.040)
    for n in range(8):
        Socket(gathering, [], str(n)).data_received(MEDIA)
    now += 5.0
    log: list[tuple[str, bytes]] = []
    socket = Socket(gathering, log, "alone")
    for _ in range(2):
        socket.data_received(MEDIA)
    assert gathering.window_s == 0.0
    assert len(log) == 2


async def test_control_is_heard_at_once_and_behind_what_was_sent_before_it() -> None:
    log: list[tuple[str, bytes]] = []
    gathering = await busy()
    a, b = Socket(gathering, log, "a"), Socket(gathering, log, "b")
    a.data_received(MEDIA + b"1")
    b.data_received(MEDIA + b"2")
    assert log == []
    a.data_received(b"cancel")
    assert log == [("a", MEDIA + b"1"), ("a", b"cancel")]


async def test_a_socket_keeps_no_more_than_its_bound() -> None:
    log: list[tuple[str, bytes]] = []
    socket = Socket(await busy(), log, "a")
    for _ in range(3):
        socket.data_received(b"x" * (KEPT_BYTES // 2 + 1))
    assert len(log) == 3
    socket.data_received(MEDIA)
    assert len(log) == 3


async def test_all_are_worked_off_together_and_a_fault_of_one_drops_only_that_one() -> None:
    log: list[tuple[str, bytes]] = []
    gathering = Gathering(0.001)
    a, b, c = (Socket(gathering, log, name) for name in "abc")
    Socket(gathering, [], "first").data_received(MEDIA)
    gathering.window_s = 0.001
    a.data_received(MEDIA)
    b.data_received(MEDIA)
    b._kept[:] = [b"fault"]
    c.data_received(MEDIA)
    told = asyncio.Event()
    last = Socket(gathering, log, "last")
    last.work_off = told.set  # type: ignore[method-assign]
    gathering.add(last)
    await asyncio.wait_for(told.wait(), 10)
    assert [name for name, _ in log] == ["a", "c"]
    assert (a.aborted, b.aborted, c.aborted) == (0, 1, 0)
