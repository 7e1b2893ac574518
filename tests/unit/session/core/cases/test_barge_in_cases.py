"""Faults of interruption that users reported elsewhere. BAR-08 is in `unit/inline`, BAR-13 in `unit/hearing`."""

from __future__ import annotations

from typing import Any

import pytest
from unit.session.core.event_rules import violations
from unit.session.core.fake_models import FakeModel, head_of, planning
from unit.session.core.session_world import World, error_codes, pick, spoken, types
from unit.session.core.test_conversation import text

from duologue.model.outputs import ModelOutput, UserTurn, encode_output
from duologue.protocol.duplex import (
    AckPlayback,
    AppendAudio,
    BargeIn,
    CancelInput,
    CancelResponse,
    ClearOutput,
    Commit,
    CreateItem,
    CreateResponse,
    Dialect,
    DuplexCommand,
    RetrieveItem,
    TruncateItem,
)
from duologue.session.core import Abort, Invalidate, StageOutput, StagesLost

pytestmark = pytest.mark.unit

Event = dict[str, Any]
STARTED = "input_audio_buffer.speech_started"
TRANSCRIBED = "conversation.item.input_audio_transcription.completed"
DELTA = "response.output_audio.delta"
OPENAI = [Dialect.openai, Dialect.openai_beta]


def answered(units: int, *, dialect: Dialect = Dialect.duplex, done: bool = True, **session: Any) -> World:
    """A question was asked by text and answered with `units` x 80 ms of speech, a word each, told all at once."""
    world = World(planning(), dialect=dialect, **{"turn_detection": None, **session})
    world.send(CreateItem(item=text("what did I ask?")))
    world.send(CreateResponse())
    for n in range(units):
        world.answer(spoken(f"word{n} ", end_of_turn=done and n == units - 1), last=False)
    if done:
        world.waiting.pop(0)
    return world


def answer_item(world: World) -> str:
    item_id: str = pick(world.events, "response.output_item.added")[-1]["item"]["id"]
    return item_id


def in_prompt(world: World) -> tuple[tuple[str, str], ...]:
    """The conversation that the model is given for its next answer."""
    world.send(CreateItem(item=text("go on")))
    world.send(CreateResponse())
    return world.heads()[-1].said[:-1]


# -- BAR-01 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", OPENAI)
def test_bar_01_a_truncate_by_the_wall_clock_ends_nothing(dialect: Dialect) -> None:
    """2640 ms were said, the client believes in 9100: no error, for one ends the receive loop of some clients."""
    world = answered(33, dialect=dialect)
    world.advance(1.0)
    seen = world.send(TruncateItem(item_id=answer_item(world), audio_end_ms=9100))
    assert types(seen) == ["conversation.item.truncated"]
    assert seen[0]["audio_end_ms"] == 2640
    world.send(CreateItem(item=text("next")))
    world.send(CreateResponse())
    world.answer(spoken("of course", end_of_turn=True))
    assert pick(world.events, "error") == []
    assert [event["response"]["status"] for event in pick(world.events, "response.done")] == ["completed"] * 2


# -- BAR-02 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", list(Dialect))
@pytest.mark.parametrize("truncate_first", [True, False])
@pytest.mark.parametrize("progress", ["created", "transcript owed", "first delta not sent"])
def test_bar_02_truncated_at_0_nothing_was_said(dialect: Dialect, truncate_first: bool, progress: str) -> None:
    holds = ["delivers"] if progress == "first delta not sent" else []
    world = World(planning(), dialect=dialect, turn_detection=None, holds=holds)
    if progress == "transcript owed":
        world.send(AppendAudio(audio=b"\1\1" * 5000))
        world.send(Commit(response_create=True))
        world.send(CreateResponse())
    else:
        world.send(CreateItem(item=text("hello")))
        world.send(CreateResponse())
    if progress == "first delta not sent":
        world.answer(spoken("never heard"), last=False)
    item_id = answer_item(world)
    commands: list[DuplexCommand] = [CancelResponse(), TruncateItem(item_id=item_id, audio_end_ms=0)]
    if truncate_first:
        commands.reverse()
    seen = [event for command in commands for event in world.send(command)]
    assert error_codes(seen) == []
    assert pick(seen, "conversation.item.truncated")[0]["audio_end_ms"] == 0
    assert pick(seen, "response.done")[0]["response"]["status"] == "cancelled"
    world.holds.discard("delivers")
    assert all(role != "assistant" for role, _ in in_prompt(world))
    (told,) = world.send(RetrieveItem(item_id=item_id))
    assert all(not part.get("transcript") for part in told["item"]["content"])


# -- BAR-04 -----------------------------------------------------------------------------------------------


def test_bar_04_speech_stops_what_is_still_played() -> None:
    """12 s were made in 1 s and are over; the user speaks when 3 s were played."""
    model = FakeModel()
    world = World(model, turn_detection={"type": "server_vad"})
    for loud in [True] * 10 + [False] * 10:
        world.say(80, loud)
    for n in range(150):
        last = n == 149
        world.answer(spoken(f"word{n} ", end_of_turn=last), last=last)
    assert "response.done" in types(world.events)
    item_id = answer_item(world)
    world.now += 3.0
    seen = []
    for _ in range(4):
        seen += world.say(80)
    assert STARTED in types(seen)
    assert types(pick(seen, "output_audio_buffer.cleared", "conversation.item.truncated")) == [
        "output_audio_buffer.cleared",
        "conversation.item.truncated",
    ]
    assert pick(seen, "conversation.item.truncated")[0]["audio_end_ms"] <= 3200
    (told,) = world.send(RetrieveItem(item_id=item_id))
    kept = told["item"]["content"][0]["transcript"]
    assert 0 < len(kept.split()) <= 3200 // 80 + 1


@pytest.mark.parametrize("dialect", list(Dialect))
def test_bar_04_a_truncate_after_the_end_is_honoured(dialect: Dialect) -> None:
    world = answered(150, dialect=dialect)
    world.advance(3.0)
    (told,) = pick(
        world.send(TruncateItem(item_id=answer_item(world), audio_end_ms=3000)), "conversation.item.truncated"
    )
    assert told["audio_end_ms"] == 3000
    role, said = in_prompt(world)[-1]
    assert role == "assistant"
    assert 35 <= len(said.split()) <= 3000 // 80 + 1


def test_bar_04_a_late_clear_of_an_older_response_leaves_the_newer_one() -> None:
    world = answered(150)
    older = pick(world.events, "response.created")[-1]["response_id"]
    world.advance(13.0)
    world.send(CreateItem(item=text("another")))
    world.send(CreateResponse())
    world.answer(spoken("the second "), last=False)
    seen = world.send(ClearOutput(response_id=older))
    assert [event["response_id"] for event in pick(seen, "output_audio_buffer.cleared")] == [older]
    assert pick(seen, "response.done") == []
    world.answer(spoken("answer", end_of_turn=True))
    assert pick(world.events, "response.done")[-1]["response"]["status"] == "completed"


# -- BAR-05 -----------------------------------------------------------------------------------------------


def test_bar_05_what_was_sent_is_not_what_was_played() -> None:
    """Acknowledgements lag by 1.5 s; then the user barges in. The model knows no word that was not acknowledged."""
    world = answered(40, done=False)
    world.now += 2.0
    world.send(AckPlayback(played_ms=500))
    world.send(BargeIn())
    role, said = in_prompt(world)[-1]
    assert role == "assistant" and len(said) <= len("".join(f"word{n} " for n in range(40))) * 500 / 3200
    assert said.startswith("word0 word1") and "word7" not in said


def test_bar_05_an_acknowledgement_beyond_what_was_sent_is_clamped() -> None:
    world = answered(10, done=False)
    (told,) = world.send(AckPlayback(played_ms=99_999))
    assert told["event"]["playback"] == {
        "generated_ms": 800,
        "sent_ms": 800,
        "played_ms": 800,
        "committed_ms": 800,
    }


# -- BAR-07 -----------------------------------------------------------------------------------------------


def talking(*, policy: str = "", **detection: Any) -> World:
    """An auto session in the middle of an answer of the model."""
    session: Event = {"turn_detection": {"type": "server_vad", **detection}} if not policy else {}
    if policy:
        session = {"overlap_policy": policy, "turn_detection": None}
    world = World(auto=True, **session)
    world.say(160, loud=False)
    world.answer(spoken("once "))
    return world


INTERRUPTIONS: list[DuplexCommand | None] = [None, BargeIn(), CancelInput(), CancelResponse(), ClearOutput()]


@pytest.mark.parametrize("how", INTERRUPTIONS, ids=lambda how: "speech" if how is None else type(how).__name__)
@pytest.mark.parametrize("step", range(0, 10, 3))
def test_bar_07_all_stages_stop_together_and_nothing_old_is_heard(how: DuplexCommand | None, step: int) -> None:
    """Speech over an answer, in steps of 200 ms; a command is the same path."""
    world = talking()
    for n in range(step):
        world.advance(0.2)
        world.say(160, loud=False)
        world.answer(spoken(f"more{n} "))
    before, old = world.machine.fence, list(world.waiting)
    aborts = len([effect for effect in world.effects if isinstance(effect, Abort)])
    at = len(world.events)
    if how is None:
        for _ in range(3):
            world.say(80)
    else:
        world.send(how)
    assert world.machine.fence.epoch == before.epoch + 1
    new = [effect for effect in world.effects if isinstance(effect, Abort)][aborts:]
    assert [effect.fence for effect in new] == [world.machine.fence], "one fence for every stage of the session"
    assert any(isinstance(effect, Invalidate) for effect in world.effects)
    for unit in old:  # what the workers had made already
        late = encode_output(spoken("too late"))
        world.fact(StageOutput(before, 1, -1, unit.unit, unit.turn_id, True, late, (b"\1\0" * 1920,)))
    assert pick(world.events[at:], DELTA) == []
    ended = pick(world.events, "response.done")
    assert [event["response"]["status"] for event in ended] == ["cancelled"]
    assert list(violations(world.events)) == []


def test_bar_07_the_interrupting_speech_is_not_clipped() -> None:
    """The model hears all of it, from `audio_start_ms` on, each unit once."""
    world = talking()
    for loud in (False, True, True, True, True):
        world.say(80, loud)
    begun = pick(world.events, STARTED)[-1]["audio_start_ms"]
    while world.waiting:
        world.answer(ModelOutput(undecided=True))
    again = [head_of(unit.head).start_ms for unit in world.submits if unit.fence == world.machine.fence]
    assert len(set(again)) == len(again)
    starts = sorted({head.start_ms for head in world.heads()})
    assert starts[0] <= begun
    assert starts == list(range(starts[0], starts[0] + 80 * len(starts), 80))
    assert starts[-1] + 80 >= 160 + 5 * 80


def test_bar_07_noise_cancels_nothing() -> None:
    """Noise is what the detector does not take for speech, however loud the append says it is."""
    world = talking()
    for _ in range(40):
        world.say(80, loud=False, duration_ms=80)
        world.answer(spoken("on "))
    assert pick(world.events, STARTED, "response.done") == []
    assert world.machine.fence.epoch == 0


@pytest.mark.parametrize("policy", ["barge_in_on_sustained_speech", "listen_only"])
def test_bar_07_a_sign_of_listening_cancels_nothing(policy: str) -> None:
    world = talking(policy=policy)
    for _ in range(4):
        world.say(80)  # "mm-hm", 320 ms
    for _ in range(5):
        world.say(80, loud=False)
    world.send(AppendAudio(audio=b"\1\1" * 1280, is_speech=True, transcript="mm-hm okay"))
    assert "barge_in" not in {event["action"] for event in pick(world.events, "overlap.decision")}
    assert world.machine.fence.epoch == 0


# -- BAR-09 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", list(Dialect))
def test_bar_09_a_cancel_leaves_question_and_what_was_heard(dialect: Dialect) -> None:
    """The transcript of the question comes although its answer was cancelled; the next prompt holds both."""
    world = World(planning(), dialect=dialect, turn_detection=None)
    world.send(AppendAudio(audio=b"\1\1" * 3840, is_speech=True))
    world.send(Commit(response_create=dialect is Dialect.duplex or None))
    if dialect is not Dialect.duplex:
        world.send(CreateResponse())
    for _ in range(len(world.waiting) - 1):
        world.answer(ModelOutput())
    world.answer(ModelOutput(user_turn=UserTurn("why is the sky blue", 0, 240)))
    for n in range(10):
        world.answer(spoken(f"word{n} "), last=False)
    world.now += 0.4
    world.send(AckPlayback(played_ms=400)) if dialect is Dialect.duplex else None
    item_id = answer_item(world)
    world.send(CancelResponse())
    told = pick(world.events, "conversation.item.input_audio_transcription.completed")
    assert [event["transcript"] for event in told] == ["why is the sky blue"]
    (kept,) = world.send(RetrieveItem(item_id=item_id))
    assert kept["item"]["status"] == ("cancelled" if dialect is Dialect.duplex else "incomplete")
    said = in_prompt(world)
    assert said[0] == ("user", "why is the sky blue")
    assert said[1][0] == "assistant" and said[1][1].startswith("word0 word1")
    assert "word6" not in said[1][1]


@pytest.mark.parametrize("auto", [True, False])
def test_bar_09_a_cancel_before_the_transcript_does_not_lose_it(auto: bool) -> None:
    """The recogniser still owes the words when the answer that was promised is cancelled."""
    world = World(planning(), auto=auto, turn_detection=None)
    world.say(240)
    world.send(Commit(response_create=True))
    item_id = pick(world.events, "input_audio_buffer.committed")[0]["item_id"]
    world.answer(ModelOutput())
    if world.machine._ctx.response is not None:
        world.send(CancelResponse())
    assert len(world.waiting) == 2, "what no stage had consumed is heard again"
    world.answer(ModelOutput())
    (told,) = pick(world.answer(ModelOutput(user_turn=UserTurn("what did I ask", 0, 240))), TRANSCRIBED)
    assert (told["item_id"], told["transcript"]) == (item_id, "what did I ask")
    assert ("user", "what did I ask") in (world.heads()[-1].said if auto else in_prompt(world))


def test_bar_09_a_lost_worker_does_not_put_words_into_another_turn() -> None:
    """It had consumed a whole turn, and its words are lost with it: those of the next turn are not the first one's."""
    world = World(planning())
    for n in range(2):
        world.say(80)
        world.send(Commit(response_create=False))
        if n == 0:
            world.answer(ModelOutput())
    world.fact(StagesLost(world.fences[-1], "worker_lost", "gone"))
    second = pick(world.events, "input_audio_buffer.committed")[1]["item_id"]
    (told,) = pick(world.answer(ModelOutput(user_turn=UserTurn("second", 80, 160))), TRANSCRIBED)
    assert (told["item_id"], told["transcript"]) == (second, "second")
