"""What processes say of themselves in the registry: the `extra` of a registration, msgpack."""

from __future__ import annotations

import msgspec

from duologue.protocol.duplex import DuplexCapabilities


class PipelineRecord(msgspec.Struct, frozen=True):
    """One model a shard serves: enough for a gateway to list it and to describe a provisional session."""

    name: str
    capabilities: DuplexCapabilities
    native_turns: bool
    input_rate_hz: int
    output_rate_hz: int
    max_sessions: int
    sessions: int = 0
    ready: bool = True
    """Every stage has a live worker."""
    max_chat_turns: int = 0
    """Turns of `/v1/chat/completions` at once; 0: it serves none."""
    chat_turns: int = 0
    """Of these, under way now."""
    session_mode: str = "duplex"
    """duplex | turn: whether its sessions may answer by themselves (`auto_response`), or committed turns only."""

    @property
    def takes_chat(self) -> bool:
        """Whether it has room for one more chat turn."""
        return self.ready and self.chat_turns < self.max_chat_turns


class ShardRecord(msgspec.Struct, frozen=True):
    pipelines: tuple[PipelineRecord, ...]
    sessions: int
    max_sessions: int
    accepting: bool = True
    metrics_url: str = ""
    operator_token: str = ""
    """Whoever can read it may look into this shard's sessions, end them, and take it out of service. Never shown."""
    reads_state: int = 1
    """The newest version of a checkpoint that it can go on from. Who does not say so is of a time with one version."""
    writes_state: int = 1
    """The version of those that it saves."""
    standby: bool = False
    """New sessions go to it only when no other shard takes them; it inherits like any. Who says nothing is active."""
    takes_kept: bool = False
    """It knows `Kept`: what a gateway could not journal is not lost when its client leaves."""


class StageRecord(msgspec.Struct, frozen=True):
    """One stage of one pipeline in a worker."""

    pipeline: str
    stage: int
    slots_used: int
    slots_total: int
    unit_lag_s: float = 0.0
    exports: bool = False
    """Its sessions can take what it holds along to another worker that says so too (`ExportStages`)."""


class WorkerRecord(msgspec.Struct, frozen=True):
    group: str
    stages: tuple[StageRecord, ...]
    accepting: bool = True
    metrics_url: str = ""
    draining_s: float = -1.0
    """Not below 0: it is being taken out of service, and its sessions have so long to move."""
    operator_token: str = ""
    """Whoever can read it may take this worker out of service. Never shown."""


class GatewayRecord(msgspec.Struct, frozen=True):
    sockets: int
    sessions: int
    url: str = ""
    metrics_url: str = ""
    """Where this process alone answers `/metrics`, `/readyz` and `/drain`; empty: at `url`."""

    @property
    def own_url(self) -> str:
        """Scheme, host and port at which this process answers for itself."""
        return self.metrics_url.removesuffix("/metrics") or self.url


def encode_record(record: ShardRecord | WorkerRecord | GatewayRecord) -> bytes:
    return msgspec.msgpack.encode(record)
