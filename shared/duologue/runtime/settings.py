"""The settings of every process: one frozen Struct each, from one TOML file and the environment.

Rule 1. Strict: an unknown key, a wrong type or a value out of range is a `SettingsError` naming the place.
Rule 2. The environment wins over the file: DUOLOGUE_GATEWAY__PORT=9000 sets `port` of `[gateway]`. Lists and
        tables are given as JSON.
Rule 3. Every bound of the system is here, with its default; docs/operations.md is checked against this file.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

PREFIX = "DUOLOGUE_"

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Span = Annotated[float, msgspec.Meta(gt=0)]
Ratio = Annotated[float, msgspec.Meta(ge=0)]

MIB = 1024 * 1024


class SettingsError(ValueError):
    """What is wrong, where, and what is allowed: one line for a person."""


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all sections."""


class GatewaySettings(Section, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    port: Port = 8080
    allowed_origins: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    insecure: bool = False
    """Serve without keys on an address that others can reach."""
    first_message_timeout_s: Span = 10.0
    max_waiting_sockets: Positive = 256
    max_frame_bytes: Positive = 15 * MIB
    max_sessions: Positive = 1024
    max_sessions_per_key: Count = 0
    """0: no limit of its own."""
    journal_deadline_ms: Positive = 250
    uncovered_bytes: Positive = 4 * MIB
    ping_interval_s: Span = 20.0
    takeover_linger_s: Span = 1.0
    """How long a replaced socket may take to close before its TCP connection is dropped."""


class SessionSettings(Section, frozen=True, kw_only=True):
    max_sessions: Positive = 256
    idle_ttl_s: Span = 300.0
    disconnect_grace_s: Span = 30.0
    max_session_s: Span = 3600.0
    reaper_interval_s: Span = 0.5
    max_pending_input_bytes: Positive = 16 * MIB
    max_pending_turns: Positive = 4
    max_output_bytes: Positive = 2 * MIB
    max_output_events: Positive = 512
    overflow_policy: Literal["close", "fail_response"] = "close"
    tool_timeout_s: Span = 60.0
    mailbox: Positive = 4096
    offload_threads: Positive = 2
    metrics_port: Port = 0
    """0: a free one, told in the registration."""


class StageSettings(Section, frozen=True, kw_only=True):
    orphan_slots_s: Span = 10.0
    """How long the slots of a lost shard are kept for a higher owner."""
    pending_output_bytes: Positive = 8 * MIB
    """Per shard, when its credit is used up; beyond it the units of the session fail."""
    metrics_port: Port = 0


class StoreSettings(Section, frozen=True, kw_only=True):
    url: str = "redis://127.0.0.1:6379"
    journal_url: str = ""
    """Another server for the replay journal (it may run without append-only file); empty: the same."""
    timeout_s: Span = 2.0
    session_ttl_s: Span = 600.0
    journal_ttl_s: Span = 60.0
    journal_max_bytes: Positive = 8 * MIB


class BusSettings(Section, frozen=True, kw_only=True):
    host: str = ""
    """Empty: ipc sockets in `socket_dir`. Otherwise the address to listen on, by tcp."""
    advertise: str = ""
    """The host name that others dial, where it differs from `host`."""
    port: Port = 0
    socket_dir: str = ""
    window_bytes: Positive = 8 * MIB
    heartbeat_s: Span = 0.5
    expiry_s: Span = 2.0
    """A registration that was not renewed for so long is gone."""


class LogSettings(Section, frozen=True, kw_only=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "text", "json"] = "auto"


class SupervisorSettings(Section, frozen=True, kw_only=True):
    """`duologue up` only."""

    gateways: Positive = 1
    shards: Positive = 2
    stop_s: Span = 10.0


class SystemSettings(Section, frozen=True, kw_only=True):
    """The whole file. A process reads its own sections and the shared ones."""

    gateway: GatewaySettings = GatewaySettings()
    session: SessionSettings = SessionSettings()
    stages: StageSettings = StageSettings()
    store: StoreSettings = StoreSettings()
    bus: BusSettings = BusSettings()
    log: LogSettings = LogSettings()
    supervisor: SupervisorSettings = SupervisorSettings()
    pipelines: tuple[str, ...] = ("loopback", "loopback-1s", "loopback-talk", "cascade")
    """Names of installed pipelines, or paths of TOML files. The first is the default model."""


def load_settings(path: Path | None, environment: Mapping[str, str] = os.environ) -> SystemSettings:
    """The file, if one is given, under the environment. Raises SettingsError."""
    document: dict[str, Any] = {}
    if path is not None:
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise SettingsError(f"{path}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingsError(f"{path}: not valid TOML: {error}") from None
    source = str(path) if path is not None else "settings"
    return settings_from(_with_environment(document, environment), source)


def settings_from(document: Mapping[str, Any], source: str = "settings") -> SystemSettings:
    """A plain document as settings. Raises SettingsError."""
    try:
        return msgspec.convert(document, SystemSettings)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{source}: {error}") from None


def _with_environment(document: dict[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    merged = {key: dict(value) if isinstance(value, dict) else value for key, value in document.items()}
    for name, text in sorted(environment.items()):
        section, separator, key = name.removeprefix(PREFIX).lower().partition("__")
        if not name.startswith(PREFIX) or not separator:
            continue
        table = merged.setdefault(section, {})
        if not isinstance(table, dict):
            raise SettingsError(f"{name}: {section!r} is not a section")
        table[key] = _value(text)
    return merged


def _value(text: str) -> Any:
    """JSON where it is JSON, else the text itself: 8080 is a number, 127.0.0.1 a string."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
