"""Opens a chain for a screen that is up, and serves its user until they leave."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chain.app import build_model, open_chain
from chain.config.load import Settings
from cli.input.moments import ScheduledLine
from cli.interactive import Interactive
from cli.prompt import Looks
from cli.screen.protocol import Screen

if TYPE_CHECKING:
    from chain import Model, Tool
    from cli.show.tour import Tour

OFFLINE = "offline"
"""The built-in model that needs no key."""


async def serve(
    screen: Screen,
    signals: AsyncIterator[int],
    settings: Settings,
    *,
    workspace: Path,
    state: Path,
    tools: Sequence[Tool] = (),
    traces: Path | None = None,
    query: str | None = None,
    scheduled: Sequence[ScheduledLine] = (),
    color: bool = True,
    ascii: bool = False,
    tour: Tour | None = None,
) -> int:
    """Open a chain for a screen that is up, serve its user until they leave, and return the exit code.

    Without a key for the configured model the one that needs none answers. ``tour`` comments on what happens, for a
    session that nobody keeps. Raises ``UserError``.
    """
    name, notes = settings.chain().model, [str(settings.passed_over)] if settings.passed_over else []
    definition = settings.model(name)
    model: Model | None = None
    if definition.lacks_key:
        notes.append(f"no API key: the {OFFLINE} model answers; set {definition.key_variable} for {name}")
        name, model = OFFLINE, build_model(settings.model(OFFLINE), interactive=True)
    async with open_chain(
        settings, workspace=workspace, state=state, tools=tools, model=model, interactive=True, traces=traces
    ) as chain:
        # What is allocated by now stays. A garbage collection of all of it would delay a key by 30 ms.
        gc.freeze()
        user = Interactive(chain, settings, screen, Looks(color, ascii), model=name, tour=tour)
        try:
            return await user.run(signals, query, scheduled, notes)
        finally:
            await user.close()
