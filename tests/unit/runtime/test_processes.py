"""A child never outlives its parent. The parts that need real processes run real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from duologue.runtime import processes
from duologue.runtime.processes import ParentWatch, die_with_parent

pytestmark = pytest.mark.unit

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PR_SET_PDEATHSIG is Linux's")

PARENT = """
import os, subprocess, sys
from duologue.runtime.processes import die_with_parent
me = os.getpid()
child = subprocess.Popen(["sleep", "100"], preexec_fn=lambda: die_with_parent(me), stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
os.kill(me, 9)
"""

CHILD_OF_THE_DEAD = """
import os
from duologue.runtime.processes import die_with_parent
die_with_parent(os.getppid() + 100000)
print("still here")
"""


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


@linux_only
def test_a_child_ends_when_its_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.wait(timeout=20)
    patience = threading.Event()
    for _ in range(500):
        if not is_running(child):
            return
        patience.wait(0.01)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the child outlived its parent")


@linux_only
def test_a_parent_that_is_gone_already_is_noticed() -> None:
    ran = subprocess.run([sys.executable, "-c", CHILD_OF_THE_DEAD], capture_output=True, timeout=20)
    assert ran.returncode == -signal.SIGKILL
    assert ran.stdout == b""


def test_a_system_without_prctl_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_prctl", None)
    assert die_with_parent(os.getppid()) is False


def test_a_refusal_of_the_kernel_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_prctl", lambda *_: -1)
    assert die_with_parent(os.getppid()) is False


def test_the_watch_stops_us_and_then_insists() -> None:
    happened: list[str] = []
    left = threading.Event()

    def leave() -> None:
        happened.append("leave")
        left.set()

    watch = ParentWatch(
        os.getppid() + 100_000,
        interval_s=0.001,
        grace_s=0.001,
        stop=lambda: happened.append("stop"),
        leave=leave,
    )
    watch.start()
    assert left.wait(20)
    assert happened == ["stop", "leave"]


def test_a_stop_in_time_is_not_insisted_on() -> None:
    happened: list[str] = []
    stopped = threading.Event()

    def stop() -> None:
        watch.cancel()
        stopped.set()

    watch = ParentWatch(
        os.getppid() + 100_000,
        interval_s=0.001,
        grace_s=60.0,
        stop=stop,
        leave=lambda: happened.append("leave"),
    )
    watch.start()
    assert stopped.wait(20)
    watch.join(20)
    assert happened == []


def test_a_living_parent_is_left_alone() -> None:
    happened: list[str] = []
    watch = ParentWatch(os.getppid(), interval_s=0.001, stop=lambda: happened.append("stop"))
    watch.start()
    watch.cancel()
    watch.join(20)
    assert happened == []
