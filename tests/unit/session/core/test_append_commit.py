"""Input: units, speech events, commits and their items."""

from __future__ import annotations

import pytest
from unit.session.core.fake_models import UNIT_BYTES, FakeModel
from unit.session.core.session_world import World, error_codes, pick, sound, spoken, types

from duologue.model.outputs import ModelOutput
from duologue.protocol.duplex import AppendAudio, AudioFormat, CancelInput, ClearInput, Commit, SessionUpdate

pytestmark = pytest.mark.unit

FANOUT = [
    "conversation.item.added",
    "conversation.item.created",
    "input_audio_buffer.committed",
    "conversation.item.done",
]
STARTED, STOPPED = "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped"


def test_an_auto_session_submits_unit_by_unit() -> None:
    world = World(auto=True)
    world.say(200)
    assert len(world.submits) == 2
    world.say(40)
    assert len(world.submits) == 3
    assert [head.start_ms for head in world.heads()] == [0, 80, 160]
    assert [submit.unit for submit in world.submits] == [0, 1, 2]
    assert all(len(submit.frames[0]) == UNIT_BYTES for submit in world.submits)


def test_the_window_bounds_what_is_in_flight_and_the_rest_waits() -> None:
    world = World(FakeModel(max_in_flight=3), auto=True)
    for _ in range(5):
        world.say(160)
    assert len(world.submits) == 3
    assert world.machine.pending_input_bytes == 10 * UNIT_BYTES
    for _ in range(10):
        world.answer(ModelOutput(listen=True))
    assert len(world.submits) == 10
    assert world.machine.pending_input_bytes == 0


def test_a_turn_is_one_start_one_stop_and_the_fan_out() -> None:
    world = World()
    seen = [event for _ in range(4) for event in world.say()] + world.send(Commit())
    assert types(seen) == [STARTED, STOPPED, *FANOUT]
    assert len({event.get("item_id") or event["item"]["id"] for event in seen}) == 1
    assert world.submits == []


def test_a_wanted_answer_gets_all_units_the_last_padded_and_final() -> None:
    world = World()
    world.say(200)
    world.send(Commit(response_create=True))
    assert [(head.final, head.start_ms) for head in world.heads()] == [(False, 0), (False, 80), (True, 160)]
    assert world.submits[-1].frames[0][-4 * 600 :] == bytes(2400)


def test_commits_name_their_predecessors() -> None:
    world = World()
    told = []
    for _ in range(3):
        world.say(320)
        told += pick(world.send(Commit()), "input_audio_buffer.committed")
    assert [event["previous_item_id"] for event in told] == [None, told[0]["item_id"], told[1]["item_id"]]


def test_a_commit_of_nothing_is_refused_by_name() -> None:
    world = World()
    (event,) = world.send(Commit(event_id="c1"))
    assert (event["error"]["code"], event["error"]["event_id"]) == ("input_audio_buffer_empty", "c1")


def test_silence_is_declined_but_a_pause_stays_in_its_turn() -> None:
    world = World()
    assert types(world.say(loud=False)) == ["response.listen"]
    world.say(80)
    assert types(world.say(80, loud=False)) == ["response.listen"]
    world.say(80)
    world.send(Commit(response_create=True))
    assert len(world.submits) == 3


def test_a_silent_commit_has_an_item_of_its_own() -> None:
    world = World()
    world.say(loud=False)
    seen = world.send(Commit())
    assert types(seen) == [*FANOUT, "response.listen"]
    assert seen[2]["event"]["empty"] is True
    assert seen[3]["item"]["content"][0]["is_speech"] is False


def test_clear_and_cancel_forget_the_input_and_its_flags() -> None:
    for command in (ClearInput(), CancelInput()):
        world = World()
        world.say(320)
        assert types(world.send(command)) == ["input_audio_buffer.cleared"]
        assert world.machine.pending_input_bytes == 0
        assert error_codes(world.send(Commit())) == ["input_audio_buffer_empty"]
        assert types(world.say()) == [STARTED]


def test_transcripts_come_from_hints_or_from_the_model() -> None:
    world = World()
    world.plugin.transcript = "from the model"
    world.say(320)
    told = pick(world.send(Commit()), "conversation.item.input_audio_transcription.completed")
    assert [event["transcript"] for event in told] == ["from the model"]
    for words in ("good", "good", "morning"):
        world.say(160, transcript=words)
    told = pick(world.send(Commit()), "conversation.item.input_audio_transcription.completed")
    assert [event["transcript"] for event in told] == ["good morning"]


def test_formats_are_resolved_in_command_order() -> None:
    world = World(auto=True)
    world.send(AppendAudio(audio=sound(80, rate=8000), sample_rate_hz=8000))
    world.send(SessionUpdate(session={"input_audio_format": {"type": "pcm16", "rate": 48_000}}))
    world.send(AppendAudio(audio=sound(80, rate=48_000)))
    assert len(world.submits) == 2


def test_cutting_never_changes_what_the_model_hears() -> None:
    data = sound(800, rate=44_100)

    def heard(size: int) -> bytes:
        world = World(auto=True, input_audio_format={"type": "pcm16", "rate": 44_100})
        for at in range(0, len(data), size):
            world.send(AppendAudio(audio=data[at : at + size]))
            world.restart()
        return b"".join(submit.frames[0] for submit in world.submits)

    whole = heard(len(data) // 5)
    assert whole and heard(1001) == whole


def test_pending_input_is_bounded_and_the_refusal_is_retryable() -> None:
    world = World()
    for _ in range(13):
        world.send(AppendAudio(audio=sound(20_000)))
    seen = world.send(AppendAudio(audio=sound(20_000)))
    assert error_codes(seen) == ["input_backpressure"]
    assert seen[0]["error"]["retryable"] is True
    assert seen[0]["error"]["type"] == "rate_limit_error"
    world.send(ClearInput())
    assert types(world.say())[-1] == STARTED


def test_an_auto_commit_flushes_the_rest_as_final() -> None:
    world = World(auto=True)
    world.say(120)
    seen = world.send(Commit())
    assert types(seen) == [STOPPED, *FANOUT]
    assert [head.final for head in world.heads()] == [False, True]
    assert pick(world.answer(spoken("hi", end_of_turn=True)), "response.created")


def test_the_cost_of_a_command_is_float32_at_16_khz() -> None:
    cost = World().machine.input_cost
    assert cost(AppendAudio(audio=sound(1000))) == 64_000
    assert cost(AppendAudio(audio=bytes(8000), format="g711_ulaw")) == 64_000
    assert cost(AppendAudio(audio=bytes(48_000), format="pcm16", sample_rate_hz=24_000)) == 64_000
    assert cost(Commit()) == 0
    assert AudioFormat("pcm16", 16_000).size_of(1000) == 32_000
