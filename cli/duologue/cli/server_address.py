"""Which server a command talks to, and whose certificate it trusts.

Rule 1. What is said on the command line counts; else the system that runs in the home, with its own authority.
Rule 2. Trust is set for the whole process, as SSL_CERT_FILE does: every library here asks OpenSSL for it.
"""

from __future__ import annotations

import argparse
import os
import ssl
from pathlib import Path

from duologue.cli.errors import UserError
from duologue.cli.home import Home, SystemState

DEFAULT_URL = "ws://127.0.0.1:8080"


def add_ca_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ca", type=Path, help="trust this authority (PEM) for wss and https, and no other")


def server_url(url: str | None, ca: Path | None, home: Home) -> str:
    """The address to connect to; its authority is trusted from now on. Raises UserError."""
    running = home.read_state() if url is None else None
    trust(ca, running)
    return url or (running.url if running is not None else DEFAULT_URL)


def trust(ca: Path | None, running: SystemState | None = None) -> None:
    """Make this process trust `ca`, else the authority of the running system, if it has one. Raises UserError."""
    if ca is None and running is not None and running.ca:
        ca = Path(running.ca)
    if ca is None:
        return
    try:
        ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        why = error.strerror if isinstance(error, OSError) and error.errno else "no certificate in PEM"
        raise UserError(f"--ca {ca}: {why}") from None
    os.environ["SSL_CERT_FILE"] = str(ca)
