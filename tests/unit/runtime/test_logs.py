"""One record is one line, with its fields, and never what somebody said."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from duologue.runtime.logs import HumanFormatter, JsonFormatter, bound, configure_logs

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def root_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_lines_carry_process_level_and_bound_fields() -> None:
    stream = io.StringIO()
    configure_logs("shard-1", "info", "auto", stream)
    log = bound(logging.getLogger("duologue.session"), session_id="s1").bind(turn=3)
    log.info("opened %s", "it", extra={"other": 1})
    log.warning("slow", fields={"ms": 12})
    log.debug("not shown")
    first, second = lines(stream)
    assert first["message"] == "opened it"
    assert (first["process"], first["level"], first["logger"]) == ("shard-1", "info", "duologue.session")
    assert (first["session_id"], first["turn"]) == ("s1", 3)
    assert first["at"].endswith("Z") and len(first["at"]) == 24
    assert (second["level"], second["ms"], second["session_id"]) == ("warning", 12, "s1")


def test_content_and_keys_are_withheld_and_objects_are_not_spelled_out() -> None:
    stream = io.StringIO()
    configure_logs("gw", "info", "json", stream)
    log = bound(logging.getLogger("x"), transcript="hello there", api_key="k", audio=b"abc")
    log.info("x", fields={"payload": "p", "thing": {"a": "hello"}, "long": "y" * 1000, "nothing": None})
    (line,) = lines(stream)
    assert line["transcript"] == line["api_key"] == line["audio"] == line["payload"] == "[withheld]"
    assert line["thing"] == "[dict]"
    assert len(line["long"]) < 400
    assert line["nothing"] is None


def test_a_record_is_one_line_even_with_an_exception() -> None:
    stream = io.StringIO()
    configure_logs("gw", "info", "json", stream)
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("x").exception("failed\nbadly")
    (line,) = lines(stream)
    assert "ValueError: broken" in line["exception"]
    assert line["message"] == "failed\nbadly"


def test_the_text_form_is_for_people() -> None:
    record = logging.LogRecord("x", logging.WARNING, "f", 1, "two\nlines", (), None)
    record.fields = {"session_id": "s1"}
    said = HumanFormatter("shard-1").format(record)
    assert said.endswith("shard-1      warning: two\\nlines session_id=s1")
    try:
        raise ValueError("broken")
    except ValueError:
        record.exc_info = sys.exc_info()
    assert "ValueError: broken" in HumanFormatter("shard-1").format(record)


def test_a_terminal_gets_text_and_a_file_json() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    root = logging.getLogger()
    configure_logs("gw", "info", "auto", Terminal())
    assert isinstance(root.handlers[0].formatter, HumanFormatter)
    configure_logs("gw", "info", "auto", io.StringIO())
    assert isinstance(root.handlers[0].formatter, JsonFormatter)
    assert len(root.handlers) == 1


def test_fields_that_are_no_mapping_are_ignored() -> None:
    record = logging.LogRecord("x", logging.INFO, "f", 1, "m", (), None)
    record.fields = "nonsense"
    assert "nonsense" not in JsonFormatter("p").format(record)
