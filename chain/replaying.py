"""Recorded sessions that are run again, for front ends: offline, with the configuration of today, and compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import trio
from trio.testing import MockClock

from chain.app import open_chain
from chain.chain import Chain
from chain.config.load import Settings
from chain.errors import SessionError, UserError
from chain.session import listing
from chain.session.journal import Journal
from chain.session.listing import SUFFIX
from chain.session.replay import difference
from chain.session.replay.actors import Actors, RecordedModel
from chain.session.replay.director import Director
from chain.session.replay.recording import Recording
from chain.session.replay.script import Script
from chain.session.replay.tape import Difference
from chain.session.resume import read_back
from chain.tools.tool import Tool


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of a replay: whether all was as it is on record, and the rows that say so or tell of the difference."""

    same: bool
    rows: tuple[str, ...]


def replay(settings: Settings, rows: Iterable[bytes], *, tools: Iterable[Tool] = ()) -> Replayed:
    """Run a recorded session again, offline, with these settings, and compare. ``rows`` are those of its journal.

    Nothing outside is touched. Raises ``UserError`` for a journal or a configuration that cannot be used.
    """
    return trio.run(_replay, settings, Recording(rows), tuple(tools), clock=MockClock())


def recorded(state: Path, id: str) -> list[bytes]:
    """The rows of the session whose id begins so, or of the journal at a path that ends in ``.jsonl``.

    Raises ``SessionError``.
    """
    path = Path(id) if id.endswith(SUFFIX) else listing.find(state / "sessions", id)
    try:
        with path.open("rb") as rows:
            return list(rows)
    except OSError as error:
        raise SessionError(f"cannot be read: {error.strerror or error}", file=path) from None


async def _replay(settings: Settings, recording: Recording, tools: Sequence[Tool]) -> Replayed:
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    begins = [0]
    for opened in recording.openings[1:]:
        begins.append(await _begin(settings, recording, opened, tools))
    for begin, end in pairwise([*begins, recording.length]):
        found = await _replay_part(settings, recording.script(begin, end), tools, clock)
        if found is not None:
            return Replayed(False, difference.told(found))
    return Replayed(True, difference.told_same(recording.counts))


async def _replay_part(
    settings: Settings, script: Script, tools: Sequence[Tool], clock: MockClock
) -> Difference | None:
    """The first difference in what one process wrote."""
    actors = Actors(script)
    async with _open_replay(settings, script, actors, tools) as chain:
        await Director(script, actors, clock, partial(_attempts, settings)).play(chain)
    return actors.tape.difference


def _attempts(settings: Settings, model: str) -> int | None:
    try:
        return settings.model(model).max_attempts
    except UserError:
        return None  # it is no longer configured


async def _begin(settings: Settings, recording: Recording, opened: int, tools: Sequence[Tool]) -> int:
    """Where the part of a journal begins that one process wrote, with what it wrote before its opening at ``opened``.

    That is what a crash had left out. How much it was shows in what the program writes there today.
    """
    for begin in recording.begins(opened):
        script = recording.script(begin, opened + 1)
        actors = Actors(script)
        async with _open_replay(settings, script, actors, tools):
            is_it = actors.tape.difference is None and actors.tape.next is None
            actors.leave()
        if is_it:
            return begin
    return opened


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
        interactive=script.is_interactive,
        actors=actors,
    )
