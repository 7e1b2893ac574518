"""Turn detection in a session: what goes to the detector, and what its verdict does. The detector is the world's:
loud sound is speech."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from unit.session.core.fake_models import FakeModel
from unit.session.core.session_world import World, error_codes, pick, sound, spoken, types

from duologue.fence import CommandNo
from duologue.protocol.duplex import (
    AppendAudio,
    BargeIn,
    CancelInput,
    ClearInput,
    Commit,
    CreateResponse,
    Dialect,
    SessionUpdate,
)
from duologue.session.core import (
    Detect,
    Detected,
    DuplexSessionMachine,
    FromClient,
    JudgeTurn,
    SessionLimits,
    TurnJudged,
)

pytestmark = pytest.mark.unit

STARTED, STOPPED = "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped"
FANOUT = [
    "conversation.item.added",
    "conversation.item.created",
    "input_audio_buffer.committed",
    "conversation.item.done",
]
VOICE, PAUSE = True, False


def detecting(world: dict[str, Any] | None = None, **settings: Any) -> World:
    return World(turn_detection={"type": "server_vad", **settings}, **(world or {}))


def hear(world: World, *stretches: tuple[bool, int], chunk: int = 80) -> list[Any]:
    """Stretches of speech and pause (ms), in appends of `chunk` ms."""
    before = len(world.events)
    for loud, ms in stretches:
        for _ in range(ms // chunk):
            world.say(chunk, loud)
    return world.events[before:]


def questions(world: World) -> list[Detect]:
    return [effect for effect in world.effects if isinstance(effect, Detect)]


def answering(interrupt: bool, create: bool) -> World:
    """A response is being spoken, and speech is over."""
    world = detecting(interrupt_response=interrupt, create_response=create)
    hear(world, (VOICE, 800))
    world.send(Commit(response_create=True))
    world.answer(spoken("one "))
    return world


def test_speech_and_silence_are_a_turn_that_is_answered() -> None:
    world = detecting()
    seen = hear(world, (PAUSE, 480), (VOICE, 960), (PAUSE, 960))
    assert types(seen)[:6] == [STARTED, STOPPED, *FANOUT]
    assert "response.created" in types(seen)
    started, stopped = pick(seen, STARTED)[0], pick(seen, STOPPED)[0]
    assert 180 - 40 <= started["audio_start_ms"] <= 180 + 40
    assert 1440 + 500 <= stopped["audio_end_ms"] <= 1440 + 560
    assert started["item_id"] == stopped["item_id"] == pick(seen, FANOUT[2])[0]["item_id"]


def test_the_turn_has_its_beginning_and_no_more() -> None:
    """Sound from `audio_start_ms` to the pause's end is what the model gets."""
    world = detecting(prefix_padding_ms=160)
    seen = hear(world, (PAUSE, 1600), (VOICE, 960), (PAUSE, 960), chunk=20)
    start, end = pick(seen, STARTED)[0]["audio_start_ms"], pick(seen, STOPPED)[0]["audio_end_ms"]
    while world.waiting:
        world.answer()
    heard_ms = len(world.submits) * 80
    assert end - start <= heard_ms < end - start + 80
    assert world.heads()[0].start_ms == start


@pytest.mark.parametrize(
    ("chunk_samples", "rate"),
    [(n, rate) for n in (160, 479, 480, 481, 4096, 60_000) for rate in (8_000, 16_000, 24_000, 48_000)]
    + [(n, 8_000) for n in (1, 2, 3)],
)
def test_aud_04_chunks_and_rates_do_not_move_the_boundaries(chunk_samples: int, rate: int) -> None:
    line = sound(480, False, rate) + sound(960, True, rate) + sound(1120, False, rate)
    size = 2 * chunk_samples + 1  # an odd byte is carried
    world = detecting()
    for at in range(0, len(line), size):
        world.send(AppendAudio(audio=line[at : at + size], format="pcm16", sample_rate_hz=rate))
    assert len(pick(world.events, STARTED)) == len(pick(world.events, STOPPED)) == 1
    assert abs(pick(world.events, STARTED)[0]["audio_start_ms"] - 180) <= 34
    assert abs(pick(world.events, STOPPED)[0]["audio_end_ms"] - (1440 + 512)) <= 66


def test_two_turns_in_one_append_are_two_turns() -> None:
    world = detecting(create_response=False)
    line = sound(640) + sound(960, False) + sound(640) + sound(960, False)
    seen = world.send(AppendAudio(audio=line))
    assert [name for name in types(seen) if "speech" in name] == [STARTED, STOPPED, STARTED, STOPPED]
    assert len(pick(seen, FANOUT[2])) == 2
    first, second = pick(seen, STOPPED)
    assert (first["item_id"] == second["item_id"]) is False
    assert abs(second["audio_end_ms"] - first["audio_end_ms"] - 1600) <= 64


def test_without_create_response_a_turn_is_only_committed() -> None:
    world = detecting(create_response=False)
    seen = hear(world, (VOICE, 960), (PAUSE, 960))
    assert types(seen) == [STARTED, STOPPED, *FANOUT]
    world.send(CreateResponse())
    assert world.response_count() == 1


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("interrupt", [True, False])
def test_speech_over_a_response(interrupt: bool, create: bool) -> None:
    world = answering(interrupt, create)
    seen = hear(world, (VOICE, 960), (PAUSE, 960))
    done = pick(seen, "response.done")
    if interrupt:
        assert done[0]["response"]["status_details"]["reason"] == "turn_detected"
        assert types(seen).index(STARTED) < types(seen).index("response.done")
        reasons = {event["reason"] for event in pick(seen, "overlap.decision") if event["action"] == "barge_in"}
        assert reasons == {"server_vad_speech_started"}
    else:
        assert done == []
        world.answer(spoken("two", end_of_turn=True))
        world.advance(2)
    assert len(pick(seen, FANOUT[2])) == 1
    assert world.response_count() == 1 + create


def test_an_utterance_interrupts_once() -> None:
    """The interruption is decided where speech begins; what follows of it is heard on."""
    world = answering(True, True)
    hear(world, (VOICE, 400))
    reasons = [event["reason"] for event in pick(world.events, "overlap.decision")]
    assert reasons.count("server_vad_speech_started") == 1


def test_no_interruption_without_a_response() -> None:
    world = detecting()
    seen = hear(world, (VOICE, 960))
    assert pick(seen, "overlap.decision", "response.done") == []


def test_an_auto_session_is_interrupted_and_never_committed() -> None:
    world = detecting({"auto": True})
    hear(world, (PAUSE, 80))
    world.answer(spoken("one "))
    seen = hear(world, (VOICE, 960), (PAUSE, 960))
    assert pick(seen, "response.done")[0]["response"]["status_details"]["reason"] == "turn_detected"
    assert [name for name in types(seen) if "input_audio_buffer" in name] == [STARTED, STOPPED]
    while world.waiting:
        world.answer()
    assert len({head.start_ms for head in world.heads()}) == 25, "all sound is heard"


# -- the order of the input ---------------------------------------------------------------------------------


def test_what_follows_an_append_waits_for_its_verdict() -> None:
    world = detecting({"holds": ["detects"]})
    world.say(320)
    for _ in range(5):
        world.say(80)
    world.send(Commit())
    assert types(world.events) == ["session.updated"]
    question = questions(world)[0]
    world.fact(world.verdict(question))
    rest = questions(world)[1]
    assert len(rest.sound) == 5 * 80 * 64 // 2048 * 2048, "what waited is asked about together"
    assert rest.state == (320 * 16 // 512).to_bytes(4, "big")
    world.fact(world.verdict(rest))
    assert types(world.events)[1:] == [STARTED, STOPPED, *FANOUT]


def test_an_append_without_a_whole_frame_does_not_wait() -> None:
    world = detecting({"holds": ["detects"]})
    world.say(20)
    assert questions(world) == []
    world.say(20)
    assert len(questions(world)) == 1


@pytest.mark.parametrize("command", [CancelInput(), BargeIn()])
def test_a_cancel_does_not_wait_and_takes_back_what_does(command: CancelInput | BargeIn) -> None:
    world = detecting({"holds": ["detects"]})
    hear(world, (VOICE, 960))
    seen = world.send(command)
    assert "input_audio_buffer.cleared" in types(seen)
    world.fact(world.verdict(questions(world)[0]))
    assert world.machine.stale == {"verdict": 1}
    assert world.machine.pending_input_bytes == 0
    world.holds.clear()
    assert error_codes(world.send(Commit())) == ["input_audio_buffer_empty"]
    assert types(hear(world, (VOICE, 320))) == [STARTED], "the next speech announces itself"


def test_speech_goes_on_after_a_clear_and_is_announced_again() -> None:
    world = detecting()
    hear(world, (VOICE, 400))
    world.send(ClearInput())
    seen = hear(world, (VOICE, 400), (PAUSE, 800))
    assert types(seen)[:3] == [STARTED, STOPPED, FANOUT[0]]
    assert pick(seen, STARTED)[0]["audio_start_ms"] >= 400


def test_a_client_may_commit_by_itself() -> None:
    world = detecting()
    hear(world, (VOICE, 400))
    assert types(world.send(Commit(response_create=False))) == [STOPPED, *FANOUT]
    seen = hear(world, (VOICE, 400), (PAUSE, 960))
    assert len(pick(seen, FANOUT[2])) == 1


def test_a_commit_takes_loud_sound_that_is_no_speech() -> None:
    world = detecting({"holds": ["detects"]})
    for _ in range(10):
        world.say(80)
        question = questions(world)[-1]
        frames = len(question.sound) // 2048
        world.fact(Detected(question.ticket, question.state, (0.2,) * frames))
    assert types(world.events) == ["session.updated"]
    assert types(world.send(Commit(response_create=True)))[:4] == FANOUT
    assert len(world.submits) == 10
    assert world.machine.pending_input_bytes == 10 * 80 * 64


@pytest.mark.parametrize(("dialect", "codes"), [(Dialect.openai, []), (Dialect.duplex, ["input_audio_buffer_empty"])])
def test_a_commit_right_after_the_detectors(dialect: Dialect, codes: list[str]) -> None:
    world = World(dialect=dialect, turn_detection={"type": "server_vad", "create_response": False})
    rate, pause_ms = (24_000, 560) if dialect is Dialect.openai else (16_000, 512)
    for line in (sound(960, True, rate), sound(pause_ms, False, rate)):
        world.send(AppendAudio(audio=line))
    assert len(pick(world.events, FANOUT[2])) == 1
    found = error_codes(world.send(Commit()))
    assert found == codes
    assert len(pick(world.events, FANOUT[2])) == 1


# -- gaps, restarts, switches --------------------------------------------------------------------------------


def test_vad_03_a_gap_in_the_media_ends_the_turn() -> None:
    world = detecting(create_response=False)
    hear(world, (VOICE, 960))
    assert world.advance(0.57) == []
    assert types(world.advance(0.05)) == [STOPPED, *FANOUT]
    assert world.machine.next_deadline() is not None
    assert pick(world.advance(5), STOPPED) == []


def test_a_gap_in_a_pause_lasts_for_what_is_missing() -> None:
    world = detecting(create_response=False)
    hear(world, (VOICE, 960), (PAUSE, 320))
    assert types(world.advance(0.4)) == [STOPPED, *FANOUT]


def test_a_gap_does_not_end_a_turn_while_a_verdict_is_due() -> None:
    world = detecting(create_response=False)
    hear(world, (VOICE, 400))
    world.holds.add("detects")
    world.say(80)
    assert world.advance(0.7) == [], "what waits is speech"
    world.holds.clear()
    assert world.fact(world.verdict(questions(world)[-1])) == []
    assert types(world.advance(0.6)) == [STOPPED, *FANOUT]


def test_long_appends_in_real_time_are_no_gap() -> None:
    world = detecting()
    for _ in range(4):
        world.say(1000)
        assert pick(world.advance(1.0), STOPPED) == []
    assert types(pick(world.events, STARTED, STOPPED)) == [STARTED]


def test_a_restart_in_the_middle_goes_on() -> None:
    whole, cut = detecting(create_response=False), detecting(create_response=False)
    script = ((PAUSE, 320), (VOICE, 560), (PAUSE, 200), (VOICE, 240), (PAUSE, 960))
    hear(whole, *script, chunk=20)
    for loud, ms in script:
        for _ in range(ms // 20):
            cut.say(20, loud)
            cut.restart()
    assert [q.state for q in questions(cut)] == [q.state for q in questions(whole)]
    assert [q.sound for q in questions(cut)] == [q.sound for q in questions(whole)]
    for name in (STARTED, STOPPED):
        assert [e.get("audio_start_ms", e.get("audio_end_ms")) for e in pick(cut.events, name)] == [
            e.get("audio_start_ms", e.get("audio_end_ms")) for e in pick(whole.events, name)
        ]


def test_a_restart_with_a_question_out_goes_on() -> None:
    world = detecting({"holds": ["detects"]})
    world.say(400)
    world.say(80)
    world.restart()
    world.fact(world.verdict(questions(world)[-1]))
    world.fact(world.verdict(questions(world)[-1]))
    assert STARTED in types(world.events)


def test_a_checkpoint_does_not_claim_what_waits() -> None:
    """The heir gets the append again: its converter and its detector must stand before it."""
    world = detecting({"holds": ["detects"]})
    rate = 24_000
    first, second = sound(200, True, rate), sound(160, True, rate)
    world.send(AppendAudio(audio=first, sample_rate_hz=rate))
    world.fact(world.verdict(questions(world)[-1]))
    world.send(AppendAudio(audio=second, sample_rate_hz=rate))
    wanted = questions(world)[-1]
    world.advance(1.1)
    assert world.checkpoints[-1].number == len(world.checkpoints)
    heir = DuplexSessionMachine.restore(world.checkpoints[-1].body, plugin=world.plugin, owner=1)
    assert heir.applied == CommandNo(1, 1)
    effects = heir.handle(FromClient(CommandNo(1, 2), AppendAudio(audio=second, sample_rate_hz=rate)), world.now)
    (again,) = [effect for effect in effects if isinstance(effect, Detect)]
    assert (again.state, again.sound) == (wanted.state, wanted.sound)


def test_null_switches_it_off_and_an_object_on_amid_speech() -> None:
    world = detecting()
    hear(world, (VOICE, 320))
    world.send(SessionUpdate(session={"turn_detection": None}))
    hear(world, (VOICE, 320), (PAUSE, 960))
    assert pick(world.events, STOPPED) == []
    asked = len(questions(world))
    hear(world, (PAUSE, 960))
    assert len(questions(world)) == asked
    world.send(SessionUpdate(session={"turn_detection": {"type": "server_vad"}}))
    assert types(hear(world, (PAUSE, 640)))[:2] == [STOPPED, FANOUT[0]]


def test_without_turn_detection_nobody_is_asked_anything() -> None:
    world = World()
    hear(world, (VOICE, 960), (PAUSE, 960))
    assert questions(world) == []
    assert world.machine.next_deadline() == pytest.approx(1.0, abs=1)


def test_a_model_that_plans_detects_its_own_turns_in_an_auto_session() -> None:
    world = detecting({"plugin": FakeModel(answers="plan"), "auto": True})
    hear(world, (VOICE, 960), (PAUSE, 960))
    assert questions(world) == []


def test_a_model_of_another_rate_is_heard_at_16_khz() -> None:
    model = FakeModel(input_rate_hz=24_000, unit_ms=80)
    world = detecting({"plugin": model, "auto": False}, create_response=False)
    seen = hear(world, (PAUSE, 480), (VOICE, 960), (PAUSE, 960), chunk=40)
    assert abs(pick(seen, STARTED)[0]["audio_start_ms"] - 180) <= 34
    assert sum(len(q.sound) for q in questions(world)) // 64 in range(2400 - 32, 2401)


# -- trouble -------------------------------------------------------------------------------------------------


def test_a_server_without_a_detector_says_so_at_open() -> None:
    world = detecting({"limits": SessionLimits(detects_speech=False)})
    assert types(world.events) == ["session.updated", "error"]
    assert world.events[0]["session"]["turn_detection"] is None
    assert error_codes(world.events) == ["server_vad_unavailable"]
    refused = world.send(SessionUpdate(event_id="e1", session={"turn_detection": {"type": "server_vad"}}))
    assert [(e["error"]["code"], e["error"]["event_id"]) for e in refused] == [("server_vad_unavailable", "e1")]
    hear(world, (VOICE, 320))
    assert questions(world) == []


def test_a_server_without_an_end_of_turn_model_serves_server_vad_only() -> None:
    limits = SessionLimits(judges_turns=False)
    world = World(limits=limits, turn_detection={"type": "semantic_vad"})
    assert world.events[0]["session"]["turn_detection"] is None
    assert error_codes(world.events) == ["server_vad_unavailable"]
    assert not error_codes(world.send(SessionUpdate(session={"turn_detection": {"type": "server_vad"}})))


def test_a_full_detector_leaves_sound_unjudged() -> None:
    world = detecting({"holds": ["detects"]}, create_response=False)
    world.say(400)
    world.fact(world.verdict(questions(world)[-1]))
    world.say(800, False)
    world.fact(Detected(questions(world)[-1].ticket, error="detector_full"))
    assert pick(world.events, STOPPED, "error") == [], "it neither ends the turn"
    world.holds.clear()
    world.say(560, False)
    assert len(pick(world.events, STOPPED)) == 1, "nor keeps it from ending"


def test_a_detector_that_fails_ends_turn_detection_and_the_session_lives() -> None:
    world = detecting({"holds": ["detects"]})
    world.say(400)
    seen = world.fact(Detected(questions(world)[-1].ticket, error="detector_failed"))
    assert error_codes(seen) == ["server_vad_unavailable"]
    assert pick(seen, "session.updated")[0]["session"]["turn_detection"] is None
    assert FANOUT[0] in types(world.send(Commit())), "the sound is there"


def test_a_fault_of_ours_leaves_nobody_waiting() -> None:
    world = detecting({"holds": ["detects"], "auto": True})
    world.say(400)
    world.say(80)
    world.plugin.faults = 1
    world.holds.clear()
    world.fact(world.verdict(questions(world)[-1]))
    assert error_codes(world.events) == ["internal_error"]
    hear(world, (VOICE, 320))
    assert not world.machine.input_waits


# -- semantic --------------------------------------------------------------------------------------------------


def semantic(finished: float, *holds: str, **settings: Any) -> World:
    settings = {"type": "semantic_vad", "create_response": False, **settings}
    world = World(turn_detection=settings, holds=holds)
    world.finished = finished
    return world


def judgements(world: World) -> list[JudgeTurn]:
    return [effect for effect in world.effects if isinstance(effect, JudgeTurn)]


@pytest.mark.parametrize(
    ("eagerness", "finished", "silence_ms"),
    [("medium", 0.95, 500), ("medium", 0.6, 1200), ("medium", 0.1, 4000), ("high", 0.95, 320), ("low", 0.1, 8000)],
)
def test_vad_02_the_end_of_turn_model_decides_how_long_a_pause_lasts(
    eagerness: str, finished: float, silence_ms: int
) -> None:
    world = semantic(finished, eagerness=eagerness)
    seen = hear(world, (VOICE, 960), (PAUSE, 8800), chunk=40)
    assert 0 <= pick(seen, STOPPED)[0]["audio_end_ms"] - 960 - silence_ms <= 80
    assert len(judgements(world)) == 1, "once for each pause"


def test_the_model_is_given_the_end_of_the_turn() -> None:
    world = semantic(0.1)
    hear(world, (VOICE, 9600), (PAUSE, 240))
    (asked,) = judgements(world)
    heard = np.frombuffer(asked.sound, "<f4")
    assert len(heard) == 8 * 16_000
    assert np.abs(heard[:16_000]).max() > 0.1
    assert np.abs(heard[-16 * 150 :]).max() == 0


def test_each_pause_is_asked_about_and_an_old_answer_is_void() -> None:
    world = semantic(0.99, "judges")
    hear(world, (VOICE, 960), (PAUSE, 240), (VOICE, 320), (PAUSE, 240))
    first, second = judgements(world)
    world.fact(TurnJudged(first.ticket, 0.99))
    assert world.machine.stale == {"judgement": 1}
    hear(world, (PAUSE, 400))
    assert pick(world.events, STOPPED) == [], "unanswered, it lasts"
    assert types(world.fact(TurnJudged(second.ticket, 0.99)))[0] == STOPPED, "and ends with the answer"


def test_a_model_that_has_no_room_leaves_the_hard_maximum() -> None:
    world = semantic(0.99, "judges", eagerness="high")
    hear(world, (VOICE, 960), (PAUSE, 240))
    world.fact(TurnJudged(judgements(world)[0].ticket, error="offload_full"))
    seen = hear(world, (PAUSE, 2000))
    assert 0 <= pick(seen, STOPPED)[0]["audio_end_ms"] - 960 - 2000 <= 80


def test_a_client_that_sends_no_silence_is_asked_about_too() -> None:
    world = semantic(0.99)
    hear(world, (VOICE, 960))
    assert types(world.advance(0.7)) == [STOPPED, *FANOUT]
    assert len(judgements(world)) == 1


def test_the_echo_says_what_is_used() -> None:
    world = semantic(0.5, eagerness="high")
    assert world.events[0]["session"]["turn_detection"]["type"] == "semantic_vad"
    assert world.events[0]["session"]["turn_detection"]["eagerness"] == "high"
