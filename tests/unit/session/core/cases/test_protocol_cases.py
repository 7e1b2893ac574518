"""Faults of the protocol that users reported elsewhere; each test fails on the one that its name carries."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pytest
from unit.session.core.event_rules import violations
from unit.session.core.fake_models import FakeModel, head_of, planning
from unit.session.core.session_world import World, error_codes, pick, sound, spoken, types
from unit.session.core.test_conversation import text
from unit.session.core.test_random_sessions import Chaos

from duologue.model.outputs import ModelOutput, UserTurn
from duologue.protocol.duplex import (
    AppendAudio,
    Commit,
    CreateItem,
    CreateResponse,
    DeleteItem,
    Dialect,
    SessionUpdate,
)
from duologue.session.core import Attached, ControlStage, Detached, Submit

pytestmark = pytest.mark.unit

Event = dict[str, Any]
COMMITTED = "input_audio_buffer.committed"
TRANSCRIBED = "conversation.item.input_audio_transcription.completed"
STEP_S = 0.02


# -- PRO-01 -----------------------------------------------------------------------------------------------


class SlowStages:
    """Workers that take between 0 and 300 ms for each unit, in order; the session's last word is theirs."""

    def __init__(self, world: World, r: random.Random) -> None:
        self.world, self.r = world, r
        self.due: dict[int, float] = {}

    def work(self) -> None:
        world = self.world
        while world.waiting:
            unit = world.waiting[0]
            if self.due.setdefault(unit.unit, world.now + self.r.uniform(0, 0.3)) > world.now:
                break
            world.answer(self.said(unit))

    def said(self, unit: Submit) -> ModelOutput:
        head = head_of(unit.head)
        if self.world.plugin.traits.answers == "plan":
            if head.kind == "unit" and head.final:
                return ModelOutput(user_turn=UserTurn("five seconds", 0, 5000))
            return spoken("yes", end_of_turn=True) if head.kind == "response" else ModelOutput()
        return spoken("yes", end_of_turn=True) if head.final else ModelOutput(undecided=True)


def paced_turn(seed: int, model: FakeModel) -> World:
    """80 ms appends at the pace of speech, and a final commit at any moment of what is going on."""
    r = random.Random(seed)
    world = World(model, turn_detection=r.choice([None, {"type": "server_vad", "create_response": False}]))
    stages = SlowStages(world, r)
    for _ in range(r.randrange(50, 70)):
        world.say(80)
        for _ in range(4):
            world.advance(STEP_S)
            stages.work()
    if r.random() < 0.5:
        world.say(r.choice([1, 20, 79]))
    world.send(Commit(response_create=True))
    for _ in range(1500):
        world.advance(STEP_S)
        stages.work()
        if pick(world.events, "response.done"):
            break
    world.advance(1.0)
    stages.work()
    return world


@pytest.mark.parametrize("answers", ["units", "plan"])
def test_pro_01_every_final_commit_has_exactly_one_end(answers: str) -> None:
    """Of 200 turns: one `response.done`, one transcript where the model owes one, whatever the workers' delays."""
    for seed in range(100):
        world = paced_turn(seed, FakeModel(answers=answers))
        seen = Counter(types(world.events))
        assert seen["response.done"] == seen[COMMITTED] == 1, (seed, seen)
        assert seen[TRANSCRIBED] == (answers == "plan"), (seed, seen)
        assert pick(world.events, "response.done")[0]["response"]["status"] == "completed", seed


# -- PRO-02 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.02, None])
@pytest.mark.parametrize("plans", [False, True])
def test_pro_02_a_second_response_is_refused_by_the_code_that_clients_know(plans: bool, after_s: float | None) -> None:
    world = World(planning() if plans else None, dialect=Dialect.openai, turn_detection=None)
    world.send(CreateItem(item=text("hello")))
    world.send(CreateResponse(event_id="first"))
    if not plans:
        world.advance(0.08)
    if after_s is None:  # between the last delta and `response.done`
        world.answer(spoken("hello you"), last=False)
    else:
        world.advance(after_s)
    (refused,) = world.send(CreateResponse(event_id="second"))
    assert refused["error"]["code"] == "conversation_already_has_active_response"
    assert refused["error"]["event_id"] == "second"
    world.answer(ModelOutput(end_of_turn=True) if after_s is None else spoken("hello you", end_of_turn=True))
    done = pick(world.events, "response.done")
    assert [event["response"]["status"] for event in done] == ["completed"]
    world.send(CreateItem(item=text("again")))
    assert "response.created" in types(world.send(CreateResponse()))


# -- PRO-03 -----------------------------------------------------------------------------------------------

_SHORT = {
    "response.audio.delta": "response.output_audio.delta",
    "response.audio_transcript.delta": "response.output_audio_transcript.delta",
    "response.text.delta": "response.output_text.delta",
}
_DELTAS = (*_SHORT.values(), "response.function_call_arguments.delta")


def unknown_to_a_client(events: Iterable[Event]) -> Iterator[str]:
    """What a client that keeps items and responses by id would trip over."""
    announced: set[str] = set()
    parts: set[tuple[str, str]] = set()
    finished: set[str] = set()
    over: set[str] = set()
    for event in events:
        sent = str(event["type"])
        name = _SHORT.get(sent, sent)
        response_id = event.get("response_id") or event.get("response", {}).get("id", "")
        if not name.startswith("response."):
            continue
        if response_id in over:
            yield f"{name} after response.done"
        item_id = event.get("item_id") or event.get("item", {}).get("id", "")
        if name == "response.output_item.added":
            announced.add(item_id)
        elif item_id and item_id not in announced:
            yield f"{name} of an item that was not added"
        elif item_id in finished:
            yield f"{name} after output_item.done"
        kind = event.get("part", {}).get("type", "audio" if "audio" in name else "text")
        if name == "response.content_part.added":
            parts.add((item_id, kind))
        elif name in _DELTAS[:3] and (item_id, kind) not in parts:
            yield f"{name} before its part was added"
        elif name == "response.content_part.done":
            parts.discard((item_id, kind))
        elif name == "response.output_item.done":
            finished.add(item_id)
            if any(known == item_id for known, _ in parts):
                yield "output_item.done with a part that is open"
        elif name == "response.done":
            over.add(response_id)
            unread = event["response"]["status"] == "failed"  # after an overflow the ordinary events are left out
            for item in event["response"]["output"]:
                if item["id"] not in finished and not unread:
                    yield "response.done before output_item.done"


@pytest.mark.parametrize("seed", range(40))
def test_pro_03_no_event_names_what_a_client_cannot_know(seed: int) -> None:
    world = Chaos(seed, restarts=False).run()
    assert list(unknown_to_a_client(world.events)) == []
    assert list(violations(world.events)) == []


def test_pro_03_a_client_that_missed_the_beginning_is_told_the_item() -> None:
    """After a gap in the middle of a response `items` holds the item that the next deltas are about."""
    world = World(auto=True)
    world.say(160)
    world.answer(spoken("one "))
    known = {entry["id"] for entry in json.loads(world.machine.items_for_gap())}
    missed = len(world.events)
    world.answer(spoken("two", end_of_turn=True))
    rest = {event["item_id"] for event in world.events[missed:] if "item_id" in event}
    assert rest and rest <= known


def test_pro_03_the_rules_find_what_is_wrong() -> None:
    delta = {"type": "response.output_audio.delta", "response_id": "r", "item_id": "i"}
    done = {"type": "response.done", "response": {"id": "r", "status": "completed", "output": []}}
    assert list(unknown_to_a_client([delta])) and list(unknown_to_a_client([done, delta]))


# -- PRO-05 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", [Dialect.duplex, Dialect.openai, Dialect.openai_beta])
def test_pro_05_the_predecessor_is_true_and_a_bad_one_is_coded(dialect: Dialect) -> None:
    world = World(dialect=dialect, turn_detection=None)
    told = {}
    for name, after in (("a", None), ("b", "a"), ("c", "root")):
        seen = world.send(CreateItem(item=text(name, name), previous_item_id=after))
        told[name] = {event["previous_item_id"] for event in seen}
    assert told == {"a": {None}, "b": {"a"}, "c": {None}}
    (gone,) = world.send(DeleteItem(item_id="a"))
    assert (gone["type"], gone["item_id"]) == ("conversation.item.deleted", "a")
    (refused,) = world.send(CreateItem(event_id="e4", item=text("d", "d"), previous_item_id="a"))
    assert (refused["error"]["param"], refused["error"]["event_id"]) == ("previous_item_id", "e4")
    assert "item" in refused["error"]["code"]
    (refused,) = world.send(CreateItem(event_id="e5", item=text("b again", "b")))
    assert refused["error"]["code"] == "item_create_duplicate_item_id"
    assert [entry["id"] for entry in json.loads(world.machine.items_for_gap())] == ["c", "b"]


# -- PRO-06 -----------------------------------------------------------------------------------------------

FULL: Event = {
    "instructions": "Be brief.",
    "voice": "alto",
    "temperature": 0.7,
    "tools": [{"type": "function", "name": "f", "parameters": {}}],
    "turn_detection": {"type": "server_vad", "threshold": 0.6, "silence_duration_ms": 700, "create_response": False},
    "input_audio_format": {"type": "audio/pcm", "rate": 24_000},
    "output_audio_format": {"type": "audio/pcmu"},
}
LEAVES: list[tuple[Event, dict[str, Any]]] = [
    ({"turn_detection": {"threshold": 0.4}}, {"turn_detection.threshold": 0.4}),
    ({"turn_detection": {"silence_duration_ms": 200}}, {"turn_detection.silence_duration_ms": 200}),
    ({"turn_detection": None}, {"turn_detection": None, "overlap_policy": "listen_only"}),
    ({"voice": "bass"}, {"voice": "bass"}),
    ({"audio": {"output": {"voice": "bass"}}}, {"voice": "bass"}),
    ({"tools": []}, {"tools": []}),
    ({"instructions": None}, {"instructions": None}),
    ({"temperature": 0.2}, {"temperature": 0.2}),
    (
        {"audio": {"output": {"format": {"type": "audio/pcma"}}}},
        {"output_audio_format": "g711_alaw", "audio.output.format": "g711_alaw"},
    ),
]


def leaves(value: Event, path: str = "") -> dict[str, Any]:
    """A tree as its leaves by path; what is not there any more shows as a leaf that is gone."""
    found: dict[str, Any] = {}
    for key, one in value.items():
        if isinstance(one, dict) and key in ("turn_detection", "audio", "input", "output"):
            found |= leaves(one, f"{path}{key}.")
        else:
            found[path + key] = one
    return found


@pytest.mark.parametrize(("patch", "changed"), LEAVES)
def test_pro_06_an_update_of_one_leaf_leaves_all_others(patch: Event, changed: dict[str, Any]) -> None:
    world = World(**FULL)
    before = leaves(pick(world.events, "session.updated")[-1]["session"])
    (told,) = world.send(SessionUpdate(session=patch))
    after = leaves(told["session"])
    under = "turn_detection." if patch.get("turn_detection", 0) is None else "\0"
    kept = {key: value for key, value in before.items() if key not in changed and not key.startswith(under)}
    assert {key: after[key] for key in kept} == kept
    assert {key: after[key] for key in changed} == changed


def test_pro_06_a_refused_update_changes_nothing_at_all() -> None:
    world = World(**FULL)
    before = world.machine.session_object()
    audio = {"input": {"format": {"type": "audio/pcmu"}}}
    bad = {"voice": "bass", "audio": audio, "turn_detection": {"threshold": 7}}
    (refused,) = world.send(SessionUpdate(session=bad, event_id="e"))
    assert (refused["error"]["param"], refused["error"]["event_id"]) == ("session.turn_detection.threshold", "e")
    assert world.machine.session_object() == before
    world.send(AppendAudio(audio=sound(80, rate=24_000)))
    assert world.machine._ctx.state.intake.clock_ms == 80, "sound is still read in the old format"


# -- PRO-07 -----------------------------------------------------------------------------------------------


def prompted(world: World) -> tuple[bytes, int]:
    """The instructions that the last stage has, and how many units were given before it got them."""
    units, found = 0, (b"", 0)
    for effect in world.effects:
        if isinstance(effect, Submit):
            units += 1
        elif isinstance(effect, ControlStage) and effect.stage == 1:
            found = (effect.body, units)
    return found


@pytest.mark.parametrize("auto", [True, False])
def test_pro_07_an_update_that_is_acknowledged_is_in_the_prompt(auto: bool) -> None:
    """The lock closes with the first unit that is really given, not with the first append."""
    world = World(auto=auto, instructions="Old.")
    world.say(40)
    assert types(world.send(SessionUpdate(session={"instructions": "New."}))) == ["session.updated"]
    world.send(Commit(response_create=True))
    assert world.submits, "the turn went to the model"
    assert prompted(world) == (b"New.", 0)
    same = world.send(SessionUpdate(session={"instructions": "New."}))
    assert types(same) == ["session.updated"]


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        ({"instructions": "Late."}, "instructions_update_unsupported"),
        ({"voice": "bass"}, "voice_update_after_audio_unsupported"),
    ],
)
def test_pro_07_an_update_that_comes_too_late_is_refused_and_not_acknowledged(patch: Event, code: str) -> None:
    world = World(auto=True, instructions="Old.", voice="alto")
    world.say(160)
    world.answer(spoken("hm"))
    told = prompted(world)
    seen = world.send(SessionUpdate(session=patch, event_id="late"))
    assert types(seen) == ["error"] and error_codes(seen) == [code]
    assert seen[0]["error"]["event_id"] == "late"
    assert prompted(world) == told
    session = msgspec.json.decode(world.machine.session_object())
    assert (session["instructions"], session["voice"]) == ("Old.", "alto")


# -- PRO-08 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.05])
@pytest.mark.parametrize("dialect", [Dialect.duplex, Dialect.openai])
def test_pro_08_a_commit_right_after_the_detectors_ends_no_client(dialect: Dialect, after_s: float) -> None:
    """In the OpenAI dialects it is a no-op, however often; in `duplex` the second is refused by its code. The turn is
    answered once."""
    model = FakeModel()
    model.transcript = "words"
    world = World(model, dialect=dialect, turn_detection={"type": "server_vad"}, input_audio_format="pcm16")
    rate = 16_000 if dialect is Dialect.duplex else 24_000
    for loud, ms in ((True, 800), (False, 800)):
        for _ in range(ms // 80):
            world.send(AppendAudio(audio=sound(80, loud, rate)))
    assert len(pick(world.events, COMMITTED)) == 1
    world.advance(after_s)
    seen = [event for _ in range(2) for event in world.send(Commit(event_id="mine"))]
    assert error_codes(seen) == ([] if dialect is Dialect.openai else ["input_audio_buffer_empty"])
    assert [event["error"]["event_id"] for event in pick(seen, "error")] in ([], ["mine"])
    silent = pick(seen, COMMITTED)  # the quiet that came behind the turn, in `duplex` only: no turn of its own
    assert [event["event"]["no_response"] for event in silent] == ([] if dialect is Dialect.openai else [True])
    assert len({event["item_id"] for event in pick(world.events, COMMITTED)}) == 1 + len(silent)
    assert len(pick(world.events, TRANSCRIBED)) == 1
    assert world.response_count() == 1


@pytest.mark.parametrize("dialect", [Dialect.duplex, Dialect.openai])
def test_pro_08_a_commit_before_any_audio_is_refused_and_the_session_goes_on(dialect: Dialect) -> None:
    world = World(dialect=dialect, turn_detection=None)
    (refused,) = world.send(Commit(event_id="early"))
    code = "input_audio_buffer_empty" if dialect is Dialect.duplex else "input_audio_buffer_commit_empty"
    assert (refused["error"]["code"], refused["error"]["event_id"]) == (code, "early")
    rate = 16_000 if dialect is Dialect.duplex else 24_000
    for ms in (99, 100):
        world.send(AppendAudio(audio=sound(ms, rate=rate)))
        assert COMMITTED in types(world.send(Commit()))
        assert error_codes(world.send(Commit())) == [code]


# -- PRO-13 -----------------------------------------------------------------------------------------------


def test_pro_13_a_late_transcript_names_its_own_turn() -> None:
    """The recogniser is 2 s behind; three turns are committed meanwhile, and the client is away in between."""
    world = World(planning())
    committed = []
    for _ in range(3):
        world.say(240)
        committed += pick(world.send(Commit(response_create=False)), COMMITTED)
    world.advance(1.0)
    world.fact(Detached(0))
    heard = ["first", "second", "third"]
    for submit in list(world.waiting):
        final = head_of(submit.head).final
        world.answer(ModelOutput(user_turn=UserTurn(heard.pop(0), 0, 240)) if final else ModelOutput())
    world.advance(1.0)
    world.fact(Attached(1))
    told = pick(world.events, TRANSCRIBED)
    assert [event["item_id"] for event in told] == [event["item_id"] for event in committed]
    assert [event["transcript"] for event in told] == ["first", "second", "third"]


def test_pro_13_the_answer_stands_behind_the_question() -> None:
    world = World(planning())
    order: list[str] = []
    for words in ("one", "two"):
        world.say(80)
        question = pick(world.send(Commit(response_create=True)), COMMITTED)[0]
        answer = pick(world.events, "response.output_item.added")[-1]["item"]["id"]
        added = {
            event["item"]["id"]: event["previous_item_id"] for event in pick(world.events, "conversation.item.added")
        }
        assert added[answer] == question["item_id"]
        assert question["previous_item_id"] == (order[-1] if order else None)
        order += [question["item_id"], answer]
        world.answer(ModelOutput(user_turn=UserTurn(words, 0, 80)))
        world.answer(spoken(words, end_of_turn=True))
        world.advance(1.0)
    assert [entry["id"] for entry in json.loads(world.machine.items_for_gap())] == order
