"""What sessions there are: a summary of each, and which one somebody means. Pure but for its files.

A journal may be large, and other programs' files may lie beside it. So of the rows only those are parsed that a summary
needs, which their beginning tells; what is torn, foreign or of another version is passed over, and never breaks a list.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from chain.errors import SessionError
from chain.journal import json as record_json
from chain.journal import records
from chain.journal.lock import has_writer
from chain.messages import Usage

SUFFIX = ".jsonl"

LEAST_END = 4
"""Characters of the end of an id that names a session: fewer would often be a slip."""

_ROW = re.compile(rb'\{"type":"([^"\\]{1,80})","seq":\d{1,19},"time":(\d[\d.e+-]{0,30}),')
_BRIEF = re.compile(rb'"id":"([^"\\]{1,80})",(?:"state":"(delivered|handled|returned|dropped)",|"text":")')
"""How a receipt or a line goes on after its beginning. Most records that a summary needs are these."""
_SESSION = b'{"type":"session","seq":'
"""How a row begins that tells in which folder a session was opened."""
_NEEDED = frozenset({b"session", b"line", b"receipt", b"model", b"result", b"draft"})

HEAD = 65_536
"""Bytes in which a journal has its first whole record, or it is none."""
STRIDE = 1024 * 1024
"""Bytes of a journal that are searched at once from its end on."""
MAX_ROW = 4 * 1024 * 1024
"""Bytes of a row that is parsed: what a summary needs is far shorter, and memory is not spent on what is no journal."""


@dataclass(frozen=True, slots=True)
class Summary:
    """One session at a glance; ``query`` is the first row of its first one, ``open_lines`` are ids of those that wait.

    ``changed`` is the time of its last record; tokens and cost are of the runs that ended.
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
    is_open: bool
    was_used: bool


def summaries(folder: Path, *, latest: int | None = None, workspace: Path | None = None) -> list[Summary]:
    """The sessions in a folder, the one that changed last first; of this workspace only, and at most the ``latest``."""
    found = []
    for changed, path in islice(_latest_first(folder, workspace), latest):
        with suppress(OSError):
            found.append(summary(path, changed))
    return found


def find_journal(folder: Path, id: str) -> Path:
    """The journal of the session whose id begins so, or ends so where that is no accident.

    Raises ``SessionError`` for none, and for several.
    """
    paths = {path.stem: path for path in _journals(folder, id)}
    return paths[one_of(paths, id)]


def one_of(ids: Iterable[str], id: str) -> str:
    """The one of these ids that begins so, or ends so where that is no accident. Raises ``SessionError``."""
    ids = sorted(ids)
    found = [each for each in ids if each.startswith(id)] if id else []
    if not found and len(id) >= LEAST_END:
        found = [each for each in ids if each.endswith(id)]
    if not found:
        raise SessionError(f"there is no session {id!r:.60}; chain sessions list shows those that there are")
    if len(found) > 1 and id not in found:
        named = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
        raise SessionError(f"{id!r:.60} could be any of {len(found)} sessions: {named}; write more of the id")
    return id if id in found else found[0]


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raise a ``SessionError`` that names the journal for an ``OSError`` of the block, which reads it."""
    try:
        yield
    except OSError as error:
        raise SessionError(f"cannot be read: {error.strerror or error}", file=path) from None


def is_open(path: Path) -> bool:
    """Whether a process has the session open."""
    try:
        with path.open("rb") as file:
            return has_writer(file.fileno())
    except OSError:
        return False


def _journals(folder: Path, part: str = "") -> Iterator[Path]:
    """The journals in a folder whose ids begin or end so, in no order."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        path = folder / name
        with suppress(OSError, ValueError):
            stem = name.removesuffix(SUFFIX)
            # Whatever is no ordinary file could make an open wait.
            if stem != name and (stem.startswith(part) or stem.endswith(part)) and path.is_file():
                with path.open("rb") as file:
                    is_journal = _first_time(file) is not None
                if is_journal:
                    yield path


def _first_time(file: BinaryIO) -> float | None:
    """The time of the first whole record; ``None`` if the file holds no journal."""
    left = HEAD
    while left > 0 and (row := file.readline(left)):
        if found := _ROW.match(row):
            return _time(found[2])
        left -= len(row)
    return None


def _latest_first(folder: Path, workspace: Path | None) -> Iterator[tuple[float, Path]]:
    """Those of a folder, or of a workspace in it, each with the time of its last change."""
    every = []
    for path in _journals(folder):
        with suppress(OSError):
            every.append((_last_time(path), path))
    here = None if workspace is None else os.path.realpath(workspace)
    for changed, path in sorted(every, key=lambda each: (each[0], each[1].name), reverse=True):
        with suppress(OSError):
            # Only as far as somebody asks, since it may take a look at all of the file.
            if here is None or ((its := _last_workspace(path)) and os.path.realpath(its) == here):
                yield changed, path


def _last_workspace(path: Path) -> str:
    """The folder that a session was opened in last; empty if that is not on record. Raises ``OSError``."""
    with path.open("rb") as file:
        for row in _rows_from_end(file):
            entry = _entry(row) if row.startswith(_SESSION) else None
            if entry is not None and isinstance(entry.record, records.Session):
                return entry.record.workspace
    return ""


def _last_time(path: Path) -> float:
    """The time of the last whole row. Raises ``OSError``."""
    with path.open("rb") as file:
        for row in _rows_from_end(file):
            if found := _ROW.match(row):
                return _time(found[2])
        file.seek(0)
        return _first_time(file) or 0.0


def _rows_from_end(file: BinaryIO) -> Iterator[bytes]:
    """The whole rows, the last one first; of one longer than ``MAX_ROW`` the beginning. Raises ``OSError``."""
    end, size, after = file.seek(0, os.SEEK_END), HEAD, b""
    is_whole = False  # what stands after the last end of a row is empty or torn
    while end:
        start = max(end - size, 0)
        file.seek(start)
        first, *rows = (file.read(end - start) + after).split(b"\n")
        for row in reversed(rows):
            if is_whole:
                yield row
            is_whole = True
        end, size, after = start, STRIDE, first[:MAX_ROW]
    if is_whole:
        yield after


def _time(written: bytes) -> float:
    try:
        time = float(written)
    except ValueError:
        return 0.0
    return time if 0 <= time < record_json.MAX_TIME else 0.0


@dataclass(slots=True)
class _Tally:
    """What the rows of a journal add up to."""

    workspace: str = ""
    """That of the last record of an opening: that of the first may be gone."""
    model: str = ""
    query: str | None = None
    runs: int = 0
    is_running: bool = False
    was_used: bool = False
    usage: Usage = field(default_factory=Usage)
    waiting: dict[str, str] = field(default_factory=dict)
    """The lines that wait, by their ids; their texts only as long as one of them may be the first query."""

    def read(self, row: bytes, body: int) -> None:
        """Add a row whose own fields begin at ``body``."""
        brief = _BRIEF.match(row, body) if self.query is not None and row.endswith(b"}\n") else None
        if brief is not None:
            # From the first query on only ids and states matter, so the rest is not parsed.
            id = brief[1].decode(errors="replace")
            if brief[2] is None:
                self.waiting[id] = ""
            else:
                self.waiting.pop(id, None)
                self.is_running = self.is_running or brief[2] == b"delivered"
        elif (entry := _entry(row)) is not None:
            self._add(entry.record)

    def _add(self, record: records.Record | records.Unknown) -> None:
        match record:
            case records.Session():
                self.workspace, self.model = record.workspace, record.model
            case records.Model(name=name):
                self.model = name
            case records.Line(id=id, text=text):
                self.was_used = True
                self.waiting[id] = text if self.query is None else ""
            case records.Draft(text=text):
                self.was_used = self.was_used or bool(text)
            case records.Receipt(state=state):
                text = self.waiting.pop(record.id, "")
                if state == "queued":
                    self.waiting[record.id] = text
                elif state == "delivered":
                    self.is_running = True
                    if record.point == "start" and self.query is None:
                        self.query = text
            case records.Result(usage=usage):
                self.runs += 1
                self.is_running = False
                self.usage += usage
            case _:
                pass


def summary(path: Path, changed: float | None = None) -> Summary:
    """The summary of one session, which has ``changed`` then if that is known. Raises ``OSError``."""
    with path.open("rb") as file:
        return summary_of(
            path.stem, file, _last_time(path) if changed is None else changed, is_open=is_open(path), workspace=""
        )


def summary_of(id: str, journal: BinaryIO, changed: float, *, is_open: bool, workspace: str) -> Summary:
    """The summary of a session from the rows of its journal; ``workspace`` is that of one that nobody has opened."""
    tally = _Tally(workspace)
    for row, body in _needed_rows(journal):
        tally.read(row, body)
    # A session whose first line still waits is known by that.
    query = tally.query if tally.query is not None else next(iter(tally.waiting.values()), "")
    return Summary(
        id=id,
        changed=changed,
        workspace=tally.workspace,
        model=tally.model,
        query=next((row.strip() for row in query.splitlines() if row.strip()), ""),
        runs=tally.runs + tally.is_running,
        tokens=tally.usage.total_tokens,
        cost_usd=tally.usage.cost_usd,
        open_lines=tuple(tally.waiting),
        is_open=is_open,
        was_used=tally.was_used,
    )


def _needed_rows(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """The rows that a summary needs, each with the place where the fields of its type begin."""
    while row := file.readline(MAX_ROW):
        found = _ROW.match(row)
        if not row.endswith(b"\n"):
            # The last row, torn; or one that is too long, whose rest is passed over.
            while (rest := file.readline(MAX_ROW)) and not rest.endswith(b"\n"):
                pass
        elif found is not None and found[1] in _NEEDED:
            yield row, found.end()


def _entry(row: bytes) -> records.Entry | None:
    try:
        raw = json.loads(row)
        return record_json.from_json(raw) if isinstance(raw, dict) else None
    except (ValueError, RecursionError):
        return None
