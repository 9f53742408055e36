"""The sessions that are kept, for front ends: what there is, one that is told again, exported or removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias, assert_never, get_args

from chain.errors import SessionError
from chain.events import Event
from chain.journal.reading import Reading
from chain.session import listing
from chain.session.listing import Summary as Summary
from chain.session.projection import retell

Format: TypeAlias = Literal["md", "json", "html"]

MAX_RESUMABLE = 20
"""Sessions among which those are that somebody goes on with."""

Report: TypeAlias = Callable[[str], object]
"""Told in a sentence what is wrong with a journal."""

FORMATS: tuple[Format, ...] = get_args(Format)


def _ignore(what: str) -> None:
    pass


def all_sessions(state: Path) -> list[Summary]:
    """All sessions of a state folder, the one that changed last first."""
    return listing.summaries(_folder(state))


def whole_id(state: Path, id: str) -> str:
    """The id of the session whose id begins so. Raises ``SessionError``."""
    return listing.find_journal(_folder(state), id).stem


def find(state: Path, id: str) -> Summary:
    """The session whose id begins so. Raises ``SessionError``."""
    path = listing.find_journal(_folder(state), id)
    try:
        return listing.summary(path)
    except OSError as error:
        raise _unreadable(path, error) from None


def latest(state: Path, workspace: Path) -> Summary | None:
    """The session of a workspace that changed last: of those in which something was said, if there are any."""
    found = resumable(state, workspace)
    return next((each for each in found if each.was_used), next(iter(found), None))


def resumable(state: Path, workspace: Path) -> list[Summary]:
    """The sessions of a workspace that changed last, the last one first."""
    return listing.summaries(_folder(state), latest=MAX_RESUMABLE, workspace=workspace)


def delete(state: Path, id: str) -> None:
    """Remove a session for good. Raises ``SessionError``, also for one that another process has open."""
    listing.delete_journal(_folder(state), id)


def told_again(session: Summary, report: Report = _ignore) -> Iterator[Event]:
    """The events of a session, from its journal.

    ``report`` is told at the end what of it could not be read. Raises ``SessionError``.
    """
    try:
        with session.path.open("rb") as rows:
            reading = Reading(rows)
            yield from retell(reading)
            for what in reading.complaints:
                report(what)
    except OSError as error:
        raise _unreadable(session.path, error) from None


def export(session: Summary, format: Format, report: Report = _ignore) -> Iterator[str]:
    """A session as a document, in pieces; ``report`` as in ``told_again``. Raises ``SessionError``."""
    match format:
        case "json":
            from chain.export.json_document import document

            try:
                with session.path.open("rb") as rows:
                    yield from document(session.id, rows)
                    rows.seek(0)
                    reading = Reading(rows)
                    for _ in reading:
                        pass
                    for what in reading.complaints:
                        report(what)
            except OSError as error:
                raise _unreadable(session.path, error) from None
        case "md":
            from chain.export.markdown import markdown
            from chain.export.outline import outline_of

            yield from markdown(outline_of(told_again(session, report)))
        case "html":
            from chain.export.html import html
            from chain.export.outline import outline_of

            yield from html(outline_of(told_again(session, report)))
        case _:
            assert_never(format)


def _folder(state: Path) -> Path:
    """Where the journals are; it is not made where only somebody asks for them."""
    return state / "sessions"


def _unreadable(path: Path, error: OSError) -> SessionError:
    return SessionError(f"cannot be read: {error.strerror or error}", file=path)
