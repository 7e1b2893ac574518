"""The client library: one class, its configuration, its errors."""

from duologue.client.client import DuplexClient
from duologue.client.config import AudioFormat, ReconnectPolicy, SessionConfig
from duologue.client.errors import (
    DuplexClientError,
    DuplexConnectionError,
    DuplexProtocolError,
    DuplexSessionClosedError,
)
from duologue.client.events import ConnectionResumed, Event
from duologue.client.responses import ResponseHandle
from duologue.client.urls import build_realtime_url
from duologue.client.wav import BadWav, read_pcm16_wav, write_pcm16_wav

__all__ = [
    "AudioFormat",
    "BadWav",
    "ConnectionResumed",
    "DuplexClient",
    "DuplexClientError",
    "DuplexConnectionError",
    "DuplexProtocolError",
    "DuplexSessionClosedError",
    "Event",
    "ReconnectPolicy",
    "ResponseHandle",
    "SessionConfig",
    "build_realtime_url",
    "read_pcm16_wav",
    "write_pcm16_wav",
]
