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
from ipaddress import ip_network
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
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]

MIB = 1024 * 1024


ProcessName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{0,64}$")]
"""What a process is called on the bus and in the store; empty: made up at start."""


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all sections."""


class GatewaySettings(Section, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    """The address to listen on. On one that others can reach it needs keys, or `insecure`."""
    port: Port = 8080
    """The port to listen on; `duologue up` gives each further gateway the next one. 0: a free one."""
    allowed_origins: tuple[str, ...] = ()
    """Web pages of these origins may connect besides those of our own host."""
    api_keys: tuple[str, ...] = ()
    """Keys that clients present. None: everybody may connect."""
    insecure: bool = False
    """Serve without keys on an address that others can reach."""
    first_message_timeout_s: Span = 10.0
    """A socket that has not opened a session by then is closed."""
    max_waiting_sockets: Positive = 256
    """Sockets that have not opened a session yet."""
    max_connects_per_s: Positive = 200
    """WebSockets that are accepted each second; of a crowd the rest is told when to come again."""
    max_frame_bytes: Positive = 15 * MIB
    """One frame of a client; a larger one is an error and closes with 1009."""
    max_sessions: Positive = 1024
    """Sessions attached to one gateway."""
    max_sessions_per_key: Count = 0
    """0: no limit of its own."""
    max_chat_turns: Positive = 64
    """Requests of `/v1/chat/completions` at once. Each pipeline has a limit of its own besides."""
    journal_deadline_ms: Positive = 250
    """How long an event waits for the store before it leaves all the same."""
    uncovered_bytes: Positive = 4 * MIB
    """Commands of one session that no checkpoint covers; at the bound its socket is not read."""
    gather_ms: Count = 80
    """How long sound waits for that of other sockets at most, from 33 sockets that send on: more of it spends latency
    and saves CPU. Of 17 it waits a quarter of that, of 9 a sixteenth, of one alone never. 0: never."""
    ping_interval_s: Span = 20.0
    """How often a silent client is pinged, and how long it may take to answer."""
    takeover_linger_s: Span = 1.0
    """How long a replaced socket may take to close before its TCP connection is dropped."""
    id: ProcessName = ""
    """What the process is called; empty: made up at start."""
    drain_s: Ratio = 30.0
    """How long clients may take to leave after SIGTERM or `POST /drain`."""
    tls_cert: str = ""
    """Certificate chain (PEM file): `port` speaks https and wss. Empty: http and ws."""
    tls_key: str = ""
    """The private key of `tls_cert` (PEM file, not encrypted)."""
    metrics_port: Port = 0
    """Where one process alone answers `/metrics`, `/readyz`, `/health` and `/drain`, in plain HTTP; each further one
    takes the next. 0: a free one where `port` is shared or speaks TLS, else `port` does."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of load balancers: their `X-Forwarded-For` is believed, for the audit."""

    def __post_init__(self) -> None:
        for network in self.trusted_proxies:
            try:
                ip_network(network, strict=False)
            except ValueError:
                raise ValueError("`trusted_proxies` are addresses, or networks as 10.0.0.0/8") from None
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("`tls_cert` and `tls_key` go together")


class SessionSettings(Section, frozen=True, kw_only=True):
    max_sessions: Positive = 256
    """Sessions of one shard; each pipeline has a limit of its own besides."""
    idle_ttl_s: Span = 300.0
    """A session whose client sends nothing ends after so long. A client may ask for less."""
    disconnect_grace_s: Span = 30.0
    """How long a session waits for its client to come back."""
    max_session_s: Span = 3600.0
    """The longest session; announced a minute before."""
    reaper_interval_s: Span = 0.5
    """How often what has ended is swept, and silent sessions are renewed in the store."""
    max_pending_input_bytes: Positive = 16 * MIB
    """Input of one session that no stage has used, as float32 at 16 kHz."""
    max_input_age_s: Span = 8.0
    """How long input may wait for a model that hears all the time: one slower than real time gets no further behind."""
    max_pending_turns: Positive = 4
    """Commits of one session that wait for their turn."""
    max_output_bytes: Positive = 2 * MIB
    """Output of one session that its client has not taken."""
    max_output_events: Positive = 512
    """The same in events."""
    overflow_policy: Literal["close", "fail_response"] = "close"
    """What ends when that is passed: the session, or the response. A client may choose."""
    tool_timeout_s: Span = 60.0
    """How long the model waits for the result of a function call."""
    mailbox: Positive = 4096
    """Facts that wait for one session; media may take half."""
    offload_threads: Positive = 2
    """Threads that convert long payloads."""
    voice_model: str = ""
    """Another silero_vad.onnx for turn detection; empty: the one of the package."""
    turn_model: str = ""
    """Another smart-turn onnx file for `semantic_vad`."""
    detector_frames: Positive = 16_384
    """Frames of 32 ms, of all sessions of a shard, that wait for the speech detector."""
    metrics_port: Port = 0
    """0: a free one, told in the registration."""
    id: ProcessName = ""
    """What the process is called; empty: made up at start."""
    drain_s: Ratio = 30.0
    """How long it may take after SIGTERM to hand the sessions over and to tell the clients of the others."""
    standby: bool = False
    """New sessions go to this shard only when no other one takes them; it inherits and is handed sessions like any. Of
    the shards of `duologue up`, `[supervisor] standby` decides."""


class StageSettings(Section, frozen=True, kw_only=True):
    orphan_slots_s: Span = 10.0
    """How long the slots of a lost shard are kept for a higher owner."""
    pending_output_bytes: Positive = 8 * MIB
    """Per shard, when its credit is used up; beyond it the units of the session fail."""
    metrics_port: Port = 0
    """0: a free one."""
    id: ProcessName = ""
    """What the process is called; empty: made up at start."""
    pipelines: tuple[str, ...] = ()
    """Which of the system's pipelines this worker serves; empty: all."""
    drain_s: Ratio = 30.0
    """How long its sessions may take to move to other workers after SIGTERM; what is being said then ends."""
    max_export_bytes: Positive = 8 * MIB
    """The largest state of one session, all stages together, that moves to another worker. A larger one stays: the
    session moves at the end of its turn, and its context is rebuilt."""


class StoreSettings(Section, frozen=True, kw_only=True):
    url: str = "redis://127.0.0.1:6379"
    """Redis or Valkey: redis://, rediss:// or unix://. `duologue up` runs one of its own unless told otherwise."""
    journal_url: str = ""
    """Another server for the replay journal (it may run without append-only file); empty: the same."""
    timeout_s: Span = 2.0
    """The longest that one call may take."""
    replicas: Count = 0
    """So many replicas are to have a change of owner or token before it counts, or 100 ms have passed (WAIT)."""
    session_ttl_s: Span = 600.0
    """How long the keys of a session live after the last write."""
    journal_ttl_s: Span = 60.0
    """The oldest event that a client can get again."""
    journal_max_bytes: Positive = 8 * MIB
    """Events kept for one session; the oldest go first."""
    memory_budget_mb: Count = 0
    """What each server of the store may hold. 0: what its `maxmemory` says; where neither does, there is no budget."""
    memory_trim_from: Share = 0.70
    """From this share of the budget on a journal may hold less than `journal_max_bytes`, towards an equal share for
    each: the largest lose their oldest events first."""
    memory_refuse_from: Share = 0.85
    """From this share on no new session is let in, until 0.05 below it."""

    def __post_init__(self) -> None:
        if self.memory_trim_from >= self.memory_refuse_from:
            raise ValueError("`memory_trim_from` must be less than `memory_refuse_from`")


class BusSettings(Section, frozen=True, kw_only=True):
    host: str = ""
    """Empty: ipc sockets in `socket_dir`. Otherwise the address to listen on, by tcp."""
    advertise: str = ""
    """The host name that others dial, where it differs from `host`."""
    port: Port = 0
    """The port to listen on, by tcp. 0: a free one."""
    socket_dir: str = ""
    """Where ipc sockets are; the path must be short. Empty: a folder of this user among the temporary files."""
    window_bytes: Positive = 8 * MIB
    """What a peer may have on the way to us: the credit of a link."""
    heartbeat_s: Span = 0.5
    """How often a registration is renewed, and an idle link says that it lives."""
    expiry_s: Span = 2.0
    """A registration that was not renewed for so long is gone; so is a link on which nothing was heard."""
    stall_s: Span = 1.0
    """A gap in one's own event loop after which nobody is judged by what was not heard."""
    linger_s: Ratio = 1.0
    """How long a closing process tries to send what is queued."""
    high_water: Positive = 1000
    """Multipart messages that a ZeroMQ socket holds for one peer; beyond it a batch waits with us."""
    curve_secret_key: str = ""
    """The secret CURVE key of this process (Z85), for tcp. `duologue keys` makes pairs."""
    curve_secret_file: str = ""
    """The file that holds it instead."""
    curve_allowed_keys: tuple[str, ...] = ()
    """Public keys of the processes that are spoken to. One's own always is: a fleet may share one pair."""
    curve_allowed_file: str = ""
    """A file with more of them, one a line; a change counts from the next connection on."""
    insecure: bool = False
    """Speak by tcp without keys on an address that others can reach: only on a network that you trust."""

    def __post_init__(self) -> None:
        if self.expiry_s < 2 * self.heartbeat_s:
            raise ValueError("`expiry_s` must be at least twice `heartbeat_s`")
        if self.curve_secret_key and self.curve_secret_file:
            raise ValueError("`curve_secret_key` and `curve_secret_file` are one or the other")
        has_keys = bool(self.curve_secret_key or self.curve_secret_file)
        if (self.curve_allowed_keys or self.curve_allowed_file) and not has_keys:
            raise ValueError("`curve_allowed_keys` and `curve_allowed_file` need `curve_secret_file` (or _key)")
        if has_keys and not self.host:
            raise ValueError("CURVE keys are for tcp: set `host`")


class UsageSettings(Section, frozen=True, kw_only=True):
    """What is told of each session at its end."""

    log: bool = False
    """One JSON line by the logger `duologue.usage`."""
    url: str = ""
    """Where to POST it as JSON (http:// or https://); empty: nowhere."""
    token: str = ""
    """Sent there as a bearer token."""
    timeout_s: Span = 5.0
    """How long an answer may take; then it is tried again."""

    def __post_init__(self) -> None:
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError("`url` begins with http:// or https://")


class LogSettings(Section, frozen=True, kw_only=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """What is logged."""
    format: Literal["auto", "text", "json"] = "auto"
    """`auto`: text on a terminal, JSON elsewhere."""


class SupervisorSettings(Section, frozen=True, kw_only=True):
    """`duologue up`, and `duologue gateway` with workers."""

    gateways: Positive = 1
    """Gateways, each on a port of its own from `[gateway] port` on."""
    gateway_workers: Positive = 1
    """Processes that share the port of a gateway (SO_REUSEPORT), each complete."""
    tls: bool = False
    """Speak https and wss with a certificate that is made and kept in the home."""
    shards: Positive = 2
    """Session shards."""
    stop_s: Span = 10.0
    """How long a process may take to stop before it is killed."""
    standby: Count = 0
    """How many of the `shards`, the last ones, are on standby. Where neither key is set, `duologue up` has 1 if it may
    use fewer than 4 CPUs."""

    def __post_init__(self) -> None:
        if self.standby >= self.shards:
            raise ValueError("`standby` must be less than `shards`: one of them has to be active")


class SystemSettings(Section, frozen=True, kw_only=True):
    """The whole file. A process reads its own sections and the shared ones."""

    gateway: GatewaySettings = GatewaySettings()
    session: SessionSettings = SessionSettings()
    stages: StageSettings = StageSettings()
    store: StoreSettings = StoreSettings()
    bus: BusSettings = BusSettings()
    log: LogSettings = LogSettings()
    usage: UsageSettings = UsageSettings()
    supervisor: SupervisorSettings = SupervisorSettings()
    pipelines: tuple[str, ...] = ("loopback", "loopback-1s", "loopback-talk", "cascade")
    """Names of installed pipelines, or paths of TOML files. The first is the default model."""


def load_settings(path: Path | None, environment: Mapping[str, str] = os.environ) -> SystemSettings:
    """The file, if one is given, under the environment. Raises SettingsError."""
    return settings_from(load_document(path, environment))


def load_document(path: Path | None, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """What the file and the environment say, checked, and no default of what they do not. Raises SettingsError."""
    document: dict[str, Any] = {}
    if path is not None:
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise SettingsError(f"{path}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingsError(f"{path}: not valid TOML: {error}") from None
    source = str(path) if path is not None else "settings"
    settings_from(document, source)  # what is wrong in the file is told as the file's
    merged = with_environment(document, environment, SystemSettings)
    if merged is not document:
        settings_from(merged, f"{source} with the environment")
    return merged


def settings_from(document: Mapping[str, Any], source: str = "settings") -> SystemSettings:
    """A plain document as settings. Raises SettingsError."""
    try:
        return msgspec.convert(document, SystemSettings)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{source}: {explain(str(error), SystemSettings)}") from None
