"""`duologue status`: processes, sessions and load of the running system."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

import msgspec
import psutil
from rich.console import Console
from rich.table import Table

from duologue.cli.errors import UserError
from duologue.cli.home import Home, SystemState
from duologue.model.records import GatewayRecord, ShardRecord, WorkerRecord
from duologue.store.ports import Registration, StoreUnavailable
from duologue.store.registrations import list_registrations

RECORDS = {"gateway": GatewayRecord, "shard": ShardRecord, "worker": WorkerRecord}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--home", type=Path, help="the home of the system (.duologue)")
    parser.add_argument("--redis-url", help="look at the registrations in this store instead")
    parser.add_argument("--json", action="store_true", help="for programs")
