"""One target under atheris: `python -m fuzz.worker NAME SECONDS CORPUS FOUND SEED`. A broken promise ends the search.

`CORPUS`: a folder, filled with the target's seeds and then with what reached something new. `FOUND`: the folder where
the input that broke a promise is left. `SEED`: of the search, so that it can be done again.
"""

from __future__ import annotations

import importlib
import resource
import sys
from hashlib import sha1
from pathlib import Path
from random import Random
from typing import Any

MEMORY_BYTES = 4 << 30
"""Of the whole process: what nobody counts ends it here."""
HUNG_S = 300
"""Of one input, by the clock: only what never comes back takes so long, on any machine. Time is bounded by lines."""
MAX_INPUT_BYTES = 64 * 1024


def main(name: str, seconds: str, corpus: str, found: str, seed: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["duologue"]):
        from fuzz.bounds import bounded
        from fuzz.registry import TARGETS
    target = TARGETS[name]
    for data in target.seeds():
        (Path(corpus) / sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)

    def once(data: bytes) -> None:
        with bounded(target, len(data)):
            target.check(data)

    def mutate(data: bytes, most: int, number: int) -> bytes:
        rng = Random(number)
        changed = target.mutate(data, rng) if rng.random() < 0.9 else None
        if changed is None or len(changed) > most:
            changed = atheris.Mutate(data, most)
        return changed

    options = [
        *(f"-max_total_time={seconds}", f"-max_len={MAX_INPUT_BYTES}", f"-artifact_prefix={found}/", f"-seed={seed}"),
        *("-print_final_stats=1", "-rss_limit_mb=0", f"-timeout={HUNG_S}", "-verbosity=1", "-len_control=0"),
    ]
    atheris.Setup([name, *options, corpus], once, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
