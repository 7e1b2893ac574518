"""The overlap table, short acknowledgements, deferred turns."""

from __future__ import annotations

import pytest
from unit.session.core.session_world import World, pick, sound, spoken, types
from unit.session.core.test_responses import asked

from duologue.model.outputs import ModelOutput
from duologue.protocol.duplex import AckPlayback, AppendAudio, CancelResponse, ClearOutput, Commit, CreateResponse
from duologue.session.core.overlap import is_back_channel

pytestmark = pytest.mark.unit


def answering(**session: object) -> World:
    world = asked(2, **session)
    world.answer(spoken("one "))
    return world


def verdict(world: World, loud: bool = True, **hints: object) -> tuple[str, str]:
    decisions = pick(world.say(80, loud, **hints), "overlap.decision")
    return decisions[0]["action"], decisions[0]["reason"]


@pytest.mark.parametrize(
    ("loud", "hints", "wanted"),
    [
        (True, {}, ("listen", "policy_listen_only")),
        (False, {}, ("drop", "silence_or_noise")),
        (True, {"is_speech": False}, ("drop", "silence_or_noise")),
        (False, {"speech_probability": 0.9}, ("listen", "policy_listen_only")),
        (True, {"overlap_action": "interrupt"}, ("barge_in", "client_overlap_action")),
        (True, {"overlap_action": "ack"}, ("listen", "client_overlap_action")),
        (True, {"overlap_action": "ignore"}, ("drop", "client_overlap_action")),
        (True, {"force_barge_in": True}, ("barge_in", "client_force_barge_in")),
        (True, {"force_listen": True}, ("listen", "client_force_listen")),
        (True, {"transcript": "Yeah!"}, ("listen", "short_ack_transcript")),
        (True, {"transcript": "stop it"}, ("listen", "policy_listen_only")),
    ],
)
def test_the_table_of_listen_only(loud: bool, hints: dict[str, object], wanted: tuple[str, str]) -> None:
    world = answering()
    assert verdict(world, loud, **hints) == wanted
    ended = pick(world.events, "response.done")
    assert bool(ended) is (wanted[0] == "barge_in")


def test_sustained_speech_barges_in() -> None:
    world = answering(overlap_policy="barge_in_on_sustained_speech", overlap_short_ack_ms=160, overlap_barge_in_ms=400)
    assert [verdict(world) for _ in range(5)] == [
        ("listen", "short_ack"),
        ("listen", "short_ack"),
        ("listen", "accumulating_overlap_speech"),
        ("listen", "accumulating_overlap_speech"),
        ("barge_in", "long_overlap_speech"),
    ]


def test_an_auto_session_decides_only_if_it_may_be_interrupted() -> None:
    for policy, wanted in (("listen_only", 0), ("barge_in_on_speech", 1)):
        detection = {"type": "server_vad"} if policy == "barge_in_on_speech" else None
        world = World(auto=True, turn_detection=detection)
        world.say(loud=False)
        world.answer(spoken("one "))
        seen = world.say()
        assert len(pick(seen, "overlap.decision")) == wanted
        assert len(pick(seen, "response.done")) == wanted
        assert len(world.submits) == 2, "the interrupting sound is heard"


def test_no_decision_without_a_response() -> None:
    world = World()
    assert not pick(world.say(320), "overlap.decision")


def test_a_short_acknowledgement_is_no_turn() -> None:
    world = answering()
    first = pick(world.events, "input_audio_buffer.committed")[0]
    world.say(240)
    committed = pick(world.send(Commit(response_create=True)), "input_audio_buffer.committed")[0]
    assert committed["event"]["overlap_ack"] is True
    assert committed["item_id"] != first["item_id"]
    world.answer(spoken("two", end_of_turn=True))
    assert world.response_count() == 1
    assert world.machine.pending_input_bytes == 0


@pytest.mark.parametrize("wanted", [True, False])
def test_a_deferred_turn_keeps_its_intent(wanted: bool) -> None:
    world = answering()
    for _ in range(3):
        world.say(320)
    event = pick(world.send(Commit(response_create=wanted)), "input_audio_buffer.committed")[0]["event"]
    assert (event["overlap_deferred"], event["response_create_deferred"]) == (True, wanted)
    world.answer(spoken("two", end_of_turn=True))
    assert world.response_count() == 1 + wanted
    if not wanted:
        world.send(CreateResponse())
        assert world.response_count() == 2
    assert len(world.waiting) == 12


def test_cancel_drops_a_deferred_turn_and_output_clear_keeps_it() -> None:
    for command, left in ((CancelResponse(), 0), (ClearOutput(), 1)):
        world = answering()
        for _ in range(3):
            world.say(320)
        world.send(Commit(response_create=True))
        seen = world.send(command)
        assert len(pick(seen, "response.created")) == left


def test_a_client_that_never_acknowledges_is_answered_turn_after_turn() -> None:
    world = World()
    for n in range(4):
        for _ in range(12):
            world.say()
        world.send(Commit(response_create=True))
        world.advance(0.5)
        assert world.response_count() == n + 1
        world.answer(spoken(f"answer {n}"))
        world.answer(spoken("", end_of_turn=True))
        while world.waiting:
            world.answer(ModelOutput(undecided=True))


def test_an_acknowledged_answer_is_not_overlapped() -> None:
    world = asked(2)
    world.answer(spoken("one", end_of_turn=True))
    world.send(AckPlayback(played_ms=80))
    assert not pick(world.say(160), "overlap.decision")
    assert "response.created" in types(world.send(Commit(response_create=True)))


def test_interrupting_speech_becomes_the_next_turn() -> None:
    world = answering()
    for _ in range(3):
        world.say(80, overlap_action="barge_in")
    assert "response.created" in types(world.send(Commit(response_create=True)))
    assert [head.is_speech for head in world.heads()[-3:]] == [True] * 3
    assert world.answer(ModelOutput(listen=True))


def test_back_channels() -> None:
    assert is_back_channel("OK.") and is_back_channel("keep going") and is_back_channel(None, "嗯嗯")
    assert not is_back_channel("stop") and not is_back_channel("", None)


def test_a_model_that_cannot_be_interrupted_says_so_and_hears_on() -> None:
    world = answering()
    capabilities = world.machine._ctx.capabilities
    import msgspec

    world.machine._ctx.capabilities = msgspec.structs.replace(capabilities, supports_barge_in=False)
    seen = world.send(AppendAudio(audio=sound(80), force_barge_in=True))
    assert [event["error"]["code"] for event in pick(seen, "error")] == ["barge_in_unsupported"]
    assert pick(seen, "overlap.decision")[0]["action"] == "listen"
