"""Time in tests: only that of trio's test clock passes, so nobody waits for it."""

from __future__ import annotations

import trio
from trio.testing import MockClock


async def pass_time(seconds: float) -> None:
    """Let time pass, which is a checkpoint if it is none. Under a real clock it is an error."""
    assert not seconds or isinstance(trio.lowlevel.current_clock(), MockClock), "this would be a real sleep"
    await trio.sleep(seconds)
