"""Run the real clients against a system of their own, print what became of it, and say it by the exit code.

`tests/clients/run [--only NAMES] [--scenes NAMES] [--models NAMES] [--record]`. Python clients talk over plain
WebSockets, npm clients over TLS.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from clients import report, sounds
from clients.environments import CLIENTS, Client, chosen
from clients.served import Served, serve
from clients.stage import Outcome, Scene, perform, scenes_of


def main() -> int:
    options = _options()
    try:
        clients = chosen(options.only)
    except KeyError as error:
        print(f"no client is called {error}; there are {', '.join(client.name for client in CLIENTS)}", file=sys.stderr)
        return 2
    for client in clients:
        client.build()
        print(f"{client.name}: {client.versions()}", flush=True)
    sounds.make()
    logs = Path(options.logs or tempfile.mkdtemp(prefix="duologue-client-logs-"))
    logs.mkdir(parents=True, exist_ok=True)
    outcomes: dict[Client, list[Outcome]] = {}
    for tls in (False, True):
        due = {client: _due(client, options) for client in clients if client.node == tls}
        models = {scene.model for scenes in due.values() for scene in scenes}
        if models:
            with serve(tls=tls, models=models, logs=logs) as served:
                outcomes |= asyncio.run(_all(served, due, options.patience, logs))
    entries = {client.name: report.entry(client, played) for client, played in outcomes.items()}
    print(f"\n{report.table(entries)}")
    if options.record:
        report.record(entries)
    played = [outcome for played in outcomes.values() for outcome in played]
    failed = sum(not outcome.passed for outcome in played)
    if failed:
        print(f"logs are in {logs}")
    print(f"{len(played) - failed} passed, {failed} failed")
    return 1 if failed or not played else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/clients/run", description=__doc__)
    parser.add_argument("--only", default="", help="clients, with commas")
    parser.add_argument("--scenes", default="", help="scenes, with commas")
    parser.add_argument("--models", default="", help="models, with commas")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds that one step of a scene may take")
    parser.add_argument("--record", action="store_true", help="write docs/clients.md from what comes out")
    parser.add_argument("--logs", default="", help="where the programs' output goes")
    options = parser.parse_args()
    if options.record and (options.scenes or options.models):
        parser.error("a record is of whole runs: leave --scenes and --models away")
    return options


def _due(client: Client, options: argparse.Namespace) -> list[Scene]:
    names, models = options.scenes.split(","), options.models.split(",")
    return [
        scene
        for scene in scenes_of(client)
        if (not options.scenes or scene.name in names) and (not options.models or scene.model in models)
    ]


async def _all(
    served: Served, due: dict[Client, list[Scene]], patience: float, logs: Path
) -> dict[Client, list[Outcome]]:
    """One after the other: a scene is about its client, not about the company that it keeps."""
    outcomes: dict[Client, list[Outcome]] = {}
    for client, scenes in due.items():
        outcomes[client] = []
        for scene in scenes:
            outcome = await perform(served, client, scene, patience=patience, logs=logs)
            outcomes[client].append(outcome)
            word = "passed" if outcome.passed else "FAILED"
            print(
                f"{word} {client.name}: {scene.name} on {scene.model} ({outcome.seconds} s): {outcome.note}", flush=True
            )
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
