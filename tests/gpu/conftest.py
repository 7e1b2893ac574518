"""Set before the package is imported, which reads it then: compiling small functions pays on a GPU only."""

from __future__ import annotations

import os

os.environ.setdefault("NO_TORCH_COMPILE", "1")
