"""Recorded sessions that are run again, for front ends: offline, with the configuration of today, and compared."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import trio
from trio.testing import MockClock

from chain.app import open_chain
from chain.chain import Chain
from chain.config.load import Settings
from chain.errors import SessionError, UserError
from chain.journal.journal import Journal
from chain.replay import difference
from chain.replay.actors import Actors, RecordedModel
from chain.replay.player import Player
from chain.replay.recording import Recording
from chain.replay.script import Script
from chain.replay.tape import Difference
from chain.session import listing
from chain.session.listing import SUFFIX
from chain.session.resume import read_back
from chain.tools.tool import Tool


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of a replay, and the rows that say so or tell of the difference.

    ``cannot be followed``: what came of it hung on a moment that is not on record (``Script.left_to_chance``).
    """

    outcome: Literal["same", "different", "cannot be followed"]
    rows: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether all was as it is on record."""
        return self.outcome == "same"


def replay(settings: Settings, rows: Iterable[bytes], *, tools: Iterable[Tool] = ()) -> Replayed:
    """Run a recorded session again, offline, with these settings, and compare. ``rows`` are those of its journal.

    Nothing outside is touched. Raises ``UserError`` for a journal or a configuration that cannot be used.
    """
    return trio.run(_replay, settings, Recording(rows), tuple(tools), clock=MockClock())


def recorded(state: Path, id: str) -> list[bytes]:
    """The rows of the session whose id begins so, or of the journal at a path that ends in ``.jsonl``.

    Raises ``SessionError``.
    """
    try:
        path = Path(id) if id.endswith(SUFFIX) else listing.find_journal(state / "sessions", id)
    except SessionError:
        if os.path.isfile(id):
            raise SessionError(f"is no journal of a session; those end in {SUFFIX}", file=Path(id)) from None
        raise
    try:
        with path.open("rb") as rows:
            return list(rows)
    except OSError as error:
        raise SessionError(f"cannot be read: {error.strerror or error}", file=path) from None


async def _replay(settings: Settings, recording: Recording, tools: Sequence[Tool]) -> Replayed:
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    for script in recording.scripts():
        found = await _replay_part(settings, script, tools, clock)
        if found is not None:
            rows = (*recording.complaints, *difference.told(found))
            return Replayed("cannot be followed" if found.hangs_on_moment else "different", rows)
    # What is missing cannot be compared, so a journal with a gap is not found to be the same.
    rows = (*recording.complaints, difference.told_same(recording.counts, is_whole=not recording.is_damaged))
    return Replayed("different" if recording.is_damaged else "same", rows)


async def _replay_part(
    settings: Settings, script: Script, tools: Sequence[Tool], clock: MockClock
) -> Difference | None:
    """The first difference in what one process wrote."""
    actors = Actors(script)
    async with _open_replay(settings, script, actors, tools) as chain:
        await Player(script, actors, clock, partial(_attempts, settings)).play(chain)
    return actors.tape.difference


def _attempts(settings: Settings, model: str) -> int | None:
    try:
        return settings.model(model).max_attempts
    except UserError:
        return None  # it is no longer configured


def _open_replay(
    settings: Settings, script: Script, actors: Actors, tools: Sequence[Tool]
) -> AbstractAsyncContextManager[Chain]:
    read = read_back(script.rows) if script.rows else None
    return open_chain(
        settings,
        workspace=Path.cwd(),
        state=Path.cwd(),
        tools=tools,
        model=RecordedModel(script.opening.model),
        journal=Journal(actors.tape, id=script.opening.id, seq=0 if read is None else read.seq),
        plan=script.plan,
        resume=read or "",
        interactive=script.opening.interactive,
        actors=actors,
    )
