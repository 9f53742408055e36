"""The list of the sessions in a folder, and the search for a session by a part of its id.

A summary file next to each journal caches the data of the list. The file also contains the size of the journal: if this
size has changed, the summary is computed again. The store in Redis uses the same summaries.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path

from chain.errors import SessionError
from chain.journal.attachments import write_atomically
from chain.journal.fields import read_fields
from chain.journal.lock import has_writer
from chain.journal.reading import Reading
from chain.session.resume import load_journal
from chain.session.state import State

SUFFIX = ".jsonl"
"""The suffix of journals."""

LEAST_END = 4
"""The minimum length of an id's ending that identifies a session. A shorter ending would often match by mistake."""

MAX_FIRST_RECORD = 65_536
"""The limit of bytes that are read to check whether a file is a journal. The first record fits in them."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The data that a list shows of one session.

    ``changed`` is the time of the last record, in seconds since the epoch. ``query`` is the first row of the first
    query, or of the first waiting line. ``open_lines`` are ids of waiting lines. ``tokens`` and ``cost_usd`` are the
    sums of the finished runs (``None``: unknown). ``was_used`` is false for a session with neither lines nor a draft.
    """

    id: str
    changed: float
    workspace: str
    model: str
    query: str
    runs: int
    tokens: int
    cost_usd: float | None
    open_lines: tuple[str, ...]
    was_used: bool
    is_open: bool = False
    """Whether a process has the session open now."""


def list_summaries(folder: Path, *, latest: int | None = None, workspace: Path | None = None) -> list[Summary]:
    """Return the summaries of the sessions in a folder, the most recently changed first.

    With ``workspace``, return only sessions that were last opened in it. ``latest`` is the maximum number of summaries.
    """
    found = []
    for path in _journals(folder):
        with suppress(OSError):
            summary = _read_cached(path) or (_compute_summary(path) if _is_journal(path) else None)
            if summary is not None:
                found.append(summary)
    if workspace is not None:
        here = os.path.realpath(workspace)
        found = [each for each in found if each.workspace and os.path.realpath(each.workspace) == here]
    found.sort(key=attrgetter("changed", "id"), reverse=True)
    return [replace(each, is_open=is_open(folder / f"{each.id}{SUFFIX}")) for each in found[:latest]]


def summary_at(path: Path) -> Summary:
    """Return the summary of a journal's session. Raise ``OSError`` if the journal cannot be read."""
    return replace(_read_cached(path) or _compute_summary(path), is_open=is_open(path))


def summary_of(id: str, state: State) -> Summary:
    """Return the summary of a session from its state."""
    waiting = sorted((*state.lines.waiting, *state.lines.unfinished()), key=attrgetter("number"))
    query = state.first_query or next((line.record.text for line in waiting), "")
    return Summary(
        id=id,
        changed=state.changed,
        workspace="" if state.session is None else state.session.workspace,
        model=state.model,
        query=next((row.strip() for row in query.splitlines() if row.strip()), ""),
        runs=state.runs,
        tokens=state.usage.total_tokens,
        cost_usd=state.usage.cost_usd,
        open_lines=tuple(line.on_record for line in waiting),
        was_used=bool(state.lines.on_record or state.draft),
    )


def to_text(summary: Summary, version: str) -> str:
    """Return a summary as JSON text. ``version`` identifies the state of the journal, such as its size."""
    return json.dumps({**asdict(summary), "at": version})


def from_text(text: str | bytes, version: str) -> Summary | None:
    """Return the summary in a text. Return ``None`` if the text is damaged or of another ``version``."""
    try:
        raw = json.loads(text)
        is_current = isinstance(raw, dict) and raw.get("at") == version
        found: Summary | None = read_fields(Summary, raw) if is_current else None
    except (ValueError, TypeError, RecursionError):
        return None
    return found


def summary_path(journal: Path) -> Path:
    """Return the path of the summary file next to a journal."""
    return journal.with_suffix(".summary.json")


def save_summary(journal: Path, state: State, size: int) -> Summary:
    """Write the summary of a session next to its journal of ``size`` bytes, and return it.

    Errors are ignored, because a missing summary is computed again.
    """
    summary = summary_of(journal.stem, state)
    with suppress(OSError):
        write_atomically(summary_path(journal), to_text(summary, str(size)).encode(), sync=False)
    return summary


def _read_cached(journal: Path) -> Summary | None:
    """Return the summary in a journal's summary file; ``None`` if that file is missing, damaged or out of date.

    Raise ``OSError`` if the journal does not exist.
    """
    size = str(journal.stat().st_size)
    try:
        found = from_text(summary_path(journal).read_bytes(), size)
    except OSError:
        return None
    return None if found is None else replace(found, id=journal.stem)


def _compute_summary(journal: Path) -> Summary:
    """Compute the summary of a journal, save it and return it. Raise ``OSError`` if the journal cannot be read."""
    with journal.open("rb") as rows:
        size = os.fstat(rows.fileno()).st_size  # before reading: a running session may append meanwhile
        return save_summary(journal, load_journal(rows).state, size)


def find_journal(folder: Path, id: str) -> Path:
    """Return the path of the journal whose id ``match_id`` selects. Raise ``SessionError`` if there is none."""
    paths = {path.stem: path for path in _journals(folder) if path.stem.startswith(id) or path.stem.endswith(id)}
    return paths[match_id((stem for stem, path in paths.items() if _is_journal(path)), id)]


def match_id(ids: Iterable[str], id: str) -> str:
    """Return the full id that begins with ``id``. If there is none, return the id that ends with ``id``.

    Raise ``SessionError`` if no id matches, or if several match and none is equal to ``id``.
    """
    ids = sorted(ids)
    found = [each for each in ids if each.startswith(id)] if id else []
    if not found and len(id) >= LEAST_END:
        found = [each for each in ids if each.endswith(id)]
    if not found:
        raise SessionError(f"there is no session {id!r:.60}; chain sessions list shows all sessions")
    if len(found) > 1 and id not in found:
        first = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
        raise SessionError(f"{id!r:.60} matches {len(found)} sessions: {first}; type more of the id")
    return id if id in found else found[0]


@contextmanager
def convert_read_errors(path: Path) -> Iterator[None]:
    """Convert an ``OSError`` of the block, which reads a journal, to a ``SessionError`` that names the file."""
    try:
        yield
    except OSError as error:
        raise SessionError(f"cannot be read: {error.strerror or error}", file=path) from None


def is_open(path: Path) -> bool:
    """Return whether a process has the session open."""
    try:
        with path.open("rb") as file:
            return has_writer(file.fileno())
    except OSError:
        return False


def _journals(folder: Path) -> Iterator[Path]:
    """Yield the paths of regular files that are named like a journal, in no particular order.

    Other kinds of files are skipped, since opening one, such as a FIFO, could block.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.name.endswith(SUFFIX) and entry.is_file():
                    yield folder / entry.name


def _is_journal(path: Path) -> bool:
    """Return whether a file starts with a record."""
    try:
        with path.open("rb") as file:
            return any(Reading(file.read(MAX_FIRST_RECORD).splitlines(keepends=True)))
    except OSError:
        return False
