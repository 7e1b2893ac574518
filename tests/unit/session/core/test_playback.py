"""The ledger, acknowledgements and truncation."""

from __future__ import annotations

import pytest
from unit.session.core.session_world import World, error_codes, pick, spoken, types

from duologue.protocol.duplex import (
    AckPlayback,
    ContentPart,
    CreateItem,
    DeleteItem,
    RetrieveItem,
    TruncateItem,
    message_item,
)
from duologue.session.core.ledger import PlaybackLedger

pytestmark = pytest.mark.unit


def told(units: int = 4) -> tuple[World, str]:
    world = World(auto=True)
    world.say(80 * units)
    for n in range(units):
        world.answer(spoken(f"{'' if n == 0 else ' '}word{n}", end_of_turn=n == units - 1))
    return world, pick(world.events, "response.done")[0]["response_id"]


def said(world: World, response_id: str) -> str:
    (event,) = world.send(RetrieveItem(item_id=f"item_{response_id}"))
    text: str = event["item"]["content"][0]["transcript"]
    return text


def acked(world: World, **fields: object) -> dict[str, object]:
    event = pick(world.send(AckPlayback(**fields)), "playback.acknowledged")[0]["event"]  # type: ignore[arg-type]
    return dict(event)


def test_cursors_are_monotonic_and_clamped_to_what_was_sent() -> None:
    world, response_id = told()
    played = [acked(world, played_ms=ms)["playback"]["played_ms"] for ms in (160, 80, 240, 0, 99_999)]  # type: ignore[index]
    assert played == [160, 160, 240, 240, 320]
    assert said(world, response_id) == "word0 word1 word2 word3"


def test_an_acknowledgement_is_clamped_to_what_the_egress_has_written() -> None:
    world = World(auto=True, holds=["delivers"])
    world.say(160)
    world.answer(spoken("one"))
    assert acked(world, played_ms=500)["playback"]["played_ms"] == 0  # type: ignore[index]


def test_truncate_cuts_at_the_marks_for_good() -> None:
    world, response_id = told()
    item = f"item_{response_id}"
    seen = world.send(TruncateItem(item_id=item, audio_end_ms=160))
    assert types(seen) == ["conversation.item.truncated", "playback.acknowledged"]
    assert said(world, response_id) == "word0 word1"
    world.send(TruncateItem(item_id=item, audio_end_ms=320))
    acked(world, played_ms=320)
    assert said(world, response_id) == "word0 word1"


def test_a_truncate_beyond_the_audio_is_clamped() -> None:
    world, response_id = told()
    seen = world.send(TruncateItem(item_id=f"item_{response_id}", audio_end_ms=99_999))
    assert seen[0]["audio_end_ms"] == 320
    assert said(world, response_id) == "word0 word1 word2 word3"


def test_a_bad_target_is_refused_by_name() -> None:
    world, response_id = told()
    assert error_codes(world.send(AckPlayback(played_ms=1, response_id="resp-x"))) == ["playback_item_not_found"]
    mismatch = AckPlayback(played_ms=1, response_id=response_id, item_id="item_resp-other")
    assert error_codes(world.send(mismatch)) == ["playback_item_mismatch"]
    item = message_item("user1", "user", ContentPart(type="input_text", text="hi"))
    world.send(CreateItem(item=item))
    assert error_codes(world.send(TruncateItem(item_id="user1", audio_end_ms=1))) == ["bad_event"]
    assert error_codes(world.send(TruncateItem(item_id="nope", audio_end_ms=1))) == ["item_not_found"]
    wrong = TruncateItem(item_id=f"item_{response_id}", audio_end_ms=1, content_index=5)
    assert error_codes(world.send(wrong)) == ["bad_event"]


def test_an_old_response_is_settled_when_its_ledger_goes() -> None:
    world = World(auto=True)
    world.machine._ctx.limits = world.limits = type(world.limits)(max_ledgers=2)
    for n in range(4):
        world.say()
        world.answer(spoken(f"answer {n}", end_of_turn=True))
        world.now += 1
    assert list(world.machine._ctx.state.ledgers) == [
        event["response_id"] for event in pick(world.events, "response.done")[-2:]
    ]
    first = world.machine._ctx.state.item_of(f"item_{pick(world.events, 'response.done')[0]['response_id']}")
    assert first is not None and first.settled == "answer 0"


def test_a_deleted_item_is_gone_from_the_conversation() -> None:
    world, response_id = told()
    assert types(world.send(DeleteItem(item_id=f"item_{response_id}"))) == ["conversation.item.deleted"]
    assert error_codes(world.send(RetrieveItem(item_id=f"item_{response_id}"))) == ["item_not_found"]


def test_audio_plays_until_acknowledged_or_until_its_time_has_passed() -> None:
    ledger = PlaybackLedger("r", generated_ms=1000)
    assert ledger.playing(5.0)
    ledger.sent(1000, 5.0)
    assert ledger.playing(5.9) and not ledger.playing(6.0)
    ledger.acknowledge(1000, None)
    assert not ledger.playing(5.1)


def test_heard_is_acknowledged_or_the_time_that_passed() -> None:
    ledger = PlaybackLedger("r", generated_ms=1000, text="0123456789")
    ledger.sent(800, 1.0)
    assert ledger.heard_ms(1.5) == 500
    assert ledger.heard_ms(9.0) == 800
    ledger.acknowledge(300, None)
    assert ledger.heard_ms(9.0) == 300
    assert ledger.text_at(300) == "012"
    ledger.truncate(100)
    assert ledger.heard_ms(9.0) == 100
