"""``chain replay ID``: a recorded session, run again offline and compared with its record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from chain.config.load import require_trust
from chain.replaying import recorded, replay

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chain import Tool
    from chain.config.load import Settings

_CODES = {"same": 0, "different": 1, "cannot be followed": 3}
"""The exit codes."""


def replayed(settings: Settings, state: Path, id: str, tools: Sequence[Tool]) -> tuple[Sequence[str], int]:
    """The rows that say what came of it, and the exit code. Raises ``UserError``."""
    require_trust(settings)
    found = replay(settings, recorded(state, id), tools=tools)
    return found.rows, _CODES[found.outcome]
