"""Four stages of 400 ms answer units of one second in real time, if a unit need not wait for the one before it.

    python bench/pipelining.py [--seconds 60] [--stage-ms 400] [--step 5]

Starts a system with `loopback-1s` and with the same pipeline under `pipelined = false`, speaks to both for so long, and
prints how far each answer is behind: the time from the append that completes a unit to the sound that answers it.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from websockets.asyncio.client import ClientConnection, connect

from duologue.cli.temporary import temporary_system
from duologue.model.catalog import installed

MODEL = "loopback-1s"
UNIT_MS, APPEND_MS, RATE_HZ = 1000, 100, 16_000
AUDIO = '"type":"response.output_audio.delta"'
PATIENCE_S = 120.0
"""How long the answers may take once everything has been said."""


def one_by_one(folder: Path) -> Path:
    """The pipeline under another name, with its own workers, whose units go one by one."""
    text = installed()[MODEL].read_text()
    text = text.replace(f'name = "{MODEL}"', f'name = "{MODEL}-one-by-one"\npipelined = false', 1)
    path = folder / "one-by-one.toml"
    path.write_text(text.replace('worker = "loopback-', 'worker = "one-by-one-'))
    return path


def session(model: str, stage_ms: float) -> str:
    script = [{"speak": {"units": 100_000, "text": "word " * 1000}}]
    loopback = {"script": script, "stage_ms": [stage_ms] * 4}
    body = {
        "model": model,
        "input_audio_format": "pcm16",
        "sample_rate_hz": RATE_HZ,
        "turn_detection": None,
        "extra_body": {"auto_response": True, "loopback": loopback},
    }
    return json.dumps({"type": "session.update", "session": body})


async def lags(url: str, model: str, stage_ms: float, seconds: int) -> list[float]:
    """Seconds behind, of each unit."""
    wave = np.sin(np.arange(APPEND_MS * RATE_HZ // 1000) / 7) * 9000
    append = json.dumps(
        {"type": "input_audio_buffer.append", "audio": base64.b64encode(wave.astype("<i2").tobytes()).decode()}
    )
    complete: list[float] = []
    behind: list[float] = []
    async with connect(f"{url}/v1/realtime?duplex=1&autostart=0", max_size=None, compression=None) as ws:
        await ws.send(session(model, stage_ms))
        while '"type":"session.created"' not in str(await ws.recv())[:64]:
            pass
        reading = asyncio.create_task(_read(ws, complete, behind, seconds))
        due = asyncio.get_running_loop().time()
        for n in range(seconds * UNIT_MS // APPEND_MS):
            await ws.send(append)
            if (n + 1) * APPEND_MS % UNIT_MS == 0:
                complete.append(time.perf_counter())
            due += APPEND_MS / 1000
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
        async with asyncio.timeout(PATIENCE_S):
            await reading
        await ws.send('{"type":"session.close"}')
    return behind


async def _read(ws: ClientConnection, complete: list[float], behind: list[float], units: int) -> None:
    async for frame in ws:
        if AUDIO in str(frame)[:64]:
            behind.append(time.perf_counter() - complete[len(behind)])
            if len(behind) == units:
                return
        elif '"type":"error"' in str(frame)[:64]:
            raise SystemExit(str(frame)[:300])


async def both(url: str, options: argparse.Namespace) -> tuple[list[float], list[float]]:
    one, other = (lags(url, model, options.stage_ms, options.seconds) for model in (MODEL, f"{MODEL}-one-by-one"))
    pipelined, serial = await asyncio.gather(one, other)
    return pipelined, serial


def main() -> None:
    parser = argparse.ArgumentParser(description="How far behind answers are, with units pipelined and one by one.")
    parser.add_argument("--seconds", type=int, default=60, help="of speech (%(default)s)")
    parser.add_argument("--stage-ms", type=float, default=400, help="compute of each of four stages (%(default)s)")
    parser.add_argument("--step", type=int, default=5, help="seconds between the lines (%(default)s)")
    options = parser.parse_args()
    # A session that falls behind is told so after 8 s; here the curve is wanted.
    os.environ["DUOLOGUE_SESSION__MAX_INPUT_AGE_S"] = str(2 * options.seconds)
    with tempfile.TemporaryDirectory() as folder:
        path = one_by_one(Path(folder))
        with temporary_system(f"{MODEL},{path}") as state:
            pipelined, serial = asyncio.run(both(state.url, options))
    print("| second | pipelined: s behind | one by one: s behind |")
    print("|---|---|---|")
    for n in sorted({0, *range(options.step - 1, options.seconds, options.step)}):
        print(f"| {n + 1} | {pipelined[n]:.2f} | {serial[n]:.2f} |")


if __name__ == "__main__":
    main()
