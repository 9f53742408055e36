"""The parameters of a terminal session, which ``main`` passes from the command line to the prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from chain.config.allowed_servers import FoundServers
from chain.text.modes import Mode

if TYPE_CHECKING:
    from chain import Store, Tool
    from chain.config.load import Settings
    from cli.arguments import Place
    from cli.input.moments import ScheduledLine
    from cli.show.tour import Tour


@dataclass(frozen=True, slots=True)
class TerminalStyle:
    """The style of the output: colours, ASCII only, and whether shown rows are updated in place."""

    color: bool
    ascii: bool
    updates_rows: bool = True


@dataclass(frozen=True, slots=True)
class Invocation:
    """The parameters of a terminal session.

    ``state`` is the folder of the journals. ``traces`` is the folder of the debug traces; ``None`` writes none.
    ``tools`` are added to the configured tools, and are iterated once, after the prompt is shown. ``tour`` comments on
    a demonstration, which is not stored. ``mode`` is the mode of the first session; ``None`` keeps that session's mode.
    ``store`` contains the sessions; ``None`` stores them in ``state``. ``is_kept``: the store outlives the process.
    ``add_dirs`` are directories that tools may use besides the workspace.
    """

    settings: Settings
    place: Place
    state: Path
    tools: Iterable[Tool] = ()
    traces: Path | None = None
    query: str | None = None
    scheduled: Sequence[ScheduledLine] = ()
    tour: Tour | None = None
    servers: FoundServers = field(default_factory=FoundServers)
    mode: Mode | None = None
    store: Store | None = None
    is_kept: bool = True
    add_dirs: Sequence[str] = ()


Prepare: TypeAlias = Callable[[], AbstractContextManager[Invocation]]
"""A function that prepares an invocation after the prompt is shown, and cleans up after the session."""
