"""What a client may say of the loopback model in `extra_body.loopback`, checked once, at open. SANS-I/O.

Rule 1. Everything that is wrong is refused by name before a session starts: `ScriptError.param` is the path
        below `extra_body.loopback`.
Rule 2. A settings object is a value; what moves through it is a `Position` (see `heads`).
"""

from __future__ import annotations

import math
from typing import Any, Final, Literal, cast

import msgspec

LISTEN, SPEAK, CALL, TRANSCRIPT, UNTIL_SPEECH, UNTIL_SILENCE = range(6)
"""The kinds of step."""

MAX_STEPS: Final = 1000
MAX_UNITS: Final = 100_000
MAX_SCRIPT_BYTES: Final = 32_768
MAX_STAGE_MS: Final = 60_000
MAX_HEARD: Final = 1000
MAX_HZ: Final = 12_000

_KEYS: Final = ("script", "audio", "stage_ms", "jitter_ms", "seed", "fail", "context_units", "frames", "heard")
_STEPS: Final = ("listen", "speak", "tool_call", "transcript", "when")


class ScriptError(ValueError):
    """A value that cannot be used. `param` names it, relative to `extra_body.loopback`."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param
        self.message = message


class Step(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One step. `text` is what is spoken, the transcript, or the arguments of a call (JSON)."""

    kind: int
    units: int = 1
    text: str = ""
    end_of_turn: bool = True
    name: str = ""
    call_id: str = ""
    malformed: bool = False


class Fail(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The first `times` attempts of this unit fail in this stage."""

    stage: int
    unit: int
    how: Literal["error", "hang", "exit"]
    times: int = 1


class Audio(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a spoken unit sounds like; `hz` is of a tone."""

    kind: Literal["tone", "echo", "silence"]
    hz: float = 0.0


class Settings(msgspec.Struct, frozen=True):
    """`extra_body.loopback`, checked and with its defaults filled in."""

    script: tuple[Step, ...]
    audio: Audio = Audio("tone", 440.0)
    stage_ms: tuple[float, ...] = (0.0,)
    jitter_ms: float = 0.0
    seed: int = 0
    fail: Fail | None = None
    context_units: int = 4096
    frames: bool = False
    """What is spoken tells the camera frames that came since, and with which unit."""
    heard: int = 0
    """The model remembers so many units of the user's sound, and what is spoken tells a checksum of them."""


DEFAULT_SCRIPT: Final = (Step(LISTEN),)


def parse_settings(value: object, *, stages: int, scripted: bool, context_units: int) -> Settings:
    """Check `extra_body.loopback`; None is all defaults. `scripted`: the model takes a `script` at all.

    Raises ScriptError.
    """
    given = {} if value is None else _object("", value, _KEYS)
    if "script" in given and not scripted:
        raise ScriptError("script", "this model answers every turn the same way and takes no script")
    return Settings(
        script=_script(given["script"]) if "script" in given else DEFAULT_SCRIPT,
        audio=_audio(given.get("audio", "tone:440")),
        stage_ms=_stage_ms(given.get("stage_ms", [0]), stages),
        jitter_ms=_number("jitter_ms", given.get("jitter_ms", 0), 0, MAX_STAGE_MS),
        seed=_whole("seed", given.get("seed", 0), -(2**63), 2**63 - 1),
        fail=_fail(given.get("fail"), stages),
        context_units=_whole("context_units", given.get("context_units", context_units), 2, 1_000_000),
        frames=_switch("frames", given.get("frames", False)),
        heard=_whole("heard", given.get("heard", 0), 0, MAX_HEARD),
    )


def _script(value: object) -> tuple[Step, ...]:
    if not isinstance(value, list) or not value:
        raise ScriptError("script", "a script is a list of at least one step")
    if len(value) > MAX_STEPS:
        raise ScriptError("script", f"a script has at most {MAX_STEPS} steps")
    steps = tuple(_step(f"script[{i}]", step) for i, step in enumerate(value))
    if sum(len((step.text + step.name + step.call_id).encode()) for step in steps) > MAX_SCRIPT_BYTES:
        raise ScriptError("script", f"a script has at most {MAX_SCRIPT_BYTES} bytes of text")
    return steps


def _step(at: str, value: object) -> Step:
    if not isinstance(value, dict):
        raise ScriptError(at, "a step is an object")
    step = cast("dict[str, Any]", value)
    kind = next((kind for kind in _STEPS if kind in step), None)
    if kind is None:
        raise ScriptError(at, f"a step has one of the keys {', '.join(_STEPS)}")
    if kind == "when":
        return _when(at, step)
    _object(at, step, (kind,))
    body = step[kind]
    if kind == "listen":
        return Step(LISTEN, _whole(f"{at}.listen", body, 1, MAX_UNITS))
    if kind == "transcript":
        return Step(TRANSCRIPT, text=_string(f"{at}.transcript", body))
    return _speak(f"{at}.speak", body) if kind == "speak" else _call(f"{at}.tool_call", body)


def _when(at: str, step: dict[str, Any]) -> Step:
    if step["when"] == "speech":
        _object(at, step, ("when",))
        return Step(UNTIL_SPEECH)
    if step["when"] == "silence":
        _object(at, step, ("when", "units"))
        return Step(UNTIL_SILENCE, _whole(f"{at}.units", step.get("units", 1), 1, MAX_UNITS))
    raise ScriptError(f"{at}.when", "wait for `speech` or for `silence`")


def _speak(at: str, value: object) -> Step:
    body = _object(at, value, ("units", "text", "end_of_turn"))
    end = body.get("end_of_turn", True)
    if not isinstance(end, bool):
        raise ScriptError(f"{at}.end_of_turn", "true or false")
    units = _whole(f"{at}.units", body.get("units", 1), 1, MAX_UNITS)
    return Step(SPEAK, units, _string(f"{at}.text", body.get("text", "")), end)


def _call(at: str, value: object) -> Step:
    body = _object(at, value, ("name", "arguments", "call_id", "malformed"))
    malformed = body.get("malformed", False)
    if not isinstance(malformed, bool):
        raise ScriptError(f"{at}.malformed", "true or false")
    arguments = body.get("arguments", {})
    if not isinstance(arguments, dict):
        raise ScriptError(f"{at}.arguments", "an object")
    name = _string(f"{at}.name", body.get("name", ""))
    if not name and not malformed:
        raise ScriptError(f"{at}.name", "a call needs the name of a function")
    return Step(
        CALL,
        text=msgspec.json.encode(arguments).decode(),
        name=name,
        call_id=_string(f"{at}.call_id", body.get("call_id", "")),
        malformed=malformed,
    )


def _audio(value: object) -> Audio:
    text = _string("audio", value)
    if text == "echo":
        return Audio("echo")
    if text == "silence":
        return Audio("silence")
    kind, _, hz = text.partition(":")
    try:
        pitch = float(hz)
    except ValueError:
        pitch = math.nan
    if kind != "tone" or not 0 < pitch <= MAX_HZ:
        raise ScriptError("audio", f"`tone:HZ` (up to {MAX_HZ}), `echo` or `silence`")
    return Audio("tone", pitch)


def _stage_ms(value: object, stages: int) -> tuple[float, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= stages:
        raise ScriptError("stage_ms", f"a list of 1 to {stages} numbers")
    return tuple(_number(f"stage_ms[{i}]", ms, 0, MAX_STAGE_MS) for i, ms in enumerate(value))


def _fail(value: object, stages: int) -> Fail | None:
    if value is None:
        return None
    body = _object("fail", value, ("stage", "unit", "how", "times"))
    how = body.get("how")
    if how not in ("error", "hang", "exit"):
        raise ScriptError("fail.how", "`error`, `hang` or `exit`")
    return Fail(
        stage=_whole("fail.stage", body.get("stage"), 0, stages - 1),
        unit=_whole("fail.unit", body.get("unit"), 0, 2**40),
        how=how,
        times=_whole("fail.times", body.get("times", 1), 1, 1000),
    )


def _object(at: str, value: object, keys: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ScriptError(at, "an object")
    unknown = next((key for key in value if key not in keys), None)
    if unknown is not None:
        raise ScriptError(f"{at}.{unknown}" if at else str(unknown), f"unknown key; known: {', '.join(keys)}")
    return cast("dict[str, Any]", value)


def _switch(at: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ScriptError(at, "true or false")
    return value


def _string(at: str, value: object) -> str:
    if not isinstance(value, str):
        raise ScriptError(at, "a string")
    return value


def _whole(at: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ScriptError(at, f"a whole number from {low} to {high}")
    return value


def _number(at: str, value: object, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ScriptError(at, f"a number from {low} to {high}")
    return float(value)
