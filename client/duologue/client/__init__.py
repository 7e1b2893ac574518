"""The client library: a session as one class, its configuration, its errors, and what measures it.

Depends on websockets, msgspec and `duologue.protocol`, and on nothing else.
"""

from duologue.client.base import DuplexClientBase
from duologue.client.client import DuplexClient
from duologue.client.collector import EventCollector, Seen
from duologue.client.config import AudioFormat, SessionConfig
from duologue.client.errors import (
    DuplexClientError,
    DuplexConnectionError,
    DuplexInvalidRequestError,
    DuplexProtocolError,
    DuplexRateLimitError,
    DuplexReconnectError,
    DuplexRefusedError,
    DuplexResumeError,
    DuplexServerError,
    DuplexSessionClosedError,
)
from duologue.client.events import ConnectionResumed, Event
from duologue.client.observer import Observer
from duologue.client.reconnect import ReconnectPolicy
from duologue.client.responses import ResponseHandle
from duologue.client.timing import ResponseTiming, Spread, TimingSummary
from duologue.client.trace import DuplexTrace, TraceEntry
from duologue.client.urls import build_realtime_url
from duologue.client.wav import BadWav, read_pcm16_wav, write_pcm16_wav

__all__ = [
    "AudioFormat",
    "BadWav",
    "ConnectionResumed",
    "DuplexClient",
    "DuplexClientBase",
    "DuplexClientError",
    "DuplexConnectionError",
    "DuplexInvalidRequestError",
    "DuplexProtocolError",
    "DuplexRateLimitError",
    "DuplexReconnectError",
    "DuplexRefusedError",
    "DuplexResumeError",
    "DuplexServerError",
    "DuplexSessionClosedError",
    "DuplexTrace",
    "Event",
    "EventCollector",
    "Observer",
    "ReconnectPolicy",
    "ResponseHandle",
    "ResponseTiming",
    "Seen",
    "SessionConfig",
    "Spread",
    "TimingSummary",
    "TraceEntry",
    "build_realtime_url",
    "read_pcm16_wav",
    "write_pcm16_wav",
]
