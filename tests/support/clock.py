"""Time in tests: only the time of trio's mock clock passes."""

from __future__ import annotations

import trio
from trio.testing import MockClock


async def pass_time(seconds: float) -> None:
    """Let time pass. It is a checkpoint even for 0 seconds, and an error with a real clock."""
    assert not seconds or isinstance(trio.lowlevel.current_clock(), MockClock), "this would be a real sleep"
    await trio.sleep(seconds)
