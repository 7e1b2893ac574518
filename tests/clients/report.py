"""The outcomes: a table to look at, a record in the repository, and docs/clients.md, written from the record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from clients.environments import CLIENTS, HERE, ROOT, Client
from clients.stage import SCENES, Outcome

RECORD = HERE / "record.json"
PAGE = ROOT / "docs" / "clients.md"
Record = dict[str, Any]

TITLES = {
    "conversation": "conversation",
    "interruption": "interruption",
    "tools": "tool call",
    "reconnect": "reconnect",
    "dropped": "dropped socket",
    "leave": "clean close",
}
MODELS = {"cascade-stub": "cascade, with a stub as its thinker"}

HEAD = """# The clients that people have

Each of these was installed as published, in an environment of its own, and ran unchanged against a running server.
`make clients` does it again; `tests/clients/run --record` writes this page from what came out. Nothing here is
written by hand.

"""

CONNECT = """
## How to point each at Duologue

`h:p` is host and port, `m` a model, `k` a key (any text where the server has no keys).

| client | how |
|---|---|
| openai-python | `AsyncOpenAI(websocket_base_url="ws://h:p/v1", api_key="k").realtime.connect(model="m")` |
| openai-agents | `runner.run(model_config={"url": "ws://h:p/v1/realtime?model=m", "api_key": "k"})` |
| livekit-plugins-openai | `RealtimeModel(model="m", base_url="http://h:p/v1", api_key="k")` |
| pipecat-ai | `OpenAIRealtimeLLMService(api_key="k", base_url="ws://h:p/v1/realtime", settings=…Settings(model="m"))` |
| @openai/agents | `new OpenAIRealtimeWebSocket({url: "wss://h:p/v1/realtime?model=m"})` as the session's `transport` |
| openai (npm) | `new OpenAIRealtimeWS({model: "m"}, new OpenAI({baseURL: "https://h:p/v1", apiKey}))`: always TLS |

`duologue up --tls` serves TLS and says where its CA is; Node trusts it by `NODE_EXTRA_CA_CERTS`.

**Coming back.** openai-python resumes by query: with `on_reconnecting=` it dials again with `resume_session`,
`resume_token` and `last_seq`, and gets what it missed. LiveKit opens a new session and sends its history again. The
others tell their application that the connection is lost; the session ends after its `disconnect_grace_s`.
"""


def entry(client: Client, outcomes: Sequence[Outcome]) -> Record:
    """One client's part of the record."""
    return {"versions": client.versions(), "outcomes": [asdict(outcome) for outcome in outcomes]}


def record(entries: Mapping[str, Record]) -> None:
    """Keep what these clients did, beside what the others did before, and write the page."""
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    known.update(entries)
    ordered = {client.name: known[client.name] for client in CLIENTS if client.name in known}
    RECORD.write_text(json.dumps(ordered, indent=2, ensure_ascii=False) + "\n")
    PAGE.write_text(page(ordered))


def page(entries: Mapping[str, Record]) -> str:
    return HEAD + table(entries) + _notes() + CONNECT


def table(entries: Mapping[str, Record]) -> str:
    """Markdown: a row for each client, a column for each scene on each model."""
    columns = [(scene.model, scene.name) for scene in SCENES]
    heads = [f"{TITLES[name]} ({model})" for model, name in columns]
    lines = [f"| client | versions | {' | '.join(heads)} |", "|---|---|" + "---|" * len(columns)]
    for name, told in entries.items():
        outcomes = {(o["model"], o["scene"]): o for o in told["outcomes"]}
        cells = [_cell(outcomes.get(column)) for column in columns]
        versions = ", ".join(f"{package} {version}" for package, version in told["versions"].items())
        lines.append(f"| {name} | {versions} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(outcome: Record | None) -> str:
    if outcome is None:
        return "-"
    return "passed" if outcome["passed"] else f"**failed**: {outcome['note']}".replace("|", "\\|").replace("\n", " ")


def _notes() -> str:
    told = "; ".join(f"`{name}` is the {text}" for name, text in MODELS.items())
    return f"""
{told}. A scene has also passed only if every event was what the `openai` package's types promise and in its order
(seen between client and server, where TLS does not hide it), no `error` was sent, and the place was free again.

| scene | what happens |
|---|---|
| conversation | a typed turn and a spoken one, both answered aloud; turn detection on the server |
| interruption | somebody speaks into an answer: it stops, is truncated to what was heard, and the next one is spoken |
| tool call | the model calls a function; its result comes back as speech |
| reconnect | the connection is reset in the middle of an answer, and the conversation goes on |
| dropped socket | the same where a client does not come back: a clean error there, a free place here |
| clean close | the client leaves: the session ends at once |
"""
