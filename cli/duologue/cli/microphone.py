"""Microphone and loudspeaker of this machine, through the sounddevice package (not installed by default)."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

from duologue.cli.errors import UserError

OUT_RATE_HZ = 24_000
#: Chunks that wait to be sent; a network that is slower than speech loses the oldest.
CAPACITY = 256


class Microphone:
    """Mono PCM16 at `rate_hz` in, at 24 kHz out. Raises UserError when there is no package or no device."""

    def __init__(self, rate_hz: int) -> None:
        self.dropped = 0
        self._rate_hz = rate_hz
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue(CAPACITY)
        self._in: Any = None
        self._out: Any = None

    def __enter__(self) -> Self:
        try:
            sound = importlib.import_module("sounddevice")
        except (ImportError, OSError) as error:
            raise UserError(f"--mic needs the sounddevice package (pip install sounddevice): {error}") from None
        loop = asyncio.get_running_loop()

        def captured(data: Any, frames: int, time: Any, status: Any) -> None:
            loop.call_soon_threadsafe(self._keep, bytes(data))

        try:
            self._in = sound.RawInputStream(samplerate=self._rate_hz, channels=1, dtype="int16", callback=captured)
            self._out = sound.RawOutputStream(samplerate=OUT_RATE_HZ, channels=1, dtype="int16")
            self._in.start()
            self._out.start()
        except sound.PortAudioError as error:
            raise UserError(f"no usable sound device: {error}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for stream in (self._in, self._out):
            if stream is not None:
                stream.close()

    def _keep(self, data: bytes) -> None:
        if self._chunks.full():
            self._chunks.get_nowait()
            self.dropped += 1
        self._chunks.put_nowait(data)

    async def chunks(self, ms: int) -> AsyncIterator[bytes]:
        """Pieces of at least `ms`, for ever."""
        size, waiting = self._rate_hz * ms // 1000 * 2, bytearray()
        while True:
            waiting += await self._chunks.get()
            while len(waiting) >= size:
                yield bytes(waiting[:size])
                del waiting[:size]

    def play(self, pcm: bytes) -> None:
        self._out.write(pcm)
