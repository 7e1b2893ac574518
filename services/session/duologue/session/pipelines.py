"""The models a shard serves: each pipeline with its plugin, made once per process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from duologue.model.pipeline import PipelineError, PipelineSpec, resolve
from duologue.model.plugin import DuplexModelPlugin, as_deployed
from duologue.model.records import PipelineRecord
from duologue.protocol.duplex import DuplexCapabilities
from duologue.protocol.realtime.errors import RealtimeProtocolError


class ServedPipeline(msgspec.Struct, frozen=True):
    spec: PipelineSpec
    plugin: DuplexModelPlugin[Any]
    capabilities: DuplexCapabilities

    @property
    def name(self) -> str:
        return self.spec.name

    def record(self, sessions: int, *, ready: bool, chat_turns: int = 0) -> PipelineRecord:
        """What the registry is told of it."""
        traits = self.plugin.traits
        return PipelineRecord(
            name=self.name,
            capabilities=self.capabilities,
            native_turns=traits.native_turns,
            input_rate_hz=traits.input_rate_hz,
            output_rate_hz=traits.output_rate_hz,
            max_sessions=self.spec.max_sessions,
            sessions=sessions,
            ready=ready,
            max_chat_turns=self.spec.max_chat_turns if self.capabilities.supports_chat_completions else 0,
            chat_turns=chat_turns,
            session_mode=self.spec.session_mode,
        )


class Pipelines:
    """By name; the first one is used where a client names no model."""

    def __init__(self, served: Sequence[ServedPipeline]) -> None:
        if not served:
            raise PipelineError("a session shard needs at least one pipeline")
        self._served = {pipeline.name: pipeline for pipeline in served}
        if len(self._served) != len(served):
            raise PipelineError("two pipelines have the same name")
        self.first = served[0]

    def __iter__(self) -> Iterator[ServedPipeline]:
        return iter(self._served.values())

    def find(self, model: object) -> ServedPipeline:
        """The pipeline that serves `model` (the value in the session object, if any).

        Raises RealtimeProtocolError `model_not_found`."""
        if model is None or model == "":
            return self.first
        pipeline = self._served.get(model) if isinstance(model, str) else None
        if pipeline is None:
            shown = model if isinstance(model, str) else "of that type"
            raise RealtimeProtocolError("model_not_found", f"no model {shown!s}", param="session.model")
        return pipeline


def load_served(specs: Sequence[PipelineSpec]) -> Pipelines:
    """Import the plugins and let them read their options. Raises PipelineError."""
    served = []
    for spec in specs:
        plugin_class = resolve(spec.plugin)
        if not (isinstance(plugin_class, type) and issubclass(plugin_class, DuplexModelPlugin)):
            raise PipelineError(f"pipeline {spec.name}: {spec.plugin} is no DuplexModelPlugin")
        plugin = plugin_class(spec)
        plugin.traits = as_deployed(plugin.traits, spec)
        served.append(ServedPipeline(spec, plugin, plugin.capabilities(spec.max_sessions)))
    return Pipelines(served)
