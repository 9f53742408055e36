"""What a tool is told at its safe points, where no chain runs."""

from __future__ import annotations

from chain.lines.parse import Adjustment
from chain.tools.tool import Guidance


class Steered:
    """Guidance as a session gives it: each adjustment once."""

    def __init__(self, *adjustments: Adjustment) -> None:
        self.waiting = adjustments

    def new_guidance(self) -> Guidance:
        taken, self.waiting = self.waiting, ()
        return Guidance(taken)
