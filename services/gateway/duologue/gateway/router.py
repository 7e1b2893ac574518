"""Which shard a session goes to, and who is there at all, as the registry last told. SANS-I/O.

Rule 1. A new session goes to the first shard, in the weighted rendezvous order of its id, that takes it; to one on
        standby only when no active one does. A session whose shard is lost goes to the first of the others, on
        standby or not, that can read what it saved: every gateway and shard computes the same order.
Rule 2. An owner is found by its incarnation, never by its name: a restarted shard owns nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from duologue.model.records import PipelineRecord, ShardRecord
from duologue.model.rendezvous import weight
from duologue.store.ports import Registration

MAX_REMEMBERED: Final = 256
"""Shards that are gone of which it is known what they saved."""

_decode_shard = msgspec.msgpack.Decoder(ShardRecord).decode


class Shard(msgspec.Struct, frozen=True):
    """One live shard."""

    id: str
    incarnation: str
    endpoint: str
    record: ShardRecord

    def pipeline(self, model: str) -> PipelineRecord | None:
        return next((pipeline for pipeline in self.record.pipelines if pipeline.name == model), None)

    def takes(self, model: str) -> bool:
        """Whether it has room for one more session of this model; empty: of any model."""
        record = self.record
        if not record.accepting or record.sessions >= record.max_sessions:
            return False
        if not model:
            return True
        pipeline = self.pipeline(model)
        return pipeline is not None and pipeline.ready and pipeline.sessions < pipeline.max_sessions


class Router:
    """The fleet as last heard of. `update` replaces it whole."""

    def __init__(self) -> None:
        self._by_incarnation: dict[str, Shard] = {}
        self._gateways: frozenset[str] = frozenset()
        self._models: dict[str, PipelineRecord] = {}
        self._wrote: dict[str, int] = {}
        """The version of the checkpoints of each incarnation, also of those that are gone."""

    def update(self, members: Iterable[Registration]) -> None:
        """Take over a roster. A shard whose record cannot be read (another version) is left out."""
        shards: dict[str, Shard] = {}
        gateways: set[str] = set()
        models: dict[str, PipelineRecord] = {}
        for member in members:
            if member.kind == "gateway":
                gateways.add(member.incarnation)
            elif member.kind == "shard":
                try:
                    record = _decode_shard(member.extra)
                except msgspec.DecodeError:
                    continue
                shard = Shard(member.id, member.incarnation, member.endpoint, record)
                shards[member.incarnation] = shard
                for pipeline in record.pipelines:
                    models.setdefault(pipeline.name, pipeline)
        self._by_incarnation, self._gateways, self._models = shards, frozenset(gateways), models
        self._wrote.update((incarnation, shard.record.writes_state) for incarnation, shard in shards.items())
        for old in [incarnation for incarnation in self._wrote if incarnation not in shards][:-MAX_REMEMBERED]:
            del self._wrote[old]

    @property
    def shards(self) -> Iterator[Shard]:
        return iter(self._by_incarnation.values())

    def sessions(self) -> int:
        """How many there are at all shards together."""
        return sum(shard.record.sessions for shard in self._by_incarnation.values())

    @property
    def gateways(self) -> frozenset[str]:
        """Incarnations of every live gateway."""
        return self._gateways

    @property
    def models(self) -> Mapping[str, PipelineRecord]:
        """Every pipeline that some shard serves, ready or not, in the order of the first shard's TOML."""
        return self._models

    @property
    def first_model(self) -> PipelineRecord | None:
        return next(iter(self._models.values()), None)

    def owner(self, incarnation: str) -> Shard | None:
        """The live shard of this incarnation."""
        return self._by_incarnation.get(incarnation)

    def takes(self, model: str = "") -> bool:
        """Whether some shard has room for a session of this model."""
        return any(shard.takes(model) for shard in self._by_incarnation.values())

    def candidates(self, session_id: str, model: str) -> list[Shard]:
        """The shards that take this session, best first: those on standby behind all others."""
        able = [shard for shard in self._by_incarnation.values() if shard.takes(model)]
        able.sort(key=lambda shard: (shard.record.standby, -weight(session_id, shard.id, shard.record.max_sessions)))
        return able

    def heirs(self, session_id: str, lost: str) -> list[Shard]:
        """The shards that may inherit a session of the incarnation `lost`, best first. Full or not, on
        standby or not: an heir makes room that it would not make for a new session."""
        wrote = self._wrote.get(lost, 0)
        able = [
            shard
            for shard in self._by_incarnation.values()
            if shard.incarnation != lost and shard.record.accepting and shard.record.reads_state >= wrote
        ]
        able.sort(key=lambda shard: weight(session_id, shard.id, shard.record.max_sessions), reverse=True)
        return able

    def unready(self) -> list[str]:
        """What keeps this fleet from being ready, in words; empty when it is."""
        if not any(shard.record.accepting for shard in self._by_incarnation.values()):
            return ["no shard is accepting sessions"]
        return [
            f"pipeline {pipeline.name} of {shard.id} has no ready workers"
            for shard in self._by_incarnation.values()
            for pipeline in shard.record.pipelines
            if not pipeline.ready
        ]
