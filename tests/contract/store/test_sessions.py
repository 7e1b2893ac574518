"""`SessionStore`: owners, checkpoints, and who may resume."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from duologue.fence import Owner
from duologue.store.memory import MemoryStore
from duologue.store.ports import (
    Activated,
    Checkpoint,
    Done,
    Owned,
    Refused,
    ResumeRefused,
    SessionRecord,
)
from duologue.store.redis import RedisStore

pytestmark = pytest.mark.contract

Store = MemoryStore | RedisStore
RECORD = SessionRecord("key-1", "duplex", b"\x00token-0", "gw-1", extra=b"\xffpipeline")
NOT_GOOD = ResumeRefused("invalid_resume_token", "resume_token")


async def opened(store: Store, sid: str, incarnation: str = "shard-1") -> Owner:
    owned = await store.sessions.own(sid, incarnation=incarnation, create=RECORD)
    assert isinstance(owned, Owned)
    return owned.owner


async def activate(
    store: Store,
    sid: str,
    token: bytes,
    new: bytes,
    *,
    gateway: str = "gw-2",
    live: tuple[str, ...] = (),
    principal: str = "key-1",
    dialect: str = "duplex",
) -> Activated | ResumeRefused:
    return await store.sessions.activate(
        sid,
        token_digest=token,
        new_digest=new,
        principal=principal,
        dialect=dialect,
        gateway=gateway,
        live_gateways=live,
    )


async def test_open_hands_out_the_first_owner_and_keeps_the_record(store: Store, sid: str) -> None:
    owned = await store.sessions.own(sid, incarnation="shard-1", create=RECORD)
    assert owned == Owned(Owner(1, "shard-1"), RECORD)
    assert await store.sessions.look_up(sid) == Activated(RECORD, Owner(1, "shard-1"))


async def test_a_session_is_opened_once(store: Store, sid: str) -> None:
    owner = await opened(store, sid)
    again = await store.sessions.own(sid, incarnation="shard-2", create=RECORD)
    assert again == Refused("exists", owner)


async def test_own_without_a_session_is_refused(store: Store, sid: str) -> None:
    assert await store.sessions.own(sid, incarnation="shard-1") == Refused("gone")
    assert await store.sessions.look_up(sid) is None


async def test_an_heir_gets_a_number_above_everything_known(store: Store, sid: str) -> None:
    await opened(store, sid)
    assert await store.sessions.own(sid, incarnation="shard-2") == Owned(Owner(2, "shard-2"), RECORD)
    assert await store.sessions.own(sid, incarnation="shard-3", above=7) == Owned(Owner(8, "shard-3"), RECORD)


async def test_a_repeated_attempt_gets_the_same_number(store: Store, sid: str) -> None:
    first = await store.sessions.own(sid, incarnation="shard-1", create=RECORD, attempt="a")
    assert await store.sessions.own(sid, incarnation="shard-1", create=RECORD, attempt="a") == first
    second = await store.sessions.own(sid, incarnation="shard-1", attempt="b")
    assert isinstance(second, Owned) and second.owner.number == 2
    assert await store.sessions.own(sid, incarnation="shard-1", attempt="b") == second


async def test_checkpoint_is_read_back_as_written(store: Store, sid: str) -> None:
    owner = await opened(store, sid)
    blob = bytes(range(256))
    assert await store.sessions.read_checkpoint(sid) is None
    assert await store.sessions.checkpoint(sid, owner, 1, blob) == Done()
    assert await store.sessions.read_checkpoint(sid) == Checkpoint(1, 1, blob)


async def test_a_late_checkpoint_never_replaces_a_newer_one(store: Store, sid: str) -> None:
    owner = await opened(store, sid)
    await store.sessions.checkpoint(sid, owner, 2, b"two")
    assert await store.sessions.checkpoint(sid, owner, 2, b"two") == Done()
    assert await store.sessions.checkpoint(sid, owner, 1, b"one") == Refused("number", owner, 2)
    assert await store.sessions.read_checkpoint(sid) == Checkpoint(1, 2, b"two")


async def test_numbers_of_a_new_owner_start_again(store: Store, sid: str) -> None:
    owner = await opened(store, sid)
    await store.sessions.checkpoint(sid, owner, 9, b"old")
    heir = await store.sessions.own(sid, incarnation="shard-2")
    assert isinstance(heir, Owned)
    assert await store.sessions.checkpoint(sid, heir.owner, 1, b"new") == Done()
    assert await store.sessions.read_checkpoint(sid) == Checkpoint(2, 1, b"new")
    assert await store.sessions.checkpoint(sid, owner, 10, b"late") == Refused("owner", heir.owner)
    assert await store.sessions.touch(sid, owner) == Refused("owner", heir.owner)
    assert await store.sessions.release(sid, owner) == Refused("owner", heir.owner)


async def test_equal_number_of_another_incarnation_is_refused(store: Store, sid: str) -> None:
    owner = await opened(store, sid)
    twin = Owner(owner.number, "shard-2")
    assert await store.sessions.checkpoint(sid, twin, 1, b"") == Refused("owner", owner)


async def test_a_higher_owner_heals_a_store_that_was_behind(store: Store, sid: str) -> None:
    await opened(store, sid)
    ahead = Owner(5, "shard-9")
    assert await store.sessions.checkpoint(sid, ahead, 3, b"x") == Done()
    found = await store.sessions.look_up(sid)
    assert found is not None and found.owner == ahead
    assert await store.sessions.own(sid, incarnation="s", above=2) == Owned(Owner(6, "s"), RECORD)


async def test_activation_rotates_the_token_and_raises_the_generation(store: Store, sid: str) -> None:
    await opened(store, sid)
    first = await activate(store, sid, b"\x00token-0", b"token-1")
    assert isinstance(first, Activated)
    assert first.owner == Owner(1, "shard-1")
    assert (first.record.generation, first.record.gateway) == (2, "gw-2")
    assert (first.record.token_digest, first.record.extra) == (b"token-1", b"\xffpipeline")
    second = await activate(store, sid, b"token-1", b"token-2", gateway="gw-3")
    assert isinstance(second, Activated) and second.record.generation == 3


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"token": b"token-x"}, NOT_GOOD),
        ({"token": b""}, NOT_GOOD),
        ({"principal": "key-2"}, NOT_GOOD),
        ({"dialect": "openai"}, ResumeRefused("invalid_session_resume", "dialect")),
    ],
)
async def test_refused_resumes_change_nothing(
    store: Store, sid: str, change: dict[str, str], answer: ResumeRefused
) -> None:
    await opened(store, sid)
    given: dict[str, str] = {"token": b"\x00token-0", **change}  # type: ignore[dict-item]
    token: bytes = given.pop("token")  # type: ignore[assignment]
    assert await activate(store, sid, token, b"token-1", **given) == answer  # type: ignore[arg-type]
    assert await store.sessions.look_up(sid) == Activated(RECORD, Owner(1, "shard-1"))


async def test_unknown_session_is_expired(store: Store, sid: str) -> None:
    assert await activate(store, sid, b"t", b"n") == ResumeRefused("session_resume_expired")


async def test_examine_answers_the_same_and_changes_nothing(store: Store, sid: str) -> None:
    await opened(store, sid)
    asked = {"principal": "key-1", "dialect": "duplex"}
    for _ in range(2):
        seen = await store.sessions.examine(sid, token_digest=b"\x00token-0", live_gateways=(), **asked)
        assert seen == Activated(RECORD, Owner(1, "shard-1"))
    refused = await store.sessions.examine(sid, token_digest=b"token-x", live_gateways=(), **asked)
    assert refused == NOT_GOOD


async def test_one_of_two_racing_resumes_wins(store: Store, sid: str) -> None:
    await opened(store, sid)
    live = ("gw-2", "gw-3")
    answers = await asyncio.gather(
        activate(store, sid, b"\x00token-0", b"token-a", gateway="gw-2", live=live),
        activate(store, sid, b"\x00token-0", b"token-b", gateway="gw-3", live=live),
    )
    winners = [answer for answer in answers if isinstance(answer, Activated)]
    assert len(winners) == 1 and NOT_GOOD in answers


async def test_previous_token_is_good_while_nobody_alive_holds_the_attachment(store: Store, sid: str) -> None:
    await opened(store, sid)
    await activate(store, sid, b"\x00token-0", b"token-1", gateway="gw-2", live=("gw-2",))
    assert await activate(store, sid, b"\x00token-0", b"n", gateway="gw-3", live=("gw-2",)) == NOT_GOOD
    dead = await activate(store, sid, b"\x00token-0", b"token-2", gateway="gw-3", live=("gw-3",))
    assert isinstance(dead, Activated) and dead.record.generation == 3
    await store.sessions.let_go(sid, 3)
    gone = await activate(store, sid, b"\x00token-0", b"token-3", gateway="gw-3", live=("gw-3",))
    assert isinstance(gone, Activated) and gone.record.generation == 4


async def test_first_frame_voids_the_previous_token(store: Store, sid: str) -> None:
    await opened(store, sid)
    await activate(store, sid, b"\x00token-0", b"token-1")
    assert await store.sessions.confirm(sid, 2) == Done()
    assert await activate(store, sid, b"\x00token-0", b"token-2") == NOT_GOOD
    assert isinstance(await activate(store, sid, b"token-1", b"token-2"), Activated)


async def test_an_older_generation_neither_confirms_nor_lets_go(store: Store, sid: str) -> None:
    await opened(store, sid)
    await activate(store, sid, b"\x00token-0", b"token-1")
    assert await store.sessions.confirm(sid, 1) == Refused("generation", Owner(1, "shard-1"), 2)
    assert await store.sessions.let_go(sid, 1) == Refused("generation", Owner(1, "shard-1"), 2)
    found = await store.sessions.look_up(sid)
    assert found is not None and found.record.gateway == "gw-2"


async def test_a_repeated_activation_is_answered_again(store: Store, sid: str) -> None:
    await opened(store, sid)
    first = await activate(store, sid, b"\x00token-0", b"token-1", live=("gw-2",))
    assert await activate(store, sid, b"\x00token-0", b"token-1", live=("gw-2",)) == first


async def test_an_abandoned_activation_is_let_go_by_its_digest(store: Store, sid: str) -> None:
    await opened(store, sid)
    await activate(store, sid, b"\x00token-0", b"token-1", gateway="gw-2", live=("gw-2",))
    assert await store.sessions.let_go(sid, new_digest=b"token-1") == Done()
    answer = await activate(store, sid, b"\x00token-0", b"token-2", gateway="gw-2", live=("gw-2",))
    assert isinstance(answer, Activated)


async def test_an_abandoned_activation_that_comes_late_is_refused(store: Store, sid: str) -> None:
    await opened(store, sid)
    assert await store.sessions.let_go(sid, new_digest=b"token-1") == Done()
    assert await activate(store, sid, b"\x00token-0", b"token-1") == NOT_GOOD
    assert isinstance(await activate(store, sid, b"\x00token-0", b"token-2"), Activated)


async def test_several_abandoned_activations_are_refused_however_late(store: Store, sid: str) -> None:
    await opened(store, sid)
    given_up = [bytes([n]) * 32 for n in range(12)]
    for digest in given_up:
        assert await store.sessions.let_go(sid, new_digest=digest) == Done()
    assert isinstance(await activate(store, sid, b"\x00token-0", b"token-1", gateway="gw-2"), Activated)
    await store.sessions.let_go(sid, 2)
    for digest in given_up:
        assert await activate(store, sid, b"\x00token-0", digest) == NOT_GOOD
    assert isinstance(await activate(store, sid, b"\x00token-0", b"token-2"), Activated)


async def test_an_abandoned_activation_is_not_carried_out_twice(store: Store, sid: str) -> None:
    """Its command may have been sent again: once before it is let go of, once after that."""
    await opened(store, sid)
    assert isinstance(await activate(store, sid, b"\x00token-0", b"token-1"), Activated)
    assert await store.sessions.let_go(sid, new_digest=b"token-1") == Done()
    assert await activate(store, sid, b"\x00token-0", b"token-1") == NOT_GOOD
    found = await store.sessions.look_up(sid)
    assert found is not None and (found.record.gateway, found.record.generation) == ("", 2)
    assert isinstance(await activate(store, sid, b"\x00token-0", b"token-2", live=("gw-2",)), Activated)


async def test_a_digest_within_one_that_was_given_up_is_another(store: Store, sid: str) -> None:
    await opened(store, sid)
    await store.sessions.let_go(sid, new_digest=b"token-11")
    for digest in (b"token-1", b"oken-11", b"1"):
        assert isinstance(await activate(store, sid, b"\x00token-0", digest, gateway=""), Activated)


async def test_release_deletes_and_refuses_what_comes_late(store: Store, sid: str) -> None:
    owner = await opened(store, sid)
    await store.sessions.checkpoint(sid, owner, 1, b"x")
    assert await store.sessions.release(sid, owner) == Done()
    assert await store.sessions.release(sid, owner) == Done()
    assert await store.sessions.look_up(sid) is None
    assert await store.sessions.read_checkpoint(sid) is None
    assert await store.sessions.checkpoint(sid, owner, 2, b"y") == Refused("gone", owner)
    assert await store.sessions.own(sid, incarnation="shard-2") == Refused("gone", owner)
    assert await activate(store, sid, b"\x00token-0", b"n") == ResumeRefused("session_resume_expired")


# -- a store that has gone back in time --------------------------------------------------------------------


async def test_what_is_lost_altogether_is_there_again_when_it_is_told(store: Store, sid: str) -> None:
    owner, record = Owner(3, "shard-1"), msgspec.structs.replace(RECORD, generation=4)
    assert await store.sessions.reassert(sid, owner, record) == Done()
    assert await store.sessions.look_up(sid) == Activated(record, owner)
    again = await activate(store, sid, b"\x00token-0", b"next", live=("gw-1",))
    assert isinstance(again, Activated) and again.record.generation == 5


async def test_an_older_generation_is_replaced_and_a_newer_one_refuses(store: Store, sid: str) -> None:
    owner = await opened(store, sid)
    ours = msgspec.structs.replace(RECORD, generation=3, token_digest=b"three", gateway="gw-3")
    assert await store.sessions.reassert(sid, owner, ours) == Done()
    assert await store.sessions.look_up(sid) == Activated(ours, owner)
    assert await activate(store, sid, b"\x00token-0", b"x") == NOT_GOOD, "the token of the past is void"
    late = msgspec.structs.replace(RECORD, generation=2, token_digest=b"two", gateway="gw-2")
    refused = await store.sessions.reassert(sid, owner, late)
    assert isinstance(refused, Refused) and (refused.reason, refused.number) == ("generation", 3)
    assert await store.sessions.look_up(sid) == Activated(ours, owner)


async def test_telling_what_is_there_already_changes_nothing(store: Store, sid: str) -> None:
    owner = await opened(store, sid)
    active = await activate(store, sid, b"\x00token-0", b"fresh")
    assert isinstance(active, Activated)
    assert await store.sessions.reassert(sid, owner, active.record) == Done()
    assert await store.sessions.let_go(sid, 2) == Done()
    assert await store.sessions.reassert(sid, owner, active.record) == Done()
    found = await store.sessions.look_up(sid)
    assert found is not None and found.record.gateway == "", "what was let go since stays so"
    assert isinstance(await activate(store, sid, b"\x00token-0", b"fresh-2"), Activated), "the one before is good yet"


async def test_only_the_owner_is_believed_and_nothing_of_an_ended_session(store: Store, sid: str) -> None:
    owner = await opened(store, sid)
    heir = await store.sessions.own(sid, incarnation="shard-2", above=owner.number)
    assert isinstance(heir, Owned)
    newer = msgspec.structs.replace(RECORD, generation=9)
    refused = await store.sessions.reassert(sid, owner, newer)
    assert isinstance(refused, Refused) and refused.reason == "owner"
    await store.sessions.release(sid, heir.owner)
    gone = await store.sessions.reassert(sid, heir.owner, newer)
    assert isinstance(gone, Refused) and gone.reason == "gone"
