"""The context of a tool call outside of a chain, and the guidance at its safe points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chain.lines.parse import Adjustment
from chain.plan import Plan
from chain.tools.tool import Guidance, ToolContext


class QueuedGuidance:
    """A source of guidance that returns each adjustment once, as a session does."""

    def __init__(self, *adjustments: Adjustment) -> None:
        self.waiting = adjustments

    def new_guidance(self) -> Guidance:
        adjustments, self.waiting = self.waiting, ()
        return Guidance(adjustments)


def tool_context(workspace: Path = Path("."), **more: Any) -> ToolContext:
    """Return the context of the call ``t1``. Its progress is dropped, unless ``more`` has a ``report`` function."""
    defaults = {"plan": Plan(), "call_id": "t1", "steering": QueuedGuidance(), "report": lambda text: None}
    return ToolContext(workspace, **{**defaults, **more})
