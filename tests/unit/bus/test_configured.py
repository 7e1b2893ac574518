"""What `[bus]` makes of an endpoint: where it listens, what it tells others, and its keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from duologue.bus.configured import bind_address, dialling_endpoint, keys_of, listening_endpoint
from duologue.bus.curve import decoded, make_pair, split_key
from duologue.bus.errors import BusError
from duologue.bus.link import Link, LinkHandler, Peer, PeerLost
from duologue.bus.messages import AnyMessage
from duologue.bus.zmq import ZmqEndpoint
from duologue.runtime.settings import BusSettings

pytestmark = pytest.mark.unit

MakeEndpoint = Callable[[BusSettings, Peer, LinkHandler], ZmqEndpoint]
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


def test_without_a_folder_it_is_one_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert bind_address(BusSettings(), ME) == f"ipc://{tmp_path}/duologue-{os.getuid()}/shard-1-a1b2c3.sock"


def test_by_tcp_the_port_is_fixed_or_free() -> None:
    assert bind_address(BusSettings(host="0.0.0.0", port=7001), ME) == "tcp://0.0.0.0:7001"
    assert bind_address(BusSettings(host="0.0.0.0"), ME) == "tcp://0.0.0.0:*"


async def test_by_tcp_it_tells_the_name_that_others_dial_and_its_key() -> None:
    public, secret = make_pair()
    bus = BusSettings(host="127.0.0.1", advertise="shard-1.example", curve_secret_key=secret)
    endpoint = listening_endpoint(bus, ME, Nobody())
    assert endpoint.address == ""
    await endpoint.start()
    try:
        place, key = split_key(endpoint.address)
        assert place.startswith("tcp://shard-1.example:") and int(place.rpartition(":")[2]) > 0
        assert key == public
    finally:
        await endpoint.close()


def test_the_settings_reach_the_links() -> None:
    bus = BusSettings(window_bytes=1234, heartbeat_s=0.25, expiry_s=0.75, stall_s=0.6)
    options = dialling_endpoint(bus, ME, Nobody()).options
    assert (options.window_bytes, options.heartbeat_s, options.expiry_s, options.stall_s) == (1234, 0.25, 0.75, 0.6)


def test_keys_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BusError, match="secret key is not 40 characters") as refused:
        listening_endpoint(BusSettings(host="127.0.0.1", curve_secret_key="short"), ME, Nobody())
    assert "short" not in str(refused.value)
    with pytest.raises(BusError, match="nothing.secret cannot be read: No such file"):
        keys_of(BusSettings(host="127.0.0.1", curve_secret_file=str(tmp_path / "nothing.secret")))
    _, secret = make_pair()
    with pytest.raises(BusError, match="an allowed key is not 40 characters"):
        keys_of(BusSettings(host="127.0.0.1", curve_secret_key=secret, curve_allowed_keys=("é" * 40,)))
    with pytest.raises(BusError, match="allowed cannot be read"):
        keys_of(BusSettings(host="127.0.0.1", curve_secret_key=secret, curve_allowed_file=str(tmp_path / "allowed")))


@pytest.mark.parametrize("make", [listening_endpoint, dialling_endpoint])
def test_where_others_reach_it_nobody_starts_without_keys(make: MakeEndpoint) -> None:
    with pytest.raises(BusError, match=r"\[bus\] host 0.0.0.0: .*bus_keys_missing.*curve_secret_file.*insecure"):
        make(BusSettings(host="0.0.0.0"), ME, Nobody())
    for free in (BusSettings(host="127.0.0.1"), BusSettings(host="localhost"), BusSettings(host="::1"), BusSettings()):
        assert keys_of(free) is None
    assert keys_of(BusSettings(host="0.0.0.0", insecure=True)) is None
    _, secret = make_pair()
    make(BusSettings(host="0.0.0.0", curve_secret_key=secret), ME, Nobody())


def test_the_secret_and_the_list_may_be_files(tmp_path: Path) -> None:
    public, secret = make_pair()
    other, _ = make_pair()
    third, _ = make_pair()
    (tmp_path / "one.secret").write_text(secret + "\n")
    (tmp_path / "allowed").write_text(f"# whom we talk to\n\n{other}  shard-2\n")
    bus = BusSettings(
        host="0.0.0.0",
        curve_secret_file=str(tmp_path / "one.secret"),
        curve_allowed_file=str(tmp_path / "allowed"),
    )
    keys = keys_of(bus)
    assert keys is not None and keys.public == public
    assert secret not in repr(keys)
    assert [decoded(key) in keys.allowed for key in (public, other, third)] == [True, True, False]
    (tmp_path / "allowed").write_text(f"{third}\n")
    assert [decoded(key) in keys.allowed for key in (public, other, third)] == [True, False, True]
    (tmp_path / "allowed").write_text("nonsense\n")
    assert decoded(third) in keys.allowed, "what cannot be read changes nothing"
    (tmp_path / "allowed").unlink()
    assert decoded(third) in keys.allowed


def test_pairs_are_safe_to_write_down() -> None:
    pairs = [make_pair() for _ in range(50)]
    assert all(text[0].isalnum() for pair in pairs for text in pair)
    assert len(set(pairs)) == 50
