"""What the command line asks of a terminal session, as one value that goes from ``main`` to the prompt."""

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
    """What the terminal can show, and is to show; ``updates``: rows are updated where they can be."""

    color: bool
    ascii: bool
    updates: bool = True


@dataclass(frozen=True, slots=True)
class Invocation:
    """What a session at a terminal begins with.

    ``state`` is the folder for journals, ``traces`` that for debug traces, if any. ``tools`` are read once, when the
    prompt is up, and added to the configured ones. A ``tour`` comments on a session that nobody keeps.
    ``mode`` is that of the first session; ``None`` for its own. Sessions are those of ``store``, by default of the
    state folder; ``is_kept`` says whether it keeps them. Tools may use the ``add_dirs`` besides the workspace.
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
"""Prepares an invocation once the prompt is on the screen, and clears away after the session what that took."""
