"""What `[bus]` makes of an endpoint: where it listens, what it tells others, and its keys."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import zmq

from duologue.bus.configured import advertised, bind_address, dialling_endpoint, listening_endpoint
from duologue.bus.errors import BusError
from duologue.bus.link import Link, LinkHandler, Peer, PeerLost
from duologue.bus.messages import AnyMessage
from duologue.runtime.settings import BusSettings

pytestmark = pytest.mark.unit

ME = Peer("shard-1", "shard", "a1b2c3d4e5f60718")


class Nobody(LinkHandler):
    """A handler that hears nothing."""

    def on_ready(self, link: Link) -> None: ...
    def on_message(self, link: Link, message: AnyMessage, frames: Sequence[bytes]) -> None: ...
    def on_credit(self, link: Link) -> None: ...
    def on_lost(self, link: Link, lost: PeerLost) -> None: ...


def test_each_life_listens_at_a_file_of_its_own(tmp_path: Path) -> None:
    bus = BusSettings(socket_dir=str(tmp_path / "bus"))
    assert bind_address(bus, ME) == f"ipc://{tmp_path}/bus/shard-1-a1b2c3.sock"
    assert (tmp_path / "bus").stat().st_mode & 0o777 == 0o700
    assert advertised(bus) == ""


def test_without_a_folder_it_is_one_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert bind_address(BusSettings(), ME) == f"ipc://{tmp_path}/duologue-{os.getuid()}/shard-1-a1b2c3.sock"


def test_by_tcp_it_tells_the_name_that_others_dial() -> None:
    bus = BusSettings(host="0.0.0.0", advertise="shard-1.example", port=7001)
    assert bind_address(bus, ME) == "tcp://0.0.0.0:7001"
    assert advertised(bus) == "tcp://shard-1.example:7001"
    assert bind_address(BusSettings(host="0.0.0.0"), ME) == "tcp://0.0.0.0:*"


def test_the_settings_reach_the_links() -> None:
    bus = BusSettings(window_bytes=1234, heartbeat_s=0.25, expiry_s=0.75, stall_s=0.6)
    options = dialling_endpoint(bus, ME, Nobody()).options
    assert (options.window_bytes, options.heartbeat_s, options.expiry_s, options.stall_s) == (1234, 0.25, 0.75, 0.6)


def test_keys_that_are_none_are_refused() -> None:
    bus = BusSettings(host="127.0.0.1", curve_public_key="short", curve_secret_key="short")
    with pytest.raises(BusError):
        listening_endpoint(bus, ME, Nobody())
    public, secret = (key.decode() for key in zmq.curve_keypair())
    listening_endpoint(BusSettings(host="127.0.0.1", curve_public_key=public, curve_secret_key=secret), ME, Nobody())
