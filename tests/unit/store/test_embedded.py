"""The embedded server: it starts, it says what is wrong, and it never outlives us."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

from duologue.store.embedded import EmbeddedStore, EmbeddedStoreError

pytestmark = pytest.mark.unit

CHILD = """
import sys, time
from pathlib import Path
from duologue.store.embedded import EmbeddedStore
store = EmbeddedStore(Path(sys.argv[1]))
store.start()
print(store.pid, flush=True)
time.sleep(60)
"""


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_directory_of_our_own_is_removed() -> None:
    with EmbeddedStore() as store:
        directory, pid = store.directory, store.pid
        assert pid is not None and store.socket_path.exists()
        store.start()
        assert store.pid == pid, "starting twice is starting once"
    assert not directory.exists() and not alive(pid) and store.pid is None


def test_a_given_directory_stays(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path)
    store.start()
    store.kill()
    assert (tmp_path / "appendonlydir").exists()
    store.start()
    store.stop()
    store.stop()
    assert tmp_path.exists()


def test_what_it_is_set_to(tmp_path: Path) -> None:
    """Nothing is evicted, a kill costs a second at most, and entries of sound share a node."""
    with EmbeddedStore(tmp_path) as store, closing(Redis.from_url(store.url, decode_responses=True)) as asking:
        told = asking.config_get("*")
        wanted = {
            "maxmemory-policy": "noeviction",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "stream-node-max-bytes": "65536",
            "rdbcompression": "no",
        }
        assert {name: told[name] for name in wanted} == wanted
        for seq in range(1, 11):
            asking.xadd("j", {"b": b"A" * 5500}, f"{seq}-0")
        assert asking.xinfo_stream("j")["radix-tree-keys"] == 1


@pytest.mark.skipif(sys.platform != "linux", reason="watches a process by its pidfd")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_it_dies_with_its_parent(tmp_path: Path, how: signal.Signals) -> None:
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        handle = os.pidfd_open(pid)
        os.kill(parent.pid, how)
        parent.wait()
    ended, _, _ = select.select([handle], [], [], 5.0)
    os.close(handle)
    assert ended


@pytest.mark.parametrize(("binary", "what"), [("/bin/false", "ended at once"), ("/bin/sh", "ended at once: .*")])
def test_what_is_wrong_is_said(tmp_path: Path, binary: str, what: str) -> None:
    with pytest.raises(EmbeddedStoreError, match=what):
        EmbeddedStore(tmp_path, binary=binary).start()


def test_a_directory_too_deep_for_a_socket(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedStoreError, match="choose a shorter directory"):
        EmbeddedStore(tmp_path / ("d" * 120)).start()
