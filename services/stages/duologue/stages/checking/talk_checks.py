"""Conversations with the real engines: the same again, in a batch, cancelled, failed, too long, rebuilt.

Each check returns what it found, for the report, or raises CheckFailed. What an engine does against the contract on
the way is in `Stack.broken`, and judged by a check of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from duologue.model.engine import Failure
from duologue.model.plugin import Rebuild
from duologue.stages.checking.conversation import Talk, difference
from duologue.stages.checking.subject import CheckFailed, Declared, Subject

_QUIET_S = 0.3
"""An engine that made nothing for so long after a cancel has stopped."""
CONTEXT_FULL = "context_exhausted"


def answers(subject: Subject) -> str:
    """One conversation from beginning to end: every unit lands, none fails."""
    talk = subject.whole()
    _landed(talk)
    talk.take_usage()
    calls = sum(len(said.output.tool_calls) for said in talk.said)
    text = sum(len(said.output.text) for said in talk.said)
    sound_ms = sum(len(s.audio) // 2 * 1000 // s.output.audio_rate_hz for s in talk.said if s.audio)
    listens = sum(said.output.listen for said in talk.said)
    return f"{len(talk.said)} results: {listens} listen, {text} characters, {sound_ms} ms of sound, {calls} calls"


def answers_turns(subject: Subject) -> str:
    """A model that decides by itself, in a session whose turns the client commits."""
    if subject.traits.auto_only:
        raise Declared("auto_only: it takes no turns")
    talk = subject.talk(session={"extra_body": {**subject.table.session.get("extra_body", {}), "auto_response": False}})
    for _ in range(2):
        talk.hold(subject.table.units)
        _landed(talk)
    talk.close()
    return f"{sum(said.speaks for said in talk.said)} results in two turns"


def repeats_itself(subject: Subject) -> str:
    if not subject.table.deterministic:
        raise Declared(subject.why_not)
    different = difference(subject.whole(1), subject.whole(1))
    if different:
        raise CheckFailed(f"the same sound was answered another way: {different}")
    return f"{subject.table.units} ticks, twice"


def batch_equals_solo(subject: Subject) -> str:
    """Sessions that began at different ticks, in slots of which one was used before, say what each says alone."""
    seeds = range(10, 10 + min(subject.table.sessions, min(stage.slots for stage in subject.pipeline.stages)))
    alone = {seed: subject.whole(seed) for seed in seeds}
    used = subject.talk(99)
    used.hold(3)
    used.hear(used.sound[0])
    used.close()  # with a unit under way: its slot is taken next
    subject.stack.most = 0
    beside = _side_by_side(subject, seeds)
    different = {seed: difference(alone[seed], beside[seed]) for seed in seeds}
    for seed, what in different.items():
        if what and subject.table.deterministic:
            raise CheckFailed(f"session {seed - seeds[0] + 1} of {len(seeds)} beside others, and alone: {what}")
    for talk in beside.values():
        _landed(talk)
    found = f"{len(seeds)} sessions, up to {subject.stack.most} in a step"
    if not subject.table.deterministic:
        raise Declared(f"{found}, all landed; {subject.why_not}")
    return found


def _side_by_side(subject: Subject, seeds: range) -> dict[int, Talk]:
    """Each begins two ticks after the one before, and has ticks now and then in which nothing of it comes."""
    talks: dict[int, Talk] = {}
    running: dict[int, Iterator[None]] = {}
    waiting = list(seeds)
    tick = 0
    while waiting or running:
        if waiting and tick % 2 == 0:
            seed = waiting.pop(0)
            talks[seed] = subject.talk(seed)
            running[seed] = talks[seed].ticks(subject.table.units)
        for place, (seed, ticks) in enumerate(list(running.items())):
            late = len(running) > 1 and (tick + place) % (3 + place) == 0
            if late:
                continue  # its slot is open, and not in the step
            if next(ticks, "over") == "over":
                del running[seed]
                talks[seed].close()
        subject.stack.settle([talks[seed].seat for seed in running])
        tick += 1
    return talks


def cancels_at_each_step(subject: Subject) -> str:
    """Before the first output, within, and after the end: what was under way stops, and the slot goes on."""
    whole = subject.whole()
    spoke = whole.spoke_at or [min(4, subject.table.units - 1)]
    first, middle, last = spoke[0], spoke[len(spoke) // 2], spoke[-1]
    of_first = sum(said.unit == first and said.speaks for said in whole.said)
    stages = len(subject.stack.engines)
    points: list[tuple[str, int, Callable[[Talk], bool]]] = [
        ("as it is submitted", first, lambda talk: True),
        *((f"after stage {n}", first, _stepped(n)) for n in range(1, stages)),
        ("after the first output", first, _told(1)),
        *([("within the output", first, _told(of_first // 2))] if of_first > 2 else []),
        ("in the middle", middle, _told(1)),
        ("after the end", last, lambda talk: not talk.seat.under_way),
    ]
    for name, unit, enough in points:
        try:
            _cancel(subject, unit, enough, whole)
        except CheckFailed as failed:
            raise CheckFailed(f"cancelled {name}: {failed}") from None
    return f"{len(points)} places"


def _stepped(stages: int) -> Callable[[Talk], bool]:
    """Whether this many stages have had a step; has them."""

    def enough(talk: Talk) -> bool:
        for index in range(stages):
            talk.stack.step_of(index)
        return True

    return enough


def _told(outputs: int) -> Callable[[Talk], bool]:
    return lambda talk: sum(said.speaks for said in talk.said[talk.mark :]) >= outputs


def _cancel(subject: Subject, unit: int, enough: Callable[[Talk], bool], whole: Talk) -> None:
    """Hold the conversation up to this unit, cancel when it is enough, and begin anew in the same slot."""
    talk, stack = subject.talk(), subject.stack
    for _ in talk.ticks(subject.table.units):
        if talk.next_unit > unit:
            talk.mark = len(talk.said)
            while not enough(talk) and talk.seat.under_way:
                if not stack.step() and not stack.woken_within(subject.table.patience_s):
                    stack.settle([talk.seat])
            break
        stack.settle([talk.seat])
    talk.cancel()
    stack.quiet(_QUIET_S)
    before = len(talk.failed)
    talk.hold(subject.table.units)
    if len(talk.failed) > before:
        raise CheckFailed(f"the slot does not go on: {_failure(talk)}")
    ended = any(said.output.end_of_turn for said in whole.said)
    if ended and (talk.turn_based or subject.traits.answers == "plan") and not talk.ended:
        raise CheckFailed("the next answer in the same slot does not come to its end")
    talk.close()


def goes_on_after_a_failed_unit(subject: Subject) -> str:
    """Units that fail, as the table plans it, and a unit without its sound."""
    failed = 0
    if subject.table.failing:
        talk = subject.talk(2, session=subject.table.failing)
        talk.hold(subject.table.units)
        failed = len(talk.failed)
        if not failed:
            raise CheckFailed("no unit failed in the session of check.failing")
        _go_on(talk)
    talk = subject.talk(2)
    talk.hold(3)
    talk.hear_nothing()
    subject.stack.settle([talk.seat])
    failed += len(talk.failed)
    _go_on(talk)
    return f"{failed} units failed"


def _go_on(talk: Talk) -> None:
    talk.failed.clear()
    talk.cancel()  # a failed unit ends its response
    talk.hold(4)
    _landed(talk)
    talk.close()


def survives_a_full_context(subject: Subject) -> str:
    """A session that is longer than the context goes on, or is refused by code; it never just stops."""
    units = subject.table.context_units
    if not units:
        raise Declared("check.context_units is 0: nothing fills up")
    talk = subject.talk(3)
    talk.hold(units + units // 2 + 4)
    codes = {failure.code for _, _, failure in talk.failed} | {s.output.error_code for s in talk.said} - {""}
    if codes - {CONTEXT_FULL}:
        raise CheckFailed(f"units failed with {', '.join(sorted(codes))}")
    talk.close()
    return f"{units + units // 2 + 4} units; " + ("refused by code" if codes else "it goes on")


def is_rebuilt(subject: Subject) -> str:
    """What was heard is taken in by new slots as replays, which all land; then it goes on."""
    if subject.pipeline.rebuild == "none":
        raise Declared('rebuild = "none": a lost context is lost')
    old = subject.whole(4)
    new = subject.talk(4)
    rebuild = Rebuild("input", "worker_lost", tuple(old.recorded), (), new.config, old.turn, 0)
    if subject.pipeline.rebuild == "history":
        rebuild = Rebuild("history", "worker_lost", (), old.items, new.config, old.turn, 0)
    plans = new.plan_rebuild(rebuild)
    new.turn = old.turn
    for plan in plans:
        new.submit(plan, replay=True)
        subject.stack.settle([new.seat])
    _landed(new)
    new.said.clear()  # a session throws away what is made of replays
    new.hold(4)
    _landed(new)
    new.close()
    return f"{len(plans)} replays ({subject.pipeline.rebuild})"


def _landed(talk: Talk) -> None:
    if talk.failed:
        raise CheckFailed(_failure(talk))


def _failure(talk: Talk) -> str:
    stage, unit, failure = talk.failed[-1]
    told: Failure = failure
    return f"unit {unit} failed in stage {talk.stack.names[stage]} with {told.code}: {told.message}"
