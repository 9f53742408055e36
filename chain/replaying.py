"""Recorded sessions that are run again, for front ends: offline, with the configuration of today, and compared."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import trio
from trio.testing import MockClock

from chain.app.open import open_chain
from chain.config.load import Settings
from chain.errors import SessionError, UserError
from chain.journal import records
from chain.journal.journal import Journal
from chain.journal.reading import Reading
from chain.journal.records import Entry
from chain.replay import difference
from chain.replay.actors import Actors, RecordedModel, patient
from chain.replay.player import Player
from chain.replay.script import Script, parts
from chain.replay.tape import Difference
from chain.retries import Retries
from chain.session.listing import SUFFIX, readable
from chain.session.resume import read_back
from chain.session.store import Store
from chain.tools.tool import Tool


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of a replay, and the rows that say so or tell of the difference.

    ``cannot be followed``: what came of it hung on a moment that is not on record (``Script.left_to_chance``).
    """

    outcome: Literal["same", "different", "cannot be followed"]
    rows: tuple[str, ...]


def replay(settings: Settings, rows: Iterable[bytes], *, tools: Iterable[Tool] = ()) -> Replayed:
    """Run a recorded session again, offline, with these settings, and compare. ``rows`` are those of its journal.

    Nothing outside is touched. Raises ``UserError`` for a journal or a configuration that cannot be used.
    """
    return trio.run(_replay, settings, list(rows), tuple(tools), clock=MockClock())


def recorded(store: Store, id: str) -> list[bytes]:
    """The rows of the session whose id begins so, or of the journal at a path that ends in ``.jsonl``.

    Raises ``SessionError``.
    """
    path = Path(id)
    if id.endswith(SUFFIX):
        with readable(path), path.open("rb") as file:
            return list(file)
    try:
        with store.rows(id) as rows:
            return list(rows)
    except SessionError:
        if os.path.isfile(id):
            raise SessionError(f"is no journal of a session; those end in {SUFFIX}", file=path) from None
        raise


async def _replay(settings: Settings, rows: Sequence[bytes], tools: Sequence[Tool]) -> Replayed:
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    reading, entries, rows_before = Reading(rows), list[Entry](), list[int]()
    for entry in reading:
        if not isinstance(entry.record, records.Unknown | records.Draft):
            entries.append(entry)
            rows_before.append(reading.number - 1)
    if not entries or not isinstance(entries[0].record, records.Session):
        raise SessionError("is no journal of a session: it does not begin with its opening")
    for begin, end in parts(entries):
        script = Script(entries[begin:end], rows[: rows_before[begin]] if begin else (), entries[:begin])
        if (found := await _difference(settings, script, tools, clock)) is not None:
            told = (*reading.complaints, *difference.describe(found))
            return Replayed("cannot be followed" if found.hangs_on_moment else "different", told)
    # What is missing cannot be compared, so a journal with a gap is not found to be the same.
    same = difference.describe_same(entries, is_whole=not reading.faults)
    return Replayed("different" if reading.faults else "same", (*reading.complaints, same))


async def _difference(settings: Settings, script: Script, tools: Sequence[Tool], clock: MockClock) -> Difference | None:
    def retries(model: str) -> Retries | None:
        try:
            return patient(settings.model(model).retries)
        except UserError:
            return None  # it is no longer configured

    actors = Actors(script)
    read = read_back(script.rows) if script.rows else None
    opened = open_chain(
        settings,
        workspace=Path("/"),  # no tool that uses a folder runs
        state=Path("/"),
        tools=tools,
        model=RecordedModel(script.opening.model),
        journal=Journal(actors.tape, id=script.opening.id, seq=0 if read is None else read.seq),
        plan=script.plan,
        resume=read or "",
        interactive=script.opening.interactive,
        whereabouts=lambda workspace: script.opening.whereabouts,
        actors=actors,
    )
    async with opened as chain:
        await Player(chain, actors, clock, retries).play()
    return actors.tape.difference
