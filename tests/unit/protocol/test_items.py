"""Created items, and how much of a text was heard."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from msgspec import UNSET

from duologue.protocol import duplex as p
from duologue.protocol.realtime.item_input import read_item

pytestmark = pytest.mark.unit

PNG = "data:image/png;base64," + base64.b64encode(b"\x89PNG" + bytes(60)).decode()
PART = p.ContentPart


def user(*content: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": list(content), **more}


@pytest.mark.parametrize(
    ("written", "item"),
    [
        ({}, p.Item(id="", role="user", content=())),
        ({"role": "user", "content": None}, p.Item(id="", role="user", content=())),
        (
            {"id": "m1", "role": "user", "content": [{"type": "input_text", "text": ""}]},
            p.Item(id="m1", role="user", content=(PART(type="input_text", text=""),)),
        ),
        (
            {"role": "assistant", "content": [{"type": "text", "text": "a"}], "status": "incomplete"},
            p.Item(id="", role="assistant", status="incomplete", content=(PART(type="output_text", text="a"),)),
        ),
        (
            {"role": "assistant", "content": [{"type": "output_audio", "transcript": "a", "audio": "AAAA"}]},
            p.Item(id="", role="assistant", content=(PART(type="output_audio", transcript="a"),)),
        ),
        (
            {
                "role": "system",
                "content": [{"type": "input_text", "text": "a", "surprise": 1}],
                "object": "x",
            },
            p.Item(id="", role="system", content=(PART(type="input_text", text="a"),)),
        ),
        (
            user({"type": "input_image", "image_url": PNG}),
            p.Item(id="", role="user", content=(PART(type="input_image", image_url=PNG),)),
        ),
        (
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'},
            p.function_call_item("", call_id="c", name="f", arguments='{"a": 1}'),
        ),
        (
            {"type": "function_call_output", "call_id": "c", "output": "blue", "id": "o1"},
            p.Item(id="o1", type="function_call_output", call_id="c", output="blue"),
        ),
    ],
)
def test_an_item_is_normalised(written: dict[str, Any], item: p.Item) -> None:
    assert read_item(written) == (item, ())


def test_audio_is_taken_out_of_an_item() -> None:
    written = user(
        {"type": "input_text", "text": "listen:"},
        {
            "type": "input_audio",
            "audio": "AAEC",
            "format": "audio/PCM",
            "sample_rate_hz": 16_000,
            "transcript": "a",
        },
        {"type": "audio", "audio": "AAEC", "format": {"type": "audio/pcmu", "rate": 8000}},
    )
    item, audio = read_item(written)
    assert audio == (
        p.ItemAudio(content_index=1, audio=b"\0\1\2", format="pcm16", sample_rate_hz=16_000),
        p.ItemAudio(content_index=2, audio=b"\0\1\2", format="g711_ulaw", sample_rate_hz=8000),
    )
    assert item.content is not UNSET
    assert item.content[1:] == (
        PART(type="input_audio", transcript="a"),
        PART(type="input_audio", transcript=None),
    )
    assert item.text == "listen:a"


@pytest.mark.parametrize(
    ("written", "code", "param"),
    [
        ({"type": "mcp_call"}, "bad_event", "item.type"),
        ({"type": 5}, "bad_event", "item.type"),
        ({"id": 5}, "bad_event", "item.id"),
        ({"id": ""}, "bad_event", "item.id"),
        ({"role": "robot"}, "bad_event", "item.role"),
        ({"status": "cancelled"}, "bad_event", "item.status"),
        ({"content": "hi"}, "bad_event", "item.content"),
        ({"content": ["hi"]}, "bad_event", "item.content"),
        (user({"text": "hi"}), "bad_event", "item.content[0].type"),
        (user({"type": "output_text", "text": "hi"}), "bad_event", "item.content[0].type"),
        (user({"type": "input_text"}), "bad_event", "item.content[0].text"),
        (user({"type": "input_text", "text": 5}), "bad_event", "item.content[0].text"),
        (user({"type": "input_text", "text": "a"}, {"type": "video"}), "bad_event", "item.content[1].type"),
        (user({"type": "input_audio"}), "bad_event", "item.content[0].audio"),
        (user({"type": "input_audio", "audio": "%%%%"}), "bad_audio", "item.content[0].audio"),
        (
            user({"type": "input_audio", "audio": "AAAA", "format": "mp3"}),
            "unsupported_audio_format",
            "item.content[0].format",
        ),
        (
            user({"type": "input_audio", "audio": "AAAA", "sample_rate_hz": 4}),
            "bad_event",
            "item.content[0].sample_rate_hz",
        ),
        (
            {"role": "assistant", "content": [{"type": "input_image", "image_url": PNG}]},
            "invalid_image",
            "item.content[0].type",
        ),
        (
            user({"type": "input_image", "image_url": "https://x/y.png"}),
            "invalid_image",
            "item.content[0].image_url",
        ),
        (
            user({"type": "input_image", "image_url": "data:image/png;base64,AAAA"}),
            "invalid_image",
            "item.content[0].image_url",
        ),
        (user({"type": "input_image"}), "invalid_image", "item.content[0].image_url"),
        ({"type": "function_call", "name": "f"}, "bad_event", "item.call_id"),
        ({"type": "function_call", "call_id": "c"}, "bad_event", "item.name"),
        ({"type": "function_call_output", "output": "x"}, "invalid_function_call_output", "item.call_id"),
        (
            {"type": "function_call_output", "call_id": "c", "output": {"sky": "blue"}},
            "invalid_function_call_output",
            "item.output",
        ),
        ({"type": "function_call_output", "call_id": "c"}, "invalid_function_call_output", "item.output"),
    ],
)
def test_a_bad_item_is_refused_by_name(written: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(p.RealtimeProtocolError) as refused:
        read_item(written)
    assert (refused.value.code, (refused.value.param or "")[: len(param)]) == (code, param)


def test_an_assistant_item_has_the_parts_that_were_produced() -> None:
    spoken = p.assistant_item("resp-1", status="completed", transcript="", text="t", audio_duration_ms=80)
    assert spoken.id == "item_resp-1"
    assert spoken.content == (
        PART(type="output_audio", transcript="", audio_duration_ms=80),
        PART(type="output_text", text="t"),
    )
    assert p.assistant_item("r", status="in_progress").content == ()


MARKS = tuple(p.TextMark(6 * (n + 1) - (n == 3), 80 * (n + 1)) for n in range(4))
WORDS = "word0 word1 word2 word3"


@pytest.mark.parametrize(
    ("ms", "marks", "total", "left"),
    [
        (-5, MARKS, 320, ""),
        (0, MARKS, 320, ""),
        (40, MARKS, 320, "wor"),
        (80, MARKS, 320, "word0"),
        (120, MARKS, 320, "word0 wor"),
        (160, MARKS, 320, "word0 word1"),
        (319, MARKS, 320, "word0 word1 word2 word"),
        (320, MARKS, 320, WORDS),
        (9999, MARKS, 320, WORDS),
        (320, MARKS, 400, WORDS),
        (240, MARKS[:2], 320, "word0 word1 word2"),
        (160, (), 320, "word0 word1"),
        (160, (), 0, WORDS),
        (80, tuple(reversed(MARKS)), 320, "word0"),
        (80, (p.TextMark(12, 80), p.TextMark(3, 160)), 320, "word0 word1"),
        (120, (p.TextMark(12, 80), p.TextMark(3, 160)), 320, "word0 word1"),
        (80, (p.TextMark(99, 160),), 320, "word0 word1"),
        (80, (p.TextMark(6, 80), p.TextMark(12, 80)), 320, "word0 word1"),
    ],
)
def test_text_is_cut_where_it_was_heard(ms: float, marks: tuple[p.TextMark, ...], total: float, left: str) -> None:
    assert p.truncate_text(WORDS, marks, ms, total) == left


def test_text_that_is_not_aligned_is_all_or_nothing() -> None:
    assert p.truncate_text(WORDS, (), 319, 320, requires_complete=True) == ""
    assert p.truncate_text(WORDS, (), 320, 320, requires_complete=True) == WORDS
