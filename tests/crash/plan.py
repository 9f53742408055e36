"""Which points are played: so many over all scenarios, in parts that processes share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .scenarios import BY_NAME

PART = 50
"""Points that one process plays before it asks for more."""


def shares(points: int, names: Sequence[str] | None = None) -> dict[str, int]:
    """How many of so many points each scenario has."""
    chosen = list(names or BY_NAME)
    weights = [BY_NAME[name].weight for name in chosen]
    ends = [points * sum(weights[: n + 1]) // sum(weights) for n in range(len(chosen))]
    return {name: end - start for name, start, end in zip(chosen, [0, *ends], ends, strict=False)}


def tasks(points: int, seed: int, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """So many points, for ``workers``."""
    found = []
    for name, count in shares(points, names).items():
        parts = -(-count // PART)
        found += [{"scenario": name, "count": count, "seed": seed, "part": [k, parts]} for k in range(parts)]
    return found
