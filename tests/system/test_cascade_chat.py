"""Chat completions by the voice agent: a spoken question is heard, and answered in words and in sound."""

from __future__ import annotations

import base64
import io
import wave
from pathlib import Path
from typing import Any

import openai
import pytest
from system.running import RunningSystem

from duologue.models.cascade.parts import missing_parts
from duologue.models.cascade.voices import RENDERINGS, say, silence

pytestmark = [
    pytest.mark.system,
    pytest.mark.cascade,
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(missing_parts()), reason="the model packages of the cascade are not installed"),
]


def question() -> str:
    """A WAV file in base64: a question, and a pause after it."""
    pcm = b"".join(
        (part.clip(-1, 1) * 32767).astype("<i2").tobytes()
        for part in (say("What is the capital of France?", next(iter(RENDERINGS))), silence(300))
    )
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(pcm)
    return base64.b64encode(out.getvalue()).decode()


async def test_a_spoken_question_is_answered_whole_and_in_a_stream(tmp_path: Path) -> None:
    sound: Any = {"type": "input_audio", "input_audio": {"data": question(), "format": "wav"}}
    with RunningSystem(tmp_path / "home", "--pipelines", "cascade") as system:
        url = f"http://127.0.0.1:{system.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="anything", max_retries=0) as client:
            done = await client.chat.completions.create(
                model="cascade",
                messages=[{"role": "user", "content": [sound]}],
                modalities=["text", "audio"],
                audio={"voice": "alloy", "format": "wav"},
            )
            audio = done.choices[0].message.audio
            assert audio is not None and "paris" in audio.transcript.lower()
            with wave.open(io.BytesIO(base64.b64decode(audio.data))) as file:
                assert file.getframerate() == 24_000 and file.getnframes() > 12_000
            assert done.usage is None or done.usage.completion_tokens > 0
            stream = await client.chat.completions.create(
                model="cascade", messages=[{"role": "user", "content": [sound]}], stream=True
            )
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            assert "paris" in text.lower()
