"""How many examples a property test tries, and on how many cores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
from hypothesis.strategies import SearchStrategy


def sharded(
    max_examples: int, *strategies: SearchStrategy[Any], shards: int = 10
) -> Callable[[Callable[..., None]], Callable[[int], None]]:
    """A property test in parts that run on different cores; so many examples in all, as ``trying`` counts them."""

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
    """The settings of a property test with so many examples; the profile ``long`` tries many times as many."""
    times = hypothesis.settings().max_examples // 100
    return hypothesis.settings(max_examples=max_examples * times)
