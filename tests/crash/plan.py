"""Which points are played: so many over all scenarios, in parts that processes share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .scenarios import BY_NAME

PART = 50
"""Points that one process plays before it asks for more."""


def tasks(points: int, seed: int, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """So many points, the same number of each scenario or one more."""
    chosen = list(names or BY_NAME)
    counts = {name: points // len(chosen) + (n < points % len(chosen)) for n, name in enumerate(chosen)}
    found = []
    for name, count in counts.items():
        parts = -(-count // PART)
        found += [{"scenario": name, "count": count, "seed": seed, "part": [k, parts]} for k in range(parts)]
    return found
