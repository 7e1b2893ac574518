"""The options of a bridge pipeline, typed: what `[options]` may say, with the defaults.

Used by both halves. A wrong key or value is a PipelineError that names it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from duologue.model.pipeline import PipelineError, PipelineSpec

_Rate = Annotated[int, msgspec.Meta(ge=8000, le=48_000)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]
_KiB = Annotated[int, msgspec.Meta(ge=64, le=1024 * 1024)]

Dialect = Literal["duplex", "openai"]


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: str
    """The realtime endpoint, `ws://` or `wss://`. Of a query it keeps what is there."""
    model: str = ""
    """The model's name there; empty: the server's own choice."""
    dialect: Dialect = "duplex"
    """`duplex`: vLLM-Omni and what speaks as it does (`duplex=1`). `openai`: the Realtime API of OpenAI, GA."""
    api_key_env: str = ""
    """The environment variable that holds the key; empty: none is sent."""
    headers: dict[str, str] = {}
    """More headers of the handshake. No secrets: they belong into `api_key_env`."""
    ca_file: str = ""
    """Certificates that are trusted besides the system's, for `wss://`."""
    connect_timeout_s: _Seconds = 5.0
    """For TCP, TLS and the upgrade."""
    open_timeout_s: _Seconds = 15.0
    """From the upgrade until the session is open there."""
    idle_timeout_s: _Seconds = 30.0
    """How long that server may say nothing while an answer is due."""
    resume_s: Annotated[float, msgspec.Meta(ge=0, le=600)] = 20.0
    """How long a session whose connection broke is tried to be resumed (`duplex`); 0: never."""
    heartbeat_s: _Seconds = 30.0
    """How often a session without input says that it lives (`duplex`)."""
    unit_ms: Annotated[int, msgspec.Meta(ge=10, le=2000)] = 80
    """How much sound goes up at once."""
    input_rate_hz: _Rate | None = None
    """Of the sound that goes up; without it 16000 (`duplex`) and 24000 (`openai`)."""
    output_rate_hz: _Rate = 24_000
    """Of the sound that is asked for. What a server tells of its own (`sample_rate_hz`) goes before it."""
    native_turns: bool | None = None
    """The model there decides when to speak; without it: in the `duplex` dialect, and with `turn_detection`."""
    turn_detection: dict[str, Any] | None = None
    """What that server is to use to tell turns apart, in its own words; without it the session does it here."""
    locks_instructions: bool | None = None
    """Instructions stand once something was heard; without it: in the `duplex` dialect."""
    tools: bool = True
    """The model there calls functions."""
    images: bool = False
    """It sees images."""
    video: bool = False
    """It takes camera frames with the sound (`duplex`)."""
    text_turns: bool = True
    """It answers what is written."""
    speed: bool = False
    """It speaks at the session's `speed`."""
    barge_in: bool = True
    """It can be interrupted."""
    extra_body: dict[str, Any] = {}
    """Given to it with every session, under what the session gives itself."""
    pending_up_kib: _KiB = 4096
    """Commands of one session that wait for the connection."""
    pending_down_kib: _KiB = 8192
    """Events of one session that wait to be read."""

    @property
    def heard_rate_hz(self) -> int:
        return self.input_rate_hz or (16_000 if self.dialect == "duplex" else 24_000)

    @property
    def decides(self) -> bool:
        """The model there decides by itself when to speak."""
        if self.native_turns is None:
            return self.dialect == "duplex" or self.turn_detection is not None
        return self.native_turns

    @property
    def locks(self) -> bool:
        return self.dialect == "duplex" if self.locks_instructions is None else self.locks_instructions


def read_options(pipeline: PipelineSpec) -> Options:
    """Raises PipelineError."""
    try:
        options = msgspec.convert(pipeline.options, Options)
    except msgspec.ValidationError as error:
        raise PipelineError(f"{pipeline.name}: options: {error}") from None
    parts = urlsplit(options.url)
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise PipelineError(f"{pipeline.name}: options.url: {options.url!r} is no ws:// or wss:// URL")
    if options.ca_file and parts.scheme != "wss":
        raise PipelineError(f"{pipeline.name}: options.ca_file: {options.url!r} is not encrypted")
    if options.video and options.dialect != "duplex":
        raise PipelineError(f"{pipeline.name}: options.video: only the duplex dialect takes camera frames")
    if any(name.lower() == "authorization" for name in options.headers):
        raise PipelineError(f"{pipeline.name}: options.headers: name the key's variable in options.api_key_env")
    if len(pipeline.stages) != 1:
        raise PipelineError(f"{pipeline.name}: a bridge has one stage")
    return options
