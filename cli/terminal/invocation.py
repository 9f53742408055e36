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

    ``state`` is the folder of the journals, ``traces`` that of the debug traces, if any are written. ``tools`` are
    added to the configured ones, and are read once, when the prompt is up. A ``tour`` comments on a demonstration,
    which is not stored. ``mode`` is that of the first session; ``None`` for the session's own. ``store`` holds the
    sessions, by default in the state folder; ``is_kept`` is whether it outlives the process. Tools may use ``add_dirs``
    besides the workspace.
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
"""Prepares an invocation once the prompt is on the screen, and cleans up after the session."""
