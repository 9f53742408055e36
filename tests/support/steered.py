"""The context of a tool call where no chain runs, and the guidance at its safe points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chain.lines.parse import Adjustment
from chain.plan import Plan
from chain.tools.tool import Guidance, ToolContext


class Steered:
    """Guidance as a session gives it: each adjustment once."""

    def __init__(self, *adjustments: Adjustment) -> None:
        self.waiting = adjustments

    def new_guidance(self) -> Guidance:
        taken, self.waiting = self.waiting, ()
        return Guidance(taken)


def tool_context(workspace: Path = Path("."), **more: Any) -> ToolContext:
    """Return the context of the call ``t1``. Its progress is dropped, unless ``report`` takes it."""
    defaults = {"plan": Plan(), "call_id": "t1", "steering": Steered(), "report": lambda text: None}
    return ToolContext(workspace, **{**defaults, **more})
