"""How much a state weighs: bytes of the tensors and arrays in it, however they are nested. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def state_bytes(*states: Any) -> int:
    """Bytes of everything in these states, each tensor once. Objects are looked into if they are caches: what has
    `key_cache` and `value_cache`, or `layers` with `keys` and `values`."""
    return _weigh(states, set())


def _weigh(value: Any, seen: set[int]) -> int:
    if value is None or isinstance(value, str | bytes | int | float | bool) or id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        return int(value.numel() * value.element_size())
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, Mapping):
        return sum(_weigh(one, seen) for one in value.values())
    if isinstance(value, list | tuple):
        return sum(_weigh(one, seen) for one in value)
    parts = (getattr(value, name, None) for name in ("key_cache", "value_cache", "layers", "keys", "values"))
    return sum(_weigh(part, seen) for part in parts if not callable(part))
