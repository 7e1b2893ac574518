"""The `duologue` command. Each subcommand is one module with `add_arguments` and `run`."""

from __future__ import annotations

import argparse
import importlib
import sys
from importlib.metadata import version

from duologue.cli.errors import UserError

#: Imported only when chosen: `duologue status` needs no model, `duologue talk` no gateway.
COMMANDS = {
    "up": ("duologue.cli.up", "run the whole system on this machine"),
    "gateway": ("duologue.cli.gateway", "run one gateway, or several on one port, of a system elsewhere"),
    "talk": ("duologue.cli.talk", "speak a WAV or the microphone to a model"),
    "demo": ("duologue.cli.demo", "hold one spoken conversation from end to end and print it"),
    "bench": ("duologue.cli.bench.command", "measure latency and CPU under load"),
    "drain": ("duologue.cli.drain", "take one process out of service without ending what it serves"),
    "status": ("duologue.cli.status", "processes, sessions and load of the running system"),
    "keys": ("duologue.cli.keys", "make the keys by which processes on several machines know each other"),
    "sessions": ("duologue.cli.sessions", "who holds which session"),
    "session": ("duologue.cli.session", "the story of one session, or its end"),
    "model": ("duologue.cli.model", "write a new model, or check one against the contract"),
    "doctor": ("duologue.cli.doctor", "say what is missing on this machine"),
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="duologue", description="Serves full-duplex speech models.")
    parser.add_argument("--version", action="version", version=f"duologue {version('duologue')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = next((word for word in arguments or sys.argv[1:] if not word.startswith("-")), "")
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name == chosen:
            importlib.import_module(module).add_arguments(command)
    options = parser.parse_args(arguments)
    try:
        return int(importlib.import_module(COMMANDS[options.command][0]).run(options))
    except UserError as error:
        print(f"duologue {options.command}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
