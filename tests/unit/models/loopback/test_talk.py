"""loopback-talk: answers whoever speaks, with how long that was."""

from __future__ import annotations

from typing import Any

import pytest
from unit.models.loopback.chain import Chain, said, sound, story, voice

from duologue.protocol.duplex import Item, SessionConfig

pytestmark = pytest.mark.unit

LOUD = voice(80)
ANSWER = "s" * 24 + "S"


def talk(**session: Any) -> Chain:
    return Chain("loopback-talk", **{"auto": False, **session})


def tools() -> dict[str, Any]:
    return {"tools": ({"type": "function", "name": "look_up"}, {"type": "function", "name": "other"})}


def result(chain: Chain) -> None:
    item = Item(id="i", type="function_call_output", call_id="c", output="{}")
    chain.plugin.on_tool_output(chain.state, item)


def spoken_turn(chain: Chain, units: int) -> str:
    """A turn of so many units of speech and two of silence around it; all that came of it."""
    chain.turn()
    results = [chain.feed(), *chain.run(units, LOUD), chain.feed(final=True)]
    waited = units + 1
    assert story(results[:waited]) == "." * waited
    results += chain.run(30, continuation=True)
    return story(results[waited:]).rstrip("u") + "|" + said(results)


def test_each_turn_is_answered_with_how_long_it_was() -> None:
    chain = talk()
    assert spoken_turn(chain, 5) == f"{ANSWER}|you spoke for 400 ms"
    assert spoken_turn(chain, 2) == f"{ANSWER}|you spoke for 160 ms"


def test_an_answer_is_two_seconds_of_tone() -> None:
    chain = talk()
    chain.turn()
    assert len(sound([chain.feed(LOUD, final=True), *chain.run(30, continuation=True)])) == 25 * 1920


def test_a_typed_turn_is_answered() -> None:
    chain = talk()
    chain.turn()
    assert said(chain.run(30, continuation=True)) == "you spoke for 0 ms"


def test_every_second_turn_calls_the_first_tool_and_answers_after_its_result() -> None:
    chain = talk(**tools())
    assert spoken_turn(chain, 2) == f"{ANSWER}|you spoke for 160 ms"
    chain.turn()
    called = [chain.feed(LOUD), chain.feed(final=True), *chain.run(3, continuation=True)]
    assert story(called) == ".Cuuu"
    (call,) = called[1][0].tool_calls
    assert (call.name, call.arguments) == ("look_up", "{}") and call.call_id
    result(chain)
    chain.turn()
    assert said(chain.run(25, continuation=True)) == "you spoke for 80 ms"
    assert spoken_turn(chain, 3) == f"{ANSWER}|you spoke for 240 ms"
    assert spoken_turn(chain, 3).startswith("C|")


def test_tools_may_come_with_a_later_update() -> None:
    chain = talk()
    spoken_turn(chain, 1)
    chain.plugin.on_update(chain.state, SessionConfig(model="loopback-talk", auto_response=False, **tools()))
    chain.turn()
    called = [chain.feed(LOUD), chain.feed(final=True)]
    (call,) = called[1][0].tool_calls
    assert call.name == "look_up"
    chain.plugin.on_update(chain.state, SessionConfig(model="loopback-talk", auto_response=False))
    assert [spoken_turn(chain, 1) for _ in range(2)] == [f"{ANSWER}|you spoke for 80 ms"] * 2


def test_who_speaks_again_instead_is_answered() -> None:
    chain = talk(**tools())
    spoken_turn(chain, 1)
    assert spoken_turn(chain, 1).startswith("C|")
    assert spoken_turn(chain, 4) == f"{ANSWER}|you spoke for 320 ms"


def test_a_cancelled_answer_is_over() -> None:
    chain = talk()
    chain.turn()
    chain.run(3, LOUD, final=True)
    chain.cancel()
    assert story(chain.run(3)) == "uuu"
    assert spoken_turn(chain, 1) == f"{ANSWER}|you spoke for 80 ms"


def test_in_an_auto_session_a_commit_is_the_turn() -> None:
    chain = talk(auto=True)
    assert story(chain.run(4, LOUD)) == "llll"
    chain.plugin.on_commit(chain.state)
    results = chain.run(27)
    assert story(results) == f"{ANSWER}ll"
    assert said(results) == "you spoke for 320 ms"
