"""What scripts make of units: decisions, turns, waits, transcripts, cancellations."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from unit.models.loopback.chain import Chain, follow, said, story, voice

from duologue.model.outputs import ToolCall

pytestmark = pytest.mark.unit

LOUD = voice(80)


def speak(units: int, text: str = "", **more: Any) -> dict[str, Any]:
    return {"speak": {"units": units, "text": text, **more}}


def listen(units: int = 1) -> dict[str, Any]:
    return {"listen": units}


def call(name: str = "look_up", **more: Any) -> dict[str, Any]:
    return {"tool_call": {"name": name, **more}}


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ([], "llll"),
        ([listen(2), speak(3), listen()], "llssSlll"),
        ([speak(2)], "sSsSsS"),
        ([speak(2, end_of_turn=False), listen(2), speak(1), listen()], "ssllSll"),
        ([call(), listen()], "clll"),
        ([call("a"), call("b"), speak(1), listen()], "ccSll"),
        ([call()], "cccc"),
        ([speak(1, end_of_turn=False), call(), speak(1), listen()], "scSl"),
        ([{"transcript": "x"}, speak(1), listen()], "Sll"),
        ([{"transcript": "x"}], "lll"),
        ([{"when": "silence", "units": 3}, speak(1), listen()], "llSl"),
        ([{"when": "silence"}], "lll"),
        ([{"when": "speech"}, speak(1)], "llll"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_an_auto_session_is_decided_unit_by_unit(script: list[dict[str, Any]], expected: str) -> None:
    assert story(follow(*script).run(len(expected))) == expected


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ([listen(2), speak(1)], ["luuu", "luuu", "Suuu"]),
        ([speak(2), speak(1)], ["sSuu", "Suuu", "Suuu"]),
        ([speak(2, end_of_turn=False), listen(), speak(1)], ["sslu", "Suuu"]),
        ([call(), speak(2)], ["Cuuu", "sSuu"]),
        ([call("a"), call("b"), speak(2)], ["cCuu", "sSuu"]),
        ([call()], ["Cuuu", "Cuuu"]),
        ([{"transcript": "x"}, speak(1)], ["Suuu"]),
        ([speak(6)], ["ssss", "sSuu"]),
    ],
    ids=str,
)
def test_a_turn_moves_the_script_until_it_ends(script: list[dict[str, Any]], expected: list[str]) -> None:
    chain = follow(*script, auto=False)
    for turn in expected:
        chain.turn()
        assert story(chain.run(len(turn))) == turn


def test_a_turn_that_nobody_answers_moves_nothing() -> None:
    chain = follow(speak(2), auto=False)
    assert story(chain.run(3, LOUD)) == "uuu"
    chain.turn()
    assert story(chain.run(3)) == "sSu"


def test_waiting_for_speech_ends_with_the_unit_that_is_speech() -> None:
    chain = follow({"when": "speech"}, speak(2, "bless you"), {"when": "silence", "units": 3}, speak(1), listen())
    assert story(chain.run(3)) == "lll"
    assert story(chain.run(4, LOUD)) == "sSll"
    assert story(chain.run(2)) == "ll"
    assert story(chain.run(1, LOUD)) == "l", "speech breaks the silence"
    assert story(chain.run(4)) == "llSl"


def test_what_the_session_knows_of_speech_counts_more_than_the_level() -> None:
    chain = follow({"when": "speech"}, speak(1), listen())
    assert story(chain.run(2, LOUD, is_speech=False)) == "ll"
    assert story(chain.run(2, is_speech=True)) == "Sl"


def test_a_unit_that_must_be_listened_to_moves_nothing() -> None:
    chain = follow(speak(2), listen())
    assert story([chain.feed(), chain.feed(force_listen=True), chain.feed()]) == "slS"


@pytest.mark.parametrize(
    "text", ["one two three", "a b c d e f g", "one", "", "  two  spaces  kept ", "nǐ hǎo wörld", "   "]
)
@pytest.mark.parametrize("units", [1, 3, 8])
def test_the_shares_of_a_text_are_the_text(text: str, units: int) -> None:
    results = follow(speak(units, text), listen()).run(units)
    assert said(results) == text
    for output, _ in results:
        assert not output.text or output.text.strip() in text
        marks = [(mark.text_chars, mark.audio_ms) for mark in output.marks]
        assert marks == sorted(marks)
        assert not output.text or marks[-1] == (len(output.text), 80)


def test_a_word_takes_the_space_before_it_along() -> None:
    results = follow(speak(4, "word0 word1 word2 word3"), listen()).run(4)
    assert [output.text for output, _ in results] == ["word0", " word1", " word2", " word3"]


def test_the_words_of_one_unit_are_marked_one_by_one() -> None:
    ((output, _),) = follow(speak(1, "to be or not"), model="loopback-1s").run(1)
    assert [(mark.text_chars, mark.audio_ms) for mark in output.marks] == [
        (2, 250),
        (5, 500),
        (8, 750),
        (12, 1000),
    ]


WHOLE = call(arguments={"query": "weather", "days": 3}, call_id="call_7")


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (WHOLE, ToolCall("look_up", '{"query":"weather","days":3}', "call_7")),
        (call(), ToolCall("look_up", "{}", "call_0")),
        (call(malformed=True), ToolCall(raw='<tool_call>{"name": "look_up", "arguments": {')),
    ],
    ids=["whole", "defaults", "malformed"],
)
def test_a_call_is_passed_on(step: dict[str, Any], expected: ToolCall) -> None:
    ((output, _),) = follow(step, listen()).run(1)
    assert output.tool_calls == (expected,)


def commit(chain: Chain) -> str | None:
    return chain.plugin.on_commit(chain.state)


def test_a_transcript_at_the_head_is_taken_by_the_commit() -> None:
    chain = follow(
        {"transcript": "one"}, {"transcript": "two"}, speak(1), {"transcript": "three"}, listen(), auto=False
    )
    assert [commit(chain), commit(chain), commit(chain)] == ["one", "two", None]
    chain.turn()
    assert story(chain.run(2)) == "Su"
    assert [commit(chain), commit(chain)] == ["three", None]


def test_a_transcript_that_units_have_passed_waits_for_the_next_commit() -> None:
    chain = follow({"transcript": "one"}, listen(2), {"transcript": "two"}, listen())
    chain.run(1)
    assert [commit(chain), commit(chain)] == ["one", None]
    chain.run(1)
    assert [commit(chain), commit(chain)] == ["two", None]


def test_a_transcript_that_is_the_last_step_is_every_commits() -> None:
    chain = follow(speak(1), {"transcript": "again"}, auto=False)
    assert commit(chain) is None
    chain.turn()
    chain.run(1)
    assert [commit(chain), commit(chain)] == ["again", "again"]


def test_a_cancelled_step_is_over_and_what_was_decided_ahead_of_it_has_not_happened() -> None:
    chain = follow(speak(3, "first"), speak(2, "second"), listen())
    kept = [chain.feed()]
    ahead = [chain.ahead() for _ in range(6)]
    kept.append(chain.take(ahead[0]))
    chain.cancel()
    assert story(kept) == "ss"
    results = chain.run(3)
    assert story(results) == "sSl"
    assert said(results) == "second"


def test_a_turn_cancelled_before_it_said_anything_takes_its_step_along() -> None:
    chain = follow(speak(2, "first"), speak(2, "second"), auto=False)
    chain.turn()
    chain.ahead()
    chain.cancel()
    assert story(chain.run(2)) == "uu", "input that is left over"
    chain.turn()
    assert said(chain.run(2)) == "second"


def test_a_cancellation_between_answers_costs_no_step() -> None:
    chain = follow(listen(2), speak(1, "here"), listen())
    chain.run(1)
    chain.cancel()
    assert story(chain.run(3)) == "lSl"


def test_the_script_goes_on_where_it_was_after_a_rebuild() -> None:
    chain = follow(speak(4, "a b c d"), listen())
    chain.run(2)
    for _ in range(3):
        chain.ahead()
    chain.state = msgspec.msgpack.decode(msgspec.msgpack.encode(chain.state), type=chain.plugin.state_type)
    chain.open()
    results = chain.run(3)
    assert (story(results), said(results)) == ("sSl", " c d")


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("auto", [True, False])
def test_a_planned_failure_ends_the_answer_and_its_step(stage: int, auto: bool) -> None:
    fail = {"stage": stage, "unit": 1, "how": "error"}
    chain = follow(speak(4, "first"), speak(1, "second"), listen(), auto=auto, loopback={"fail": fail})
    chain.turn()
    assert story(chain.run(2)) == "s!"
    assert chain.failure is not None and chain.failure.code == "engine_error" and not chain.failure.retryable
    if not auto:
        assert story(chain.run(2)) == "uu"
        chain.turn()
    assert said(chain.run(1)) == "second"


def test_a_failure_is_over_after_so_many_attempts() -> None:
    chain = follow(listen(), loopback={"fail": {"stage": 2, "unit": 0, "how": "error", "times": 2}})
    assert story([chain.feed(attempt=2)]) == "l"


def test_it_tells_the_camera_frames_and_their_units() -> None:
    chain = follow({"listen": 2}, {"speak": {"units": 2, "text": "well then"}}, loopback={"frames": True})
    chain.feed(video_frames=(b"\xff\xd8", b"\xff\xd8\0"))
    chain.feed()
    results = [chain.feed(video_frames=(b"\xff\xd8\0\0",)), chain.feed()]
    assert said(results) == "well (saw 2 and 3 bytes with unit 0; 4 bytes with unit 2) then"
    (output, _), _ = results
    assert output.marks[-1].text_chars == len(output.text)


def test_it_says_nothing_of_frames_unless_it_is_told_to() -> None:
    chain = follow({"speak": {"units": 1, "text": "well"}})
    assert said([chain.feed(video_frames=(b"\xff\xd8",))]) == "well"
