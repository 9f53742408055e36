"""``chain acp``: the Agent Client Protocol on standard input and output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from chain.app import check_state
from chain.config.load import Settings
from cli.acp.opening import Opener
from cli.acp.serving import serve

if TYPE_CHECKING:
    from chain import Tool

AT_TERMINAL = "chain acp speaks with an editor, in JSON; chain help editors says how one is set up. Ctrl-D ends it.\n"


def acp(read_settings: Callable[[Path], Settings], state: Path, tools: Sequence[Tool], traces: Path | None) -> int:
    """Serve an editor until it ends, and return the exit code. Raises ``UserError``."""
    check_state(state)
    return trio.run(serve, Opener(read_settings, state, tools, traces))
