"""Programs that tools start: the guard they run under, what fences them in, and the tool ``shell``."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:  # noqa: ANN401 - as Python calls it
    # Scripts that show old defects import it from here; nothing is imported for others.
    if name != "Guard":
        raise AttributeError(name)
    from chain.tools.processes.guarded import Guard

    return Guard
