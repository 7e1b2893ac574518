"""Writes the pipeline of a bridge to the Duologue at UPSTREAM_URL: `python upstream.py FOLDER`; prints its path."""

from __future__ import annotations

import os
import sys
from pathlib import Path

PIPELINE = """name = "bridge-checked"
plugin = "duologue.models.bridge.plugin:Bridge"
rebuild = "history"
max_sessions = 8

[options]
url = "{url}"
dialect = "duplex"
model = "loopback"

[[stages]]
name = "upstream"
engine = "duologue.models.bridge.engine:build"
worker = "bridge"
slots = 8

[check]
units = 12
linger_ms = 60
deterministic = false
why = "another server answers when it likes"

[check.session.extra_body.loopback]
script = [{{ listen = 2 }}, {{ speak = {{ units = 4, text = "one two three four" }} }}, {{ listen = 1 }}]
"""


def main(folder: str) -> None:
    path = Path(folder) / "bridge-checked.toml"
    path.write_text(PIPELINE.format(url=os.environ["UPSTREAM_URL"]))
    print(path)


if __name__ == "__main__":
    main(sys.argv[1])
