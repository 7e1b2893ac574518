"""The hysteresis and the patience of turn detection, from scripted probabilities: no sound, no session."""

from __future__ import annotations

from typing import Any

import pytest

from duologue.protocol.duplex import SemanticVad, ServerVad
from duologue.session.core.detection import FRAME_MS, Detection, Rules, follow, rules_of

pytestmark = pytest.mark.unit

V, B, Q = 0.9, 0.4, 0.1  # voice, the band between the thresholds, quiet


def changes(script: list[float], known: Detection | None = None, **settings: Any) -> list[tuple[str, int, float]]:
    rules = rules_of(ServerVad(**settings), False)
    seen = follow(Detection() if known is None else known, rules, script, FRAME_MS)
    return [("start" if change.began else "stop", change.frame, change.at_ms) for change in seen]


@pytest.mark.parametrize(
    ("script", "settings", "wanted"),
    [
        ([Q] * 50, {}, []),
        ([V, V, V], {}, [("start", 2, 0.0)]),
        ([V, V, Q] * 20, {}, []),
        ([V, V, B] * 20, {}, []),
        ([Q] * 20 + [V] * 3, {}, [("start", 22, 640 - 300)]),
        ([Q] * 20 + [V] * 3, {"prefix_padding_ms": 0}, [("start", 22, 640)]),
        ([Q] * 2 + [V] * 3, {}, [("start", 4, 0.0)]),
        ([V], {"min_speech_duration_ms": 0, "prefix_padding_ms": 0}, [("start", 0, 0.0)]),
        ([V] * 6, {"min_speech_duration_ms": 161}, [("start", 5, 0.0)]),
        ([0.65] * 5, {"threshold": 0.7}, []),
        ([V] * 3 + [Q] * 15, {}, [("start", 2, 0.0)]),
        ([V] * 3 + [Q] * 16, {}, [("start", 2, 0.0), ("stop", 18, 19 * 32)]),
        ([V] * 3 + [Q] * 10, {"silence_duration_ms": 300}, [("start", 2, 0.0), ("stop", 12, 13 * 32)]),
        ([V] * 3 + [Q], {"silence_duration_ms": 0}, [("start", 2, 0.0), ("stop", 3, 128)]),
        ([V] * 3 + [B] * 100, {}, [("start", 2, 0.0)]),
        ([V] * 3 + [B] * 30 + [Q] * 15, {}, [("start", 2, 0.0)]),
        ([V] * 3 + [Q] + [B] * 14, {}, [("start", 2, 0.0)]),
        ([V] * 3 + [Q] + [B] * 14 + [Q], {}, [("start", 2, 0.0), ("stop", 18, 19 * 32)]),
        ([V] * 3 + [Q] + [B] * 40 + [Q], {}, [("start", 2, 0.0), ("stop", 44, 45 * 32)]),
        (
            [V] * 3 + [Q] * 16 + [V] * 3,
            {"prefix_padding_ms": 0},
            [("start", 2, 0), ("stop", 18, 608), ("start", 21, 608)],
        ),
    ],
)
def test_the_hysteresis(script: list[float], settings: dict[str, Any], wanted: list[tuple[str, int, float]]) -> None:
    assert changes(script, **settings) == wanted


def test_vad_01_only_unbroken_silence_ends_a_turn() -> None:
    """0.2 s of speech and of pauses in turn, for 5 s, then half a second of silence."""
    broken = ([V] * 6 + [Q] * 6) * 13
    assert [name for name, _, _ in changes(broken)] == ["start"]
    assert [name for name, _, _ in changes([*broken, *[Q] * 10])] == ["start", "stop"]


def test_frames_one_by_one_are_as_frames_together() -> None:
    script = [Q] * 3 + [V] * 5 + [Q, B] * 12 + [V] * 4 + [Q] * 20 + [V] * 3
    known, seen = Detection(), []
    rules = rules_of(ServerVad(), False)
    for frame, probability in enumerate(script):
        for change in follow(known, rules, [probability], (frame + 1) * FRAME_MS):
            seen.append(("start" if change.began else "stop", frame, change.at_ms))
    assert seen == changes(script)


def test_a_turn_never_reaches_into_the_one_before() -> None:
    known = Detection()
    known.begin(50.0)
    assert changes([V] * 3, known) == [("start", 2, 50.0)]


def semantic(**settings: Any) -> Rules:
    return rules_of(SemanticVad(**settings), False)


@pytest.mark.parametrize(
    ("eagerness", "sure", "likely", "unsure"),
    [("low", 900, 2000, 8000), ("medium", 500, 1200, 4000), ("high", 320, 700, 2000), ("auto", 500, 1200, 4000)],
)
def test_vad_02_semantic_patience(eagerness: str, sure: float, likely: float, unsure: float) -> None:
    """An unfinished turn gets the hard maximum, as does one of which nothing is known."""
    patience = semantic(eagerness=eagerness).patience
    assert [patience.silence_ms(p) for p in (0.99, 0.65 if eagerness == "low" else 0.55, 0.1, -1)] == [
        sure,
        sure if eagerness == "high" and 0.55 >= 0.6 else likely,
        unsure,
        unsure,
    ]


def test_an_answer_is_forgotten_when_speech_goes_on() -> None:
    known = Detection(active=True, silence_ms=200, asked=7, finished=0.99)
    assert list(follow(known, semantic(), [V, Q, Q, Q], 1000)) == []
    assert (known.asked, known.finished, known.silence_ms) == (0, -1, 96)


def test_where_the_model_decides_nobody_is_asked() -> None:
    assert semantic().asks
    assert not rules_of(SemanticVad(), True).asks
    assert rules_of(SemanticVad(), True).patience.silence_ms(-1) == 1200
    assert not rules_of(ServerVad(), False).asks
