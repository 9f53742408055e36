"""The number of examples that a test tries. It depends on the profile of the run."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import hypothesis
import pytest
from hypothesis.strategies import SearchStrategy

T = TypeVar("T")

PROFILE = os.environ.get("CHAIN_TEST_PROFILE", "ci" if os.environ.get("CI") else "short")
"""The profile of the run.

``short``: at most five examples. ``full``: all. ``ci``: all, the same in each run. ``long``: ten times as many.
"""

IS_SHORT = PROFILE == "short"
EXAMPLES = {"short": 5, "full": 100, "ci": 100, "long": 1_000}
"""Examples of a property test that sets no number: the default of ``hypothesis`` is 100."""


def sharded(
    total: int, *strategies: SearchStrategy[Any], shards: int = 10
) -> Callable[[Callable[..., None]], Callable[[int], None]]:
    """Divide a property test into shards, which can run on different cores, with ``total`` examples in a full run."""
    shards = 1 if IS_SHORT else shards

    def decorate(test: Callable[..., None]) -> Callable[[int], None]:
        @pytest.mark.parametrize("shard", range(shards))
        def run(shard: int) -> None:
            part = max_examples(total // shards)(hypothesis.given(*strategies)(test))
            # Derandomized examples must differ between the parts.
            (hypothesis.seed(shard)(part) if hypothesis.settings().derandomize else part)()

        run.__name__ = run.__qualname__ = test.__name__
        run.__doc__ = test.__doc__
        return run

    return decorate


def max_examples(in_full_run: int) -> hypothesis.settings:
    """Return the settings of a property test with this number of examples in a full run."""
    examples = max(in_full_run * EXAMPLES[PROFILE] // EXAMPLES["full"], 3)
    return hypothesis.settings(max_examples=min(examples, EXAMPLES["short"]) if IS_SHORT else examples)


_counts: dict[object, int] = {}


async def count_once(scenario: object, count: Callable[[], Awaitable[int]]) -> int:
    """Return ``await count()``, which is called only once for each scenario in a process."""
    if scenario not in _counts:
        _counts[scenario] = await count()
    return _counts[scenario]


def sample_in_short_run(cases: Sequence[T], every: int = 5) -> list[T]:
    """Return all cases; in the short run, one in ``every`` and the last."""
    return [*cases[:-1:every], *cases[-1:]] if IS_SHORT else list(cases)


def first_in_short_run(cases: Sequence[T]) -> Sequence[T]:
    """Return all cases; in the short run only the first."""
    return cases[:1] if IS_SHORT else cases


def divide_in_short_run(number: int, *, divided_by: int) -> int:
    """Return the number; in the short run the quotient, and at least 1."""
    return max(number // divided_by, 1) if IS_SHORT else number
