"""The open sessions of one program: one, or two during a switch, which opens the new session first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import trio

from chain import Task
from chain.app.open import build_model
from chain.chain import Chain
from chain.config.load import Settings
from chain.errors import JournalError
from chain.text.modes import DEFAULT_MODE, Mode, mode_sentence
from chain.text.wording import instructions_sentence

OpenChain: TypeAlias = Callable[..., AbstractAsyncContextManager[Chain]]
OpenDoor: TypeAlias = Callable[[Chain], AbstractAsyncContextManager[str]]


@dataclass(frozen=True, slots=True, eq=False)
class _OpenChain:
    """The state of an open chain."""

    problem: str
    """The reason why the chain has no side door; empty if it has one."""
    close_requested: trio.Event = field(default_factory=trio.Event)
    closed: trio.Event = field(default_factory=trio.Event)


class OpenSessions:
    """The open chains of this program. Each runs in a task of its own, and may have a side door for other processes."""

    def __init__(self, nursery: trio.Nursery, settings: Settings, open_chain: OpenChain, open_door: OpenDoor) -> None:
        self._nursery = nursery
        self._settings = settings
        self._open_chain = open_chain
        self._open_door = open_door
        self._opened: dict[Chain, _OpenChain] = {}

    async def open(self, model: str, *, plan: Iterable[Task] = (), resume: str = "", mode: Mode | None = None) -> Chain:
        """Open a new session with a plan, or if ``resume`` is given, the stored session with this id. Return its chain.

        ``mode`` is the mode to use; ``None`` keeps the session's own mode. Raise ``UserError`` if opening fails.
        """
        definition = self._settings.model(model)
        asked = build_model(definition, interactive=True)
        opening = self._open_chain(model=asked, plan=tuple(plan), resume=resume, mode=mode)
        chain: Chain = await self._nursery.start(self._keep_open, opening)
        if definition.retries != self._settings.model().retries:
            with suppress(JournalError):  # the default retries are good enough
                chain.use_model(asked, retries=definition.retries)
        return chain

    def notes(self, chain: Chain) -> Sequence[str]:
        """Return the notes to show when a chain is opened, such as problems, its mode and added directories."""
        problem = self._opened[chain].problem
        read = chain.state.instructions
        mode = "" if chain.mode == DEFAULT_MODE else mode_sentence(chain.mode)
        added = (
            f"Tools may also use {', '.join(map(str, chain.state.added_directories))}."
            if chain.state.added_directories
            else ""
        )
        return [note for note in (problem, instructions_sentence(read.files), *read.faults, mode, added) if note]

    async def close(self, *chains: Chain) -> None:
        """Interrupt and close the given chains, or all chains if none is given. Wait until they are closed."""
        closing = [self._opened[chain] for chain in chains or self._opened if chain in self._opened]
        for opened in closing:
            opened.close_requested.set()
        for opened in closing:
            await opened.closed.wait()

    async def _keep_open(
        self, opening: AbstractAsyncContextManager[Chain], task_status: trio.TaskStatus[Chain]
    ) -> None:
        opened: _OpenChain | None = None
        try:
            async with opening as chain, self._open_door(chain) as problem:
                opened = self._opened[chain] = _OpenChain(problem)
                task_status.started(chain)
                await opened.close_requested.wait()
        finally:
            # Also if the caller of ``open`` was cancelled just when the chain became open.
            if opened is not None:
                del self._opened[chain]
                opened.closed.set()
