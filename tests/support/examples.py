"""How much a test tries: a part of it in the short run, all of it in CI, ten times as much in the long one."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import hypothesis
import pytest
from hypothesis.strategies import SearchStrategy

T = TypeVar("T")

PROFILE = os.environ.get("CHAIN_TEST_PROFILE", "ci" if os.environ.get("CI") else "short")
"""``short`` (five examples at most), ``full``, ``ci`` (as full, always the same), ``long`` (ten times)."""

IS_SHORT = PROFILE == "short"
EXAMPLES = {"short": 5, "full": 100, "ci": 100, "long": 1_000}
"""Of a property test that does not say how many it tries: ``hypothesis`` has 100."""


def sharded(
    max_examples: int, *strategies: SearchStrategy[Any], shards: int = 10
) -> Callable[[Callable[..., None]], Callable[[int], None]]:
    """A property test in parts that run on different cores; so many examples in all, as ``trying`` counts them."""
    shards = 1 if IS_SHORT else shards

    def decorate(test: Callable[..., None]) -> Callable[[int], None]:
        @pytest.mark.parametrize("shard", range(shards))
        def run(shard: int) -> None:
            part = trying(max_examples // shards)(hypothesis.given(*strategies)(test))
            # The same examples each time have to be others in each part.
            (hypothesis.seed(shard)(part) if hypothesis.settings().derandomize else part)()

        run.__name__ = run.__qualname__ = test.__name__
        run.__doc__ = test.__doc__
        return run

    return decorate


def trying(max_examples: int) -> hypothesis.settings:
    """The settings of a property test that tries so many examples in a full run."""
    examples = max(max_examples * EXAMPLES[PROFILE] // EXAMPLES["full"], 3)
    return hypothesis.settings(max_examples=min(examples, EXAMPLES["short"]) if IS_SHORT else examples)


_counts: dict[object, int] = {}


async def counted(scenario: object, count: Callable[[], Awaitable[int]]) -> int:
    """How many moments a scenario has in which nobody does anything, counted once in a process."""
    if scenario not in _counts:
        _counts[scenario] = await count()
    return _counts[scenario]


def some(cases: Sequence[T], every: int = 5) -> list[T]:
    """All of the cases, in the short run every fifth and the last."""
    return [*cases[:-1:every], *cases[-1:]] if IS_SHORT else list(cases)


def one(cases: Sequence[T]) -> Sequence[T]:
    """All of the cases, in the short run the first."""
    return cases[:1] if IS_SHORT else cases


def fewer(number: int, *, divided_by: int) -> int:
    """The number, in the short run divided."""
    return max(number // divided_by, 1) if IS_SHORT else number
