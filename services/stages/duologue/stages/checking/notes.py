"""A plugin whose calls are noted, so that another process can make the same ones."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import msgspec

from duologue.model.pipeline import PipelineSpec
from duologue.model.plugin import DuplexModelPlugin
from duologue.protocol.duplex import SessionConfig

NEW_STATE, STAGE_CONFIGS = "new_state", "stage_configs"


class Call(msgspec.Struct, frozen=True):
    """One call for one session, without the state. Arguments are pickled when they are noted."""

    session: int
    method: str
    arguments: bytes


class NotedPlugin:
    """The plugin of the pipeline; every call that reads or changes a state goes through `call`."""

    def __init__(self, plugin: DuplexModelPlugin[Any]) -> None:
        self.plugin = plugin
        self.calls: list[Call] = []
        self._sessions = 0

    def open(self, config: SessionConfig) -> tuple[int, Any, tuple[bytes, ...]]:
        """A session: its number, its state and the configurations of its stages."""
        session, self._sessions = self._sessions, self._sessions + 1
        self._note(session, NEW_STATE, (config,))
        state = self.plugin.new_state(config)
        self._note(session, STAGE_CONFIGS, (config,))
        return session, state, tuple(self.plugin.stage_configs(config, state))

    def call(self, session: int, state: Any, method: str, *arguments: Any) -> Any:
        self._note(session, method, arguments)
        return getattr(self.plugin, method)(state, *arguments)

    def _note(self, session: int, method: str, arguments: tuple[Any, ...]) -> None:
        self.calls.append(Call(session, method, pickle.dumps(arguments)))


def write(path: Path, pipeline: PipelineSpec, calls: list[Call]) -> None:
    """For a process that this one starts, and for nobody else."""
    path.write_bytes(pickle.dumps((pipeline, calls)))


def read(path: Path) -> tuple[PipelineSpec, list[Call]]:
    pipeline, calls = pickle.loads(path.read_bytes())
    return pipeline, calls
