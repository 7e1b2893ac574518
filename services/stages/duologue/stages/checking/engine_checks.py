"""Slots and the contract of the single calls: full, closed twice, refused, given back.

Each check returns what it found, for the report, or raises CheckFailed.
"""

from __future__ import annotations

from duologue.model.engine import EngineUsage, Slot, StageRefused
from duologue.stages.checking.subject import CheckFailed, Subject

_NOT_A_CONFIG = b"\xc1"
"""No msgpack and no JSON begins with it."""
_HIGH = 1_000_000


def refuses_when_full(subject: Subject) -> str:
    """With all slots of a stage taken, one more is refused with a code, and takes nothing."""
    told = []
    for index, engine in enumerate(subject.stack.engines):
        config = _configs(subject)[index]
        total = subject.pipeline.stages[index].slots
        slots = [Slot(place, _HIGH + place) for place in range(total)]
        opened: list[Slot] = []
        try:
            for slot in slots:
                engine.open(slot, config)
                opened.append(slot)
            _expect_refusal(subject, index, Slot(total, _HIGH + total), config, "one more than it has slots for")
            used = engine.usage().slots_used
            if used != total:
                raise CheckFailed(f"{subject.stack.names[index]}: {used} slots in use of {total} that are")
        except StageRefused as refused:
            name = subject.stack.names[index]
            raise CheckFailed(f"{name}: slot {len(opened) + 1} of {total} is refused: {refused}") from None
        finally:
            for slot in opened:
                engine.close(slot)
        told.append(str(total))
    return f"slots: {', '.join(told)}"


def refuses_what_it_cannot_read(subject: Subject) -> str:
    """A configuration that is none is refused with a code, or ignored by a stage that needs none."""
    for index, engine in enumerate(subject.stack.engines):
        slot = Slot(0, _HIGH)
        try:
            engine.open(slot, _NOT_A_CONFIG)
        except StageRefused as refused:
            _coded(subject, index, refused)
        except Exception as error:
            raise CheckFailed(f"{subject.stack.names[index]}: open raised {type(error).__name__}: {error}") from None
        engine.close(slot)
        if engine.usage().slots_used:
            raise CheckFailed(f"{subject.stack.names[index]}: the slot of a refused open stays in use")
    return ""


def closes_twice(subject: Subject) -> str:
    """Also a slot that was never opened, and with a unit under way; its place can be opened again."""
    for engine in subject.stack.engines:
        engine.close(Slot(0, _HIGH))
    talk = subject.talk(5)
    talk.hold(2)
    talk.hear(talk.sound[0])
    subject.stack.step_of(0)
    talk.close()
    talk.close()
    again = subject.talk(5)
    talk.close()  # of the one before: it must not take the place from who has it now
    again.hold(3)
    if again.failed:
        raise CheckFailed(f"closing an older slot again took the newer one: {again.failed[-1][2].message}")
    again.close()
    return ""


def gives_everything_back(subject: Subject) -> str:
    """Nothing is in use when all sessions are closed, and gauges were never below nothing."""
    talk = subject.talk(6)
    talk.hold(3)
    used = [engine.usage() for engine in subject.stack.engines]
    talk.close()
    for name, usage in zip(subject.stack.names, used, strict=True):
        if usage.slots_used != 1 or min(usage.state_bytes, usage.kv_tokens) < 0:
            raise CheckFailed(f"{name}: with one session open it says {usage}")
    for index, engine in enumerate(subject.stack.engines):
        left, name = engine.usage(), subject.stack.names[index]
        if left != EngineUsage(0, left.slots_total):
            raise CheckFailed(f"{name}: all sessions are closed, and it says {left}")
        if left.slots_total != subject.pipeline.stages[index].slots:
            raise CheckFailed(f"{name}: slots_total is {left.slots_total}, the pipeline gives it more or fewer")
    return f"{sum(u.state_bytes for u in used)} bytes and {sum(u.kv_tokens for u in used)} tokens of a session"


def reads_only_when_woken(subject: Subject) -> str:
    """`read` with nothing made gives nothing, and does not wait."""
    for index, engine in enumerate(subject.stack.engines):
        subject.stack.quiet(0.1)
        if list(engine.read()):
            raise CheckFailed(f"{subject.stack.names[index]}: read gave something that it had not called wake for")
    return ""


def keeps_the_contract(subject: Subject) -> str:
    """Fences of what came, one last for every unit, nothing for a closed slot, in all that was done."""
    broken = subject.stack.broken
    if broken:
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        raise CheckFailed(broken[0] + more)
    return ""


def _configs(subject: Subject) -> tuple[bytes, ...]:
    plugin, config = subject.plugin.plugin, subject.config()
    return tuple(plugin.stage_configs(config, plugin.new_state(config)))


def _expect_refusal(subject: Subject, index: int, slot: Slot, config: bytes, what: str) -> None:
    engine = subject.stack.engines[index]
    try:
        engine.open(slot, config)
    except StageRefused as refused:
        _coded(subject, index, refused)
        return
    except Exception as error:
        name = subject.stack.names[index]
        raise CheckFailed(f"{name}: {what}: open raised {type(error).__name__}, not StageRefused: {error}") from None
    engine.close(slot)
    raise CheckFailed(f"{subject.stack.names[index]} opens {what}")


def _coded(subject: Subject, index: int, refused: StageRefused) -> None:
    if not refused.code or not str(refused):
        raise CheckFailed(f"{subject.stack.names[index]}: a refusal without a code or a reason")
