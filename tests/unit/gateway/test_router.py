"""Which shard a session goes to."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from duologue.gateway.router import MAX_REMEMBERED, Router
from duologue.model.records import PipelineRecord, ShardRecord, encode_record
from duologue.protocol.duplex import DuplexCapabilities
from duologue.store.ports import Registration

pytestmark = pytest.mark.unit


def served(name: str = "m", *, sessions: int = 0, ready: bool = True) -> PipelineRecord:
    return PipelineRecord(name, DuplexCapabilities(), True, 16_000, 24_000, 4, sessions, ready)


def shard(
    name: str,
    *pipelines: PipelineRecord,
    capacity: int = 8,
    load: int = 0,
    accepting: bool = True,
    standby: bool = False,
) -> Registration:
    record = ShardRecord(pipelines or (served(),), load, capacity, accepting, standby=standby)
    return Registration("shard", name, f"{name}-a", f"memory://{name}", extra=encode_record(record))


def router(*members: Registration) -> Router:
    made = Router()
    made.update(members)
    return made


def chosen(made: Router, session_id: str, model: str = "m") -> list[str]:
    return [candidate.id for candidate in made.candidates(session_id, model)]


def test_sessions_are_spread_by_capacity() -> None:
    made = router(shard("a", capacity=100), shard("b", capacity=300))
    first = Counter(chosen(made, f"duplex-{n}")[0] for n in range(2000))
    assert 0.7 < first["b"] / 2000 < 0.8


def test_the_order_is_the_same_everywhere_and_hardly_moves_when_a_shard_goes() -> None:
    names = "abcde"
    whole = router(*(shard(name) for name in names))
    again = router(*(shard(name) for name in reversed(names)))
    fewer = router(*(shard(name) for name in names if name != "c"))
    for n in range(50):
        order = chosen(whole, f"duplex-{n}")
        assert order == chosen(again, f"duplex-{n}")
        assert [name for name in order if name != "c"] == chosen(fewer, f"duplex-{n}")


@pytest.mark.parametrize(
    "unable",
    [
        shard("b", accepting=False),
        shard("b", load=8),
        shard("b", served(sessions=4)),
        shard("b", served(ready=False)),
        shard("b", served("other")),
    ],
)
def test_a_shard_that_cannot_take_the_session_is_left_out(unable: Registration) -> None:
    made = router(shard("a"), unable)
    assert all(chosen(made, f"duplex-{n}") == ["a"] for n in range(20))


def test_a_shard_on_standby_comes_behind_all_that_are_active() -> None:
    """However much room it has; among the active, and among those on standby, the order is as ever."""
    standing = router(*(shard(name) for name in "ab"), *(shard(name, capacity=800, standby=True) for name in "yz"))
    plain = router(*(shard(name) for name in "ab"), *(shard(name, capacity=800) for name in "yz"))
    firsts: Counter[str] = Counter()
    for n in range(50):
        order, as_ever = chosen(standing, f"duplex-{n}"), chosen(plain, f"duplex-{n}")
        assert order == [one for one in as_ever if one in "ab"] + [one for one in as_ever if one in "yz"]
        firsts[order[0]] += 1
    assert set(firsts) == {"a", "b"}, "it still spreads over the active ones"


@pytest.mark.parametrize("full", [shard("a", load=8), shard("a", served(sessions=4)), shard("a", accepting=False)])
def test_a_shard_on_standby_takes_what_no_active_one_takes(full: Registration) -> None:
    made = router(full, shard("z", standby=True))
    assert chosen(made, "duplex-1") == ["z"] and made.takes("m")
    made.update([shard("a"), shard("z", standby=True)])
    assert chosen(made, "duplex-1") == ["a", "z"], "as soon as there is room it is last again"


def test_alone_a_shard_on_standby_serves_and_is_ready() -> None:
    made = router(shard("z", standby=True))
    assert chosen(made, "duplex-1") == ["z"]
    assert made.takes() and made.unready() == []


def test_a_shard_on_standby_inherits_like_any() -> None:
    """Shards that look for heirs by themselves know nothing of it: gateways have to ask the same one."""
    standing = router(shard("a"), shard("b"), shard("z", standby=True), shard("lost"))
    plain = router(*(shard(name) for name in ("a", "b", "z", "lost")))
    orders = {tuple(heir.id for heir in standing.heirs(f"duplex-{n}", "lost-a")) for n in range(50)}
    assert orders == {tuple(heir.id for heir in plain.heirs(f"duplex-{n}", "lost-a")) for n in range(50)}
    assert {order[0] for order in orders} == {"a", "b", "z"}


def test_a_record_that_does_not_say_so_is_of_an_active_shard() -> None:
    """Of an older release: the key is missing. An older reader passes over it."""

    class Older(msgspec.Struct, frozen=True):
        pipelines: tuple[PipelineRecord, ...]
        sessions: int
        max_sessions: int
        accepting: bool = True

    old = msgspec.msgpack.encode(Older((served(),), 0, 8))
    made = router(Registration("shard", "a", "a-a", extra=old), shard("z", standby=True))
    assert chosen(made, "duplex-1") == ["a", "z"]
    read = msgspec.msgpack.decode(shard("z", standby=True).extra, type=Older)
    assert (read.max_sessions, read.accepting) == (8, True)


def test_heirs_are_the_living_that_take_sessions_in_an_order_that_all_agree_on() -> None:
    members = [shard(name) for name in "abcd"]
    made, other = router(*members), router(*reversed(members))
    for n in range(20):
        order = [heir.id for heir in made.heirs(f"duplex-{n}", "a-a")]
        assert sorted(order) == ["b", "c", "d"]
        assert order == [heir.id for heir in other.heirs(f"duplex-{n}", "a-a")]
        assert order[0] == next(one for one in chosen(made, f"duplex-{n}") if one != "a"), "only its sessions move"


def test_an_heir_can_read_what_the_lost_shard_saved() -> None:
    """Of two releases side by side: the gateway remembers what the lost one wrote, and asks no other."""

    def of(name: str, reads: int, writes: int) -> Registration:
        record = ShardRecord((served(),), 0, 8, reads_state=reads, writes_state=writes)
        return Registration("shard", name, f"{name}-a", extra=encode_record(record))

    old, new, lost = of("old", 1, 1), of("new", 2, 2), of("lost", 2, 2)
    made = router(old, new, lost)
    made.update([old, new])
    assert [heir.id for heir in made.heirs("duplex-1", "lost-a")] == ["new"]
    assert {heir.id for heir in made.heirs("duplex-1", "never-heard-of")} == {"old", "new"}
    made.update([of(f"s{n}", 1, 1) for n in range(2 * MAX_REMEMBERED)])
    made.update([old, new])
    assert {heir.id for heir in made.heirs("duplex-1", "lost-a")} == {"old", "new"}, "it is forgotten at last"
    assert len(made._wrote) <= MAX_REMEMBERED + 2


def test_an_owner_is_found_by_its_incarnation_only() -> None:
    made = router(shard("a"))
    owner = made.owner("a-a")
    assert owner is not None
    assert owner.id == "a"
    assert made.owner("a") is None


def test_models_are_listed_in_the_order_of_the_configuration() -> None:
    made = router(shard("a", served("x"), served("y", ready=False)), shard("b", served("z")))
    assert list(made.models) == ["x", "y", "z"]
    assert made.first_model is not None
    assert made.first_model.name == "x"
    assert (made.takes("x"), made.takes("y"), made.takes("nothing")) == (True, False, False)


def test_what_keeps_the_fleet_from_being_ready_is_named() -> None:
    assert router(shard("a")).unready() == []
    assert router().unready() == ["no shard is accepting sessions"]
    (missing,) = router(shard("a", served("x", ready=False))).unready()
    assert "x" in missing


def test_a_record_of_another_version_is_nobody() -> None:
    made = router(Registration("shard", "a", "a-a", "memory://a", extra=b"\xc1"))
    assert not list(made.shards)


def test_gateways_are_known_by_their_incarnations() -> None:
    assert router(Registration("gateway", "g", "g-a")).gateways == {"g-a"}


def test_the_sessions_of_all_shards_are_counted_together() -> None:
    assert router().sessions() == 0
    assert router(shard("a", load=3), shard("b", load=4, accepting=False)).sessions() == 7
