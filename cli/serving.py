"""Opens a chain for a screen that is up, and serves its user until they leave."""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from chain.app import open_chain, sessions
from chain.config.load import Settings
from chain.errors import UserError
from cli.arguments import Place
from cli.chains import Chains
from cli.door.server import side_door
from cli.input.moments import ScheduledLine
from cli.interactive import Interactive
from cli.prompt import Looks
from cli.screen.protocol import Screen
from cli.shown_session import Program, ShownSession
from cli.slash import Commands

if TYPE_CHECKING:
    from chain import Chain, Tool
    from cli.show.tour import Tour

OFFLINE = "offline"
"""The built-in model that needs no key."""


async def serve(
    screen: Screen,
    signals: AsyncIterator[int],
    settings: Settings,
    *,
    place: Place,
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
    name, notes = settings.chain().model, [*place.notes, *([str(settings.passed_over)] if settings.passed_over else [])]
    definition = settings.model(name)
    if definition.lacks_key:
        notes.append(f"no API key: the {OFFLINE} model answers; set {definition.key_variable} for {name}")
        name = OFFLINE
    looks = Looks(color, ascii)

    def show(chain: Chain, model: str, program: Program) -> ShownSession:
        commands = Commands(
            chain,
            settings,
            model=model,
            has_keys=screen.has_keys,
            summaries=partial(sessions.resumable, state, place.workspace),
            whole_id=partial(sessions.whole_id, state),
        )
        shown = ShownSession(chain, commands, screen, program, looks, tour=tour)
        shown.notify(chains.notes(chain))
        return shown

    opens = partial(
        open_chain, settings, workspace=place.workspace, state=state, tools=tools, interactive=True, traces=traces
    )
    # A demonstration is nobody's work, and is kept nowhere.
    door = partial(side_door, state=state, environ=os.environ) if tour is None else None
    async with trio.open_nursery() as nursery:
        chains = Chains(nursery, settings, opens, door)
        try:
            chain = await chains.open(name, resume=place.resume)
        except UserError as error:
            problem = error  # raised outside the nursery, which would wrap it in a group
        else:
            # What is allocated by now stays. A garbage collection of all of it would delay a key by 30 ms.
            gc.freeze()
            user = Interactive(chains, chain, name, screen, show, tour=tour)
            try:
                return await user.run(signals, query, scheduled, notes)
            finally:
                await user.close()
                await chains.close()
    raise problem
