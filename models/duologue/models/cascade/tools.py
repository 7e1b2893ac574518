"""The functions of a session, from the realtime spelling to what the thinker is asked with. Pure.

Rule 1. What cannot be called is refused by name when the session is configured, never when an answer is due.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from duologue.models.cascade.wire import Tool
from duologue.protocol.duplex import RealtimeProtocolError

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_WORDS = ("auto", "none", "required")
_schema = msgspec.json.Encoder(order="deterministic")


def tools_of(tools: Sequence[dict[str, Any]] | None, param: str = "tools") -> tuple[Tool, ...]:
    """Raises RealtimeProtocolError (`bad_event`, `unsupported`) with `param` at the field that is wrong."""
    given = tuple(tools or ())
    if len(given) > MAX_TOOLS:
        raise RealtimeProtocolError("bad_event", f"at most {MAX_TOOLS} tools", param=param)
    read: dict[str, Tool] = {}
    for index, tool in enumerate(given):
        one = _tool(tool, f"{param}[{index}]")
        if one.name in read:
            raise RealtimeProtocolError("bad_event", f"two tools are called {one.name}", param=f"{param}[{index}].name")
        read[one.name] = one
    return tuple(read.values())


def _tool(tool: dict[str, Any], at: str) -> Tool:
    kind = tool.get("type", "function")
    if kind != "function":
        raise RealtimeProtocolError("unsupported", "only functions can be called", param=f"{at}.type")
    body = tool.get("function", tool)
    if not isinstance(body, dict):
        raise RealtimeProtocolError("bad_event", "a function is an object", param=f"{at}.function")
    name, description, schema = body.get("name"), body.get("description"), body.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        message = "a function has a name of 1 to 64 letters, digits, _ or -"
        raise RealtimeProtocolError("bad_event", message, param=f"{at}.name")
    if description is not None and not isinstance(description, str):
        raise RealtimeProtocolError("bad_event", "a description is text", param=f"{at}.description")
    if schema is not None and not isinstance(schema, dict):
        raise RealtimeProtocolError("bad_event", "parameters are a JSON schema, an object", param=f"{at}.parameters")
    return Tool(name, description or "", b"" if schema is None else _schema.encode(schema))


def choice_of(choice: str | dict[str, Any] | None, tools: Sequence[Tool], param: str = "tool_choice") -> str:
    """As `Ask.choice` has it. Raises RealtimeProtocolError with `param`."""
    if choice is None:
        return ""
    if isinstance(choice, str):
        if choice not in _WORDS:
            raise RealtimeProtocolError("bad_event", f"one of {', '.join(_WORDS)}, or a function", param=param)
        if choice == "required" and not tools:
            raise RealtimeProtocolError("bad_event", "there is no tool to be called", param=param)
        return choice
    if choice.get("type", "function") != "function":
        raise RealtimeProtocolError("unsupported", "only functions can be called", param=f"{param}.type")
    body = choice.get("function", choice)
    name = body.get("name") if isinstance(body, dict) else None
    if not any(tool.name == name for tool in tools):
        raise RealtimeProtocolError("bad_event", "no tool has this name", param=f"{param}.name")
    return f"={name}"
