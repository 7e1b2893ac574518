"""Log lines: one record, one line; for people on a terminal, JSON otherwise.

Facts that belong to a line (session, turn, peer) are fields, bound once: `bound(logger, session_id=...)`.

Rule 1. Never content: a field that could hold what somebody said, or a key, is withheld by its name, and a
        field that is no plain value is shown as its type.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping, MutableMapping
from typing import Any, Final, Literal, TextIO

Fields = Mapping[str, object]

_WITHHELD: Final = frozenset(
    {
        *("audio", "content", "delta", "image", "instructions", "message_text", "payload", "prompt", "text"),
        *("transcript", "api_key", "authorization", "key", "password", "secret", "token", "resume_token"),
    }
)
_FIELD_LIMIT: Final = 300
RECORDS: Final = ("duologue.audit", "duologue.usage")
"""Loggers whose lines are for machines to read and keep: JSON always, and whatever the level of the others."""
_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class BoundLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose lines carry these fields."""

    def __init__(self, logger: logging.Logger, fields: Fields) -> None:
        super().__init__(logger, {})
        self.fields = dict(fields)

    def bind(self, **fields: object) -> BoundLogger:
        return BoundLogger(self.logger, {**self.fields, **fields})

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        own = kwargs.pop("fields", None) or {}
        kwargs["extra"] = {**kwargs.get("extra", {}), "fields": {**self.fields, **own}}
        return msg, kwargs


def bound(logger: logging.Logger, **fields: object) -> BoundLogger:
    """`logger` with fields on every line; more of them with `.bind`."""
    return BoundLogger(logger, fields)


def configure_logs(
    process: str,
    level: Literal["debug", "info", "warning", "error"] = "info",
    form: Literal["auto", "text", "json"] = "auto",
    stream: TextIO | None = None,
) -> None:
    """Send everything to `stream` (standard error), each line with the process's name. Idempotent."""
    out = stream or sys.stderr
    human = form == "text" or (form == "auto" and out.isatty())
    handler = logging.StreamHandler(out)
    handler.setFormatter(HumanFormatter(process) if human else JsonFormatter(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[level])
    records = logging.StreamHandler(out)
    records.setFormatter(JsonFormatter(process))
    for name in RECORDS:
        record = logging.getLogger(name)
        record.handlers[:] = [records]
        record.setLevel(logging.INFO)
        record.propagate = False
    for chatty in ("asyncio", "uvicorn.access", "websockets"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, _LEVELS[level]))


class JsonFormatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": _utc(record.created),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
            **_shown(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class HumanFormatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = "".join(f" {name}={value}" for name, value in _shown(record).items())
        level = "" if record.levelno == logging.INFO else f" {record.levelname.lower()}:"
        message = record.getMessage().replace("\n", "\\n")
        line = f"{when}.{int(record.msecs):03d} {self._process:<12}{level} {message}{fields}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _shown(record: logging.LogRecord) -> dict[str, object]:
    fields = getattr(record, "fields", None)
    if not isinstance(fields, Mapping):
        return {}
    return {str(name): _value(str(name), value) for name, value in fields.items()}


def _value(name: str, value: object) -> object:
    if name.lower() in _WITHHELD:
        return "[withheld]"
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value if len(value) <= _FIELD_LIMIT else value[:_FIELD_LIMIT] + "..."
    return f"[{type(value).__name__}]"


def _utc(created: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created)) + f".{int(created * 1000) % 1000:03d}Z"
