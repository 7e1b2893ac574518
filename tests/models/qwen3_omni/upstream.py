"""Writes a pipeline of Qwen3-Omni's engine at the chat completions of the Duologue at UPSTREAM_URL, which stand in
for the model: `python upstream.py FOLDER`; prints its path."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

PIPELINE = """name = "qwen3-omni-checked"
plugin = "duologue.models.qwen3_omni.plugin:Qwen3Omni"
session_mode = "turn"
rebuild = "history"
max_sessions = 8

[options]
url = "http://{host}/v1"
model = "loopback-talk"

[[stages]]
name = "omni"
engine = "duologue.models.qwen3_omni.engine:build"
worker = "qwen3-omni"
slots = 8

[check]
units = 12
linger_ms = 200
deterministic = false
why = "another server answers when it likes"
"""


def main(folder: str) -> None:
    path = Path(folder) / "qwen3-omni-checked.toml"
    path.write_text(PIPELINE.format(host=urlsplit(os.environ["UPSTREAM_URL"]).netloc))
    print(path)


if __name__ == "__main__":
    main(sys.argv[1])
