"""docs/clients.md is what the record says, and the pins name no machine."""

from __future__ import annotations

import json

import pytest
from clients.environments import CLIENTS, HERE, chosen
from clients.report import PAGE, RECORD, page

pytestmark = pytest.mark.unit


def test_the_page_is_written_from_the_record() -> None:
    assert PAGE.read_text() == page(json.loads(RECORD.read_text()))


def test_every_client_is_in_the_record_with_its_pinned_version() -> None:
    told = json.loads(RECORD.read_text())
    assert list(told) == [client.name for client in CLIENTS]
    for client in CLIENTS:
        pins = "".join(path.read_text() for path in client.pins())
        for package, version in told[client.name]["versions"].items():
            assert f"{package}=={version}" in pins or f'"{package}": "{version}"' in pins, (client.name, package)


def test_no_lock_file_names_a_registry() -> None:
    for lock in HERE.glob("*/package-lock.json"):
        assert '"resolved"' not in lock.read_text(), lock


def test_clients_are_chosen_by_name_or_folder() -> None:
    assert [client.folder for client in chosen("pipecat,@openai/agents")] == ["pipecat", "agents-js"]
    assert chosen("") == list(CLIENTS)
    with pytest.raises(KeyError, match="nobody"):
        chosen("nobody")
