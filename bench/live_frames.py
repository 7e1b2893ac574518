"""Sessions at the pace of speech against a running server: how late each frame of 80 ms is answered.

    duologue up --pipelines personaplex --port 8080
    python bench/live_frames.py --url ws://127.0.0.1:8080 --model personaplex --sessions 4 --seconds 20

For a model that answers every frame, by listening or by sound. The lag of a frame is from the moment its last sample
was sent to its answer; `kept up`: the last frames are no later than the first.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import time
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect

RATE_HZ, FRAME, FRAME_S = 24_000, 1920, 0.08
ANSWERS = ("response.listen", "response.output_audio.delta")


async def live(url: str, model: str, seed: int, frames: int) -> list[float]:
    """One session: the lag of each frame, ms."""
    async with connect(f"{url}/v1/realtime?duplex=1&autostart=0", compression=None, max_size=None) as ws:
        await ws.send(json.dumps({"type": "session.update", "session": _session(model, seed)}))
        while (event := json.loads(await ws.recv()))["type"] != "session.created":
            if event["type"] == "error":
                raise SystemExit(event["error"]["message"])
        sent: list[float] = []
        hearing = asyncio.create_task(_answers(ws, frames))
        try:
            await _speak(ws, seed, frames, sent)
            async with asyncio.timeout(60):
                came = await hearing
        finally:
            hearing.cancel()
        await ws.send(json.dumps({"type": "session.close"}))
        return [(b - a) * 1000 for a, b in zip(sent, came, strict=True)]


def _session(model: str, seed: int) -> dict[str, Any]:
    return {
        "model": model,
        "modalities": ["audio", "text"],
        "input_audio_format": "pcm16",
        "output_audio_format": "pcm16",
        "audio": {"input": {"sample_rate_hz": RATE_HZ}, "output": {"sample_rate_hz": RATE_HZ}},
        "turn_detection": None,
        "extra_body": {"auto_response": True, model: {"seed": seed}},
    }


async def _speak(ws: ClientConnection, seed: int, frames: int, sent: list[float]) -> None:
    noise = np.random.default_rng(seed)
    await asyncio.sleep(noise.uniform(0, FRAME_S))  # people do not start at the same moment
    begun = time.perf_counter()
    for n in range(frames):
        await asyncio.sleep(max(0.0, begun + n * FRAME_S - time.perf_counter()))
        pcm = (noise.standard_normal(FRAME) * 3000).astype("<i2").tobytes()
        await ws.send(json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(pcm).decode()}))
        sent.append(time.perf_counter())


async def _answers(ws: ClientConnection, frames: int) -> list[float]:
    came: list[float] = []
    while len(came) < frames:
        if json.loads(await ws.recv())["type"] in ANSWERS:
            came.append(time.perf_counter())
    return came


async def measure(url: str, model: str, sessions: int, seconds: float) -> None:
    frames = round(seconds / FRAME_S)
    runs = await asyncio.gather(*(live(url, model, n, frames) for n in range(sessions)))
    for n, lags in enumerate(runs):
        quarter = len(lags) // 4
        # The first quarter has the opening to catch up with.
        late = float(np.median(lags[-quarter:]) - np.median(lags[quarter : 2 * quarter]))
        p50, p95, worst = np.percentile(lags[quarter:], [50, 95, 100])
        told = f"session {n}: lag p50 {p50:.0f} ms, p95 {p95:.0f} ms, worst {worst:.0f} ms"
        print(f"{told}; opening {max(lags[:quarter]):.0f} ms; {'kept up' if late < FRAME_S * 1000 else 'fell behind'}")


def main() -> None:
    parser = argparse.ArgumentParser(description="How late frames are answered, at the pace of speech.")
    parser.add_argument("--url", default="ws://127.0.0.1:8080")
    parser.add_argument("--model", default="personaplex")
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    asyncio.run(measure(options.url, options.model, options.sessions, options.seconds))


if __name__ == "__main__":
    main()
