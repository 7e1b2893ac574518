"""The settings of every process: one frozen Struct each, from one TOML file and the environment.

Rule 1. Strict: an unknown key, a wrong type or a value out of range is a `SettingsError` naming the place.
Rule 2. The environment wins over the file: DUOLOGUE_GATEWAY__PORT=9000 sets `port` of `[gateway]`. Lists and
        tables are given as JSON, a list of texts also as `a,b`.
        No message ever shows a value: it may be a key.
Rule 3. Every bound of the system is here, with its default; docs/operations.md is checked against this file.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from duologue.runtime.settings_reading import SettingsError as SettingsError
from duologue.runtime.settings_reading import explain, with_environment

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Span = Annotated[float, msgspec.Meta(gt=0)]
Ratio = Annotated[float, msgspec.Meta(ge=0)]

MIB = 1024 * 1024


ProcessName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{0,64}$")]
"""What a process is called on the bus and in the store; empty: made up at start."""


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
    id: ProcessName = ""
    drain_s: Ratio = 30.0


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
    id: ProcessName = ""
    drain_s: Ratio = 30.0


class StageSettings(Section, frozen=True, kw_only=True):
    orphan_slots_s: Span = 10.0
    """How long the slots of a lost shard are kept for a higher owner."""
    pending_output_bytes: Positive = 8 * MIB
    """Per shard, when its credit is used up; beyond it the units of the session fail."""
    metrics_port: Port = 0
    id: ProcessName = ""
    pipelines: tuple[str, ...] = ()
    """Which of the system's pipelines this worker serves; empty: all."""
    drain_s: Ratio = 30.0


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
    """A registration that was not renewed for so long is gone; so is a link on which nothing was heard."""
    stall_s: Span = 1.0
    """A gap in one's own event loop after which nobody is judged by what was not heard."""
    linger_s: Ratio = 1.0
    high_water: Positive = 1000
    curve_public_key: str = ""
    """CURVE keys (Z85), for tcp: the fleet shares one pair."""
    curve_secret_key: str = ""

    def __post_init__(self) -> None:
        if self.expiry_s < 2 * self.heartbeat_s:
            raise ValueError("`expiry_s` must be at least twice `heartbeat_s`")
        if bool(self.curve_public_key) != bool(self.curve_secret_key):
            raise ValueError("`curve_public_key` and `curve_secret_key` go together")
        if self.curve_public_key and not self.host:
            raise ValueError("CURVE keys are for tcp: set `host`")


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
    alone = settings_from(document, source)  # what is wrong in the file is told as the file's
    merged = with_environment(document, environment, SystemSettings)
    return alone if merged is document else settings_from(merged, f"{source} with the environment")


def settings_from(document: Mapping[str, Any], source: str = "settings") -> SystemSettings:
    """A plain document as settings. Raises SettingsError."""
    try:
        return msgspec.convert(document, SystemSettings)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{source}: {explain(str(error), SystemSettings)}") from None
