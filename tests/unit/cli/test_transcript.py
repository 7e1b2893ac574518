"""The live transcript prints what was said, whatever it looks like."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from duologue.cli.transcript import Transcript
from duologue.protocol.duplex import event_from_realtime

pytestmark = pytest.mark.unit


def test_speech_that_looks_like_markup_is_printed_as_it_is() -> None:
    printed = io.StringIO()
    transcript = Transcript(Console(file=printed, width=80))
    heard = (
        '{"type":"conversation.item.input_audio_transcription.completed","event_id":"event_1",'
        '"item_id":"item_1","content_index":0,"transcript":"[/] and [red]"}'
    )
    transcript.take(event_from_realtime(heard))
    assert "[/] and [red]" in printed.getvalue()
    assert transcript.heard == ["[/] and [red]"]
