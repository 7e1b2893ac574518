"""What one unit costs in the session core and in the engines of loopback, warm and after a pause.

    python bench/session_steps.py [--model loopback] [--units 300] [--pause-ms 4]

The core runs without a bus: a client's append, the relay between the two workers, the result, its
acknowledgement. `cold` lets the process sleep before each unit, as a shard with little to do does: what a
wake-up from idle costs is the difference.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict

import numpy as np

from duologue.fence import CommandNo, DeliveryId
from duologue.model.catalog import find_pipeline
from duologue.model.engine import Emission, Slot, StageEngine, StageUnit
from duologue.model.pipeline import resolve
from duologue.models.loopback.plugin import Loopback
from duologue.protocol.duplex import AppendAudio, Dialect, decode_command, encode_command
from duologue.session.core import commands as facts
from duologue.session.core import effects as orders
from duologue.session.core.limits import SessionLimits
from duologue.session.core.machine import DuplexSessionMachine

RATE_HZ = 24_000
STEPS = ("append", "relay", "result", "acknowledged", "engines")


class Bench:
    """One session that speaks for ever, and its engines."""

    def __init__(self, model: str) -> None:
        pipeline = find_pipeline(model)
        plugin = Loopback(pipeline)
        self.append_ms = min(plugin.traits.unit_ms, 100)
        script = [{"speak": {"units": 100_000, "text": "word " * 1000}}]
        self.machine, opened = DuplexSessionMachine.open(
            session_id="bench",
            seed=bytes(16),
            owner=1,
            dialect=Dialect.duplex,
            model=model,
            plugin=plugin,
            limits=SessionLimits(),
            request={
                "model": model,
                "input_audio_format": "pcm16",
                "sample_rate_hz": RATE_HZ,
                "extra_body": {"auto_response": True, "loopback": {"script": script}},
            },
        )
        self.engines: list[StageEngine] = [
            resolve(stage.engine)(pipeline, index) for index, stage in enumerate(pipeline.stages)
        ]
        self.slot = Slot(0, 1)
        for effect in opened:
            if isinstance(effect, orders.OpenStages):
                for engine, config in zip(self.engines, effect.configs, strict=True):
                    engine.open(self.slot, config)
        sound = (np.sin(np.arange(RATE_HZ * self.append_ms // 1000) * 0.1) * 8000).astype("<i2").tobytes()
        bare, self.media = AppendAudio(audio=sound, format="pcm16", sample_rate_hz=RATE_HZ).detach()
        self.command = encode_command(bare)
        self.now, self.appends = 0.0, 0
        self.spent: defaultdict[str, float] = defaultdict(float)
        for effect in opened:
            if isinstance(effect, orders.Checkpoint):
                self._do(facts.Covered(effect.number), "other")
        self._do(facts.StagesReady(self.machine.fence), "other")

    def _do(self, fact: facts.SessionCommand, step: str) -> list[orders.SessionEffect]:
        started = time.perf_counter()
        effects = self.machine.handle(fact, self.now)
        self.spent[step] += time.perf_counter() - started
        for effect in list(effects):
            if isinstance(effect, orders.Checkpoint):
                effects = effects + self._do(facts.Covered(effect.number), "other")
        return effects

    def _stage(self, stage: int, unit: int, turn: int, head: bytes, frames: tuple[bytes, ...]) -> Emission:
        started = time.perf_counter()
        given = StageUnit(self.slot, unit, turn, self.machine.fence.epoch, 0, head, frames)
        (made,) = self.engines[stage].append_batch([given])
        self.spent["engines"] += time.perf_counter() - started
        return made

    def append(self) -> None:
        """One append of a client, and all that comes of it."""
        self.appends += 1
        self.now += self.append_ms / 1000
        started = time.perf_counter()
        command = decode_command(self.command).attach(self.media)
        self.spent["append"] += time.perf_counter() - started
        for order in self._do(facts.FromClient(CommandNo(1, self.appends), command), "append"):
            if isinstance(order, orders.Submit):
                self._answer(order)

    def _answer(self, order: orders.Submit) -> None:
        fence, last = self.machine.fence, 0
        made = self._stage(0, order.unit, order.turn_id, order.head, order.frames)
        made = self._stage(1, made.unit, made.turn_id, made.head, made.frames)
        relayed = facts.StageOutput(fence, 1, 2, made.unit, made.turn_id, made.last, made.head, made.frames)
        self._do(relayed, "relay")
        made = self._stage(2, made.unit, made.turn_id, made.head, made.frames)
        made = self._stage(3, made.unit, made.turn_id, made.head, made.frames)
        result = facts.StageOutput(fence, 3, -1, made.unit, made.turn_id, made.last, made.head, made.frames)
        for effect in self._do(result, "result"):
            if isinstance(effect, orders.Deliver):
                last = effect.n
        if last:
            self._do(facts.Delivered(DeliveryId(1, last)), "acknowledged")

    def measure(self, appends: int, pause_s: float) -> dict[str, float]:
        """Microseconds of each step, per append."""
        self.spent.clear()
        for _ in range(appends):
            if pause_s:
                time.sleep(pause_s)
            self.append()
        return {step: self.spent[step] / appends * 1e6 for step in STEPS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="loopback", choices=("loopback", "loopback-1s"))
    parser.add_argument("--units", type=int, default=300)
    parser.add_argument("--pause-ms", type=float, default=4.0)
    args = parser.parse_args()
    bench = Bench(args.model)
    bench.measure(200, 0.0)
    warm = min((bench.measure(args.units, 0.0) for _ in range(10)), key=lambda steps: sum(steps.values()))
    cold = bench.measure(args.units, args.pause_ms / 1000)
    print(f"{'us per append':16}{'warm':>8}{'cold':>8}")
    for step in STEPS:
        print(f"{step:16}{warm[step]:8.1f}{cold[step]:8.1f}")


if __name__ == "__main__":
    main()
