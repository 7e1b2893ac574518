"""What is checked: one pipeline, its plugin, its engines, and how conversations with it begin."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from duologue.model.pipeline import PipelineSpec, resolve
from duologue.model.plugin import as_deployed
from duologue.protocol.duplex import Dialect, SessionConfig
from duologue.stages.checking import sounds
from duologue.stages.checking.conversation import Talk
from duologue.stages.checking.notes import NotedPlugin
from duologue.stages.checking.replay import Replayed
from duologue.stages.checking.stack import Stack
from duologue.stages.checking.table import CheckTable, as_checked, check_table, sound_path


class CheckFailed(Exception):
    """A check that failed; the message says what was found."""


class Declared(Exception):
    """The pipeline says that it cannot promise this; the message says why, and what was looked at all the same."""


class Subject:
    """Raises PipelineError, or what the model's library raises, if it cannot be loaded."""

    def __init__(self, pipeline: PipelineSpec, folder: Path) -> None:
        self.table: CheckTable = check_table(pipeline)
        self.pipeline = as_checked(pipeline, self.table)
        self.plugin = NotedPlugin(resolve(self.pipeline.plugin)(self.pipeline))
        self.traits = as_deployed(self.plugin.plugin.traits, self.pipeline)
        self.replays: dict[int, Replayed] = {}
        """The noted calls, made again in another process, by its hash seed."""
        self._sound_path = sound_path(self.pipeline, self.table, folder)
        table = self.table
        self.stack = Stack(
            self.pipeline,
            patience_s=table.patience_s,
            stop_steps=table.stop_steps,
            linger_s=table.linger_ms / 1000,
        )

    @property
    def why_not(self) -> str:
        """Why it need not answer the same sound the same way."""
        return self.table.why or "check.deterministic is false"

    def config(self, session: Mapping[str, Any] | None = None) -> SessionConfig:
        """As a client of the table's session object gets it."""
        given = dict(self.table.session if session is None else session)
        extra = {"auto_response": self.traits.native_turns, **given.get("extra_body", {})}
        given["extra_body"] = extra
        return SessionConfig.open(given, dialect=Dialect.duplex, model=self.pipeline.name)

    def sound(self, seed: int, units: int) -> list[bytes]:
        """So many units of input, another sound for each seed. A sound of the table begins `seed` units later."""
        rate, unit_ms = self.traits.input_rate_hz, self.traits.unit_ms
        if self._sound_path is None:
            return sounds.cut(sounds.made(seed, units * unit_ms / 1000, rate), unit_ms, rate, units)
        silence = [bytes(4 * (unit_ms * rate // 1000))] * (seed % 4)
        return [*silence, *sounds.cut(sounds.read(self._sound_path, rate), unit_ms, rate, units)][:units]

    def talk(self, seed: int = 0, *, session: Mapping[str, Any] | None = None) -> Talk:
        """A session that is about to begin."""
        sound = self.sound(seed, self.table.units)
        return Talk(self.stack, self.plugin, self.config(session), sound, self.table.prompt)

    def whole(self, seed: int = 0) -> Talk:
        """A conversation from beginning to end, alone; closed."""
        talk = self.talk(seed)
        talk.hold(self.table.units)
        talk.close()
        return talk
