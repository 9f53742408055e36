"""The tools ``list_files``, ``read_file`` and ``search_files``, which read files of the workspace.

``paths`` decides which files they may open. Rule files of the scripted model parse the rows of their results, so the
forms ``PATH: N lines, N words, N bytes`` and ``PATH:LINE: text`` must not change.

Files are read in worker threads. An interrupt abandons a thread, which ends at its next check for cancellation. These
tools have threads of their own, so a file system that does not respond blocks nothing else.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from io import StringIO, TextIOWrapper
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Literal, TextIO, TypeAlias

import trio

from chain.concurrency.threads import Threads
from chain.errors import ToolError
from chain.text.search import BadPattern, Expressions, SearchBudget, TooSlow
from chain.text.wording import join_first
from chain.tools.file_text import FileText
from chain.tools.file_tree import MAX_EXCERPT, MAX_OMISSIONS, Tree, TreeEntry, excerpt, walk
from chain.tools.file_versions import digest
from chain.tools.paths import MAX_WHOLE, open_file, printable_path, resolve_existing
from chain.tools.tool import Tool, ToolContext, ToolOutput, tool

if TYPE_CHECKING:
    from chain.text.search import Pattern

MAX_LIST_ROWS = 300
"""The most rows of a list: with paths of usual length, they just fit into the default limit of a tool result."""

MAX_MATCHES = 200
"""The most matching lines in a search result."""

MAX_COUNTED_BYTES = 64 * 1024 * 1024
"""The total bytes of the files whose lines and words one list counts. Counting this many takes about a second."""

MAX_SHOWN_FILE = 24_000
"""The most characters of a file in one result, unless the limit of a result is lower."""

MAX_PATTERN = 1_000

Order: TypeAlias = Literal["path", "largest", "smallest", "newest", "oldest"]

_THREADS = Threads("files")

BATCH = 1_000
"""Files between two reports of progress."""

SEARCH_S = 20
"""The time limit of a search, in seconds. Searching 20,000 usual files takes about 10 s."""

FILE_S = 3.0
"""The most seconds of processor time to search one file. The largest file takes 0.5 s; a pattern that takes longer than
the limit would hardly ever end. An abandoned search ends within the limit too.
"""


@tool(kind="search", read_only=True)
async def list_files(ctx: ToolContext, path: str = ".", pattern: str = "*", order: Order = "path") -> ToolOutput:
    """List the files under a folder of the workspace, each with its number of lines, words and bytes.

    `path` is relative to the workspace, or absolute in a directory that the user added; "." is the workspace itself.
    Folders such as .git are left out. `pattern` chooses files by their names, as *.py does, or with a / in it by their
    paths. `order` is path, or says which files come first; newest and oldest also show when each file changed.
    """
    if not pattern or len(pattern) > MAX_PATTERN:
        raise ToolError(f"The pattern must have 1 to {MAX_PATTERN} characters; it has {len(pattern)}.")
    return await _THREADS.run(partial(_list, ctx.root_of(path), path, pattern, order), abandon_on_cancel=True)


@tool(kind="read", read_only=True)
async def read_file(ctx: ToolContext, path: str, offset: int = 1, limit: int = 0, column: int = 1) -> ToolOutput:
    """Read a text file of the workspace. The first row of the result counts its lines, words and bytes.

    `path` is as in list_files. `offset` is the first line to show, counted from 1, and `limit` the number of lines; 0
    shows as many as fit. `column` is the first character of the first line to show, counted from 1: use it to read the
    rest of a long line. A result that does not reach the end says how to continue.
    """
    if offset < 1 or column < 1 or limit < 0:
        raise ToolError("offset counts lines from 1, column characters from 1, and limit must not be negative.")
    most = min(MAX_SHOWN_FILE, ctx.room)
    read = partial(_read, ctx.root_of(path), path, offset, column, limit, most)
    output, real, read_digest = await _THREADS.run(read, abandon_on_cancel=True)
    if read_digest:
        # Also if only a part was shown: an edit must quote the text that it replaces, and its diff shows the rest.
        ctx.known_files.digests[real] = read_digest
    return output


@tool(kind="search", read_only=True)
async def search_files(ctx: ToolContext, pattern: str, path: str = ".") -> ToolOutput:
    """Search the text files under a folder of the workspace, or one file, line by line.

    `pattern` is a Python regular expression; begin it with (?i) to ignore case. `path` is as in list_files. The result
    has a row PATH:LINE: text for each matching line, and the counts at the end. A long line is shortened to the part
    around its first match, and the column of the match follows.
    """
    if not pattern or len(pattern) > MAX_PATTERN:
        raise ToolError(f"The pattern must have 1 to {MAX_PATTERN} characters; it has {len(pattern)}.")
    try:
        compiled = await _THREADS.run(lambda: Expressions().compile(pattern, ignore_case=False), abandon_on_cancel=True)
    except BadPattern as error:
        raise ToolError(f"{pattern!r} {error}.") from None
    tree = await _THREADS.run(partial(walk, ctx.root_of(path), path), abandon_on_cancel=True)
    return await _search(ctx, compiled, tree)


def _list(workspace: Path, path: str, pattern: str, order: Order) -> ToolOutput:
    tree = walk(workspace, path)
    # A pattern with a / matches the path, any other pattern the name.
    fits = re.compile(fnmatch.translate(pattern)).match
    entries = [e for e in tree.entries if fits(e.shown if "/" in pattern else e.shown.rpartition("/")[2])]
    if order != "path":
        entries = _sort(tree.root, entries, order)
    rows, budget = list[str](), MAX_COUNTED_BYTES
    for entry in entries[:MAX_LIST_ROWS]:
        trio.from_thread.check_cancelled()
        row, used = _file_row(tree.root, entry, budget, is_dated=order in ("newest", "oldest"))
        budget -= used
        rows.append(row)
    shown = printable_path(PurePath(path))
    more = len(entries) - len(rows)
    if more:
        rows.append(f"({more} more files are not shown; list a folder inside {shown}.)")
    count = _pluralize(len(tree.entries), "file")
    if pattern != "*":
        count = f"{_pluralize(len(entries), 'file')} named {printable_path(PurePath(pattern))}, of {count}"
    count += f" in {tree.folders + 1} folders" if tree.folders else ""
    return ToolOutput("\n".join([f"{shown}: {count}", *rows, *tree.notes()]), summary=(count,))


def _pluralize(n: int, thing: str, things: str = "") -> str:
    """Return a count with its noun, in digits without separators, which models read best."""
    return f"{n} {thing}" if n == 1 else f"{n} {things or f'{thing}s'}"


def _sort(root: Path, entries: Sequence[TreeEntry], order: Order) -> list[TreeEntry]:
    """Sort the entries by size or by time. Files that cannot be opened come last. Equal files stay sorted by path."""

    def place(entry: TreeEntry) -> tuple[bool, int]:
        trio.from_thread.check_cancelled()
        if entry.parts is None:
            return True, 0
        try:
            with open_file(root, entry.parts, entry.shown) as file:
                status = os.fstat(file.fileno())
        except (ToolError, OSError):
            return True, 0
        value = status.st_size if order in ("largest", "smallest") else status.st_mtime_ns
        return False, -value if order in ("largest", "newest") else value

    return sorted(entries, key=place)


def _file_row(root: Path, entry: TreeEntry, budget: int, *, is_dated: bool) -> tuple[str, int]:
    """Return the row of a file in a list, and the bytes read. A file of more than ``budget`` bytes is not read."""
    if entry.parts is None:
        return f"{entry.shown}: {entry.note}", 0
    try:
        with open_file(root, entry.parts, entry.shown) as file:
            status = os.fstat(file.fileno())
            date = f", {_change_date(status.st_mtime)}" if is_dated else ""
            if status.st_size > min(MAX_WHOLE, budget):
                return f"{entry.shown}: {status.st_size} bytes, not counted{date}", 0
            raw = file.read(MAX_WHOLE)
    except (ToolError, OSError):
        return f"{entry.shown}: not readable", 0
    text = FileText.of(raw)
    counts = f"{len(raw)} bytes, binary" if text is None else _counts(raw, text)
    return f"{entry.shown}: {counts}{date}", len(raw)


def _change_date(seconds: float) -> str:
    # In UTC, so that results do not depend on the machine.
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("changed %Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):  # some file systems have times of any year
        return "date unknown"


def _counts(raw: bytes, text: FileText) -> str:
    counts = ((len(text.lines), "line"), (len(text.body.split()), "word"), (len(raw), "byte"))
    return ", ".join(_pluralize(count, thing) for count, thing in counts)


def _read(workspace: Path, path: str, offset: int, column: int, limit: int, most: int) -> tuple[ToolOutput, Path, str]:
    """Return the result of ``read_file``, the file's real path, and the digest of its content.

    ``most`` is the largest number of characters of the file to show. The digest is empty if the file is too large to be
    read as a whole. Raise ``ToolError`` if the file cannot be read or has no such line or column.
    """
    real, shown, root = resolve_existing(workspace, path), printable_path(PurePath(path)), workspace.resolve()
    if real.is_dir():
        raise ToolError(f"{shown} is a folder; use list_files to see what is in it.")
    with open_file(root, real.relative_to(root).parts, shown) as file:
        size = os.fstat(file.fileno()).st_size
        raw = file.peek() if size > MAX_WHOLE else file.read(MAX_WHOLE)
        text = FileText.of(raw)
        if text is None:
            raise ToolError(f"{shown} is a binary file of {size} bytes; only text can be read.")
        counts = f"{size} bytes" if size > MAX_WHOLE else _counts(raw, text)
        head = "; ".join([f"{shown}: {counts}", *text.notes])
        if size <= MAX_WHOLE:
            whole, lines = StringIO(text.body), len(text.lines)
            found, part = _read_part(head, whole, offset, column, limit, most)
            summary = f"{part} of {lines}" if part else _pluralize(lines, "line")
            return ToolOutput(found, summary=(summary,)), real, digest(raw)
        file.seek(len(text.mark))
        with TextIOWrapper(file, text.codec, "replace", newline="\n") as large:
            found, part = _read_part(head, large, offset, column, limit, most)
            return ToolOutput(found, summary=(f"{part} of {size} bytes",)), real, ""


def _read_part(head: str, text: TextIO, offset: int, column: int, limit: int, most: int) -> tuple[str, str]:
    """Return the text of a result, and the range of the shown lines in words.

    The text is ``head``, followed by as many lines as fit into ``most`` characters. The range is empty if all lines
    are shown.
    """
    shown, room, rest = list[str](), most, ""
    is_there = _skip_to(text, offset, column)
    while is_there and not rest and (piece := text.readline(room + len("\r\n") + 1)):
        line = piece.removesuffix("\n").removesuffix("\r")
        if shown and (len(shown) == limit or len(line) > room):
            rest = f"offset={offset + len(shown)}"
        elif len(line) > room:
            rest = f"offset={offset} and column={column + most}"
            shown.append(f"{line[:most]}… (the rest of this line is not shown)")
        else:
            shown.append(line)
            room -= len(line) + 1
    if not shown and (offset > 1 or column > 1):
        raise ToolError(f"There is no line {offset}{f' with a column {column}' if column > 1 else ''}. {head}.")
    part, last = "", offset + len(shown) - 1
    if rest or offset > 1 or column > 1:
        part = f"line {offset}" if last == offset else f"lines {offset} to {last}"
        head += f"; {part} {'is' if last == offset else 'are'} shown"
        head += f" from column {column}" if column > 1 else ""
        head += f", read on with {rest}" if rest else ""
    return "\n".join([head, *shown]), part


def _skip_to(text: TextIO, offset: int, column: int) -> bool:
    """Skip the text before the line ``offset`` and its column ``column``. Return whether they exist."""
    n, left, count = 1, column - 1, 0
    while n < offset or (n == offset and left):
        if not (piece := text.readline(MAX_SHOWN_FILE if n < offset else min(left, MAX_SHOWN_FILE))):
            return False
        left -= len(piece) if n == offset else 0
        n += piece.endswith("\n")
        count += 1
        if count % 1_000 == 0:
            trio.from_thread.check_cancelled()
    return n == offset


@dataclass(slots=True)
class _Matches:
    """The matches of a search so far.

    ``rows`` are the first ``MAX_MATCHES`` matches. ``lines`` and ``files`` count all lines and files that match, and
    ``searched`` counts all files that were searched. ``skipped`` holds the names of the files that were not searched to
    their end, by the reason.
    """

    rows: list[str] = field(default_factory=list)
    lines: int = 0
    files: int = 0
    searched: int = 0
    skipped: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


async def _search(ctx: ToolContext, pattern: Pattern, tree: Tree) -> ToolOutput:
    files = [entry for entry in tree.entries if entry.parts is not None]
    found = _Matches()
    with trio.move_on_after(SEARCH_S):
        for start in range(0, len(files), BATCH):
            if start:
                ctx.progress(f"searched {start} of {len(files)} files, {_pluralize(found.lines, 'match', 'matches')}")
            batch = files[start : start + BATCH]
            await _THREADS.run(partial(_search_batch, pattern, tree.root, batch, found), abandon_on_cancel=True)
    # An abandoned thread may still be running. It adds a row to ``rows`` before it counts the row in ``lines``.
    lines, searched, skipped = found.lines, found.searched, dict(found.skipped)
    rows = found.rows[:lines]
    if lines > len(rows):
        rows.append(f"({lines - len(rows)} more matching lines are not shown.)")
    rows.append(f"{_pluralize(lines, 'matching line')} in {found.files} of {_pluralize(len(files), 'file')} searched.")
    if left := [entry.shown for entry in files[searched:]]:
        skipped[f"(the search took longer than {SEARCH_S} s: search a smaller folder)"] = left
    rows += [f"Not searched {why}: {join_first(names, MAX_OMISSIONS)}." for why, names in skipped.items()]
    return ToolOutput("\n".join([*rows, *tree.notes()]), summary=(_pluralize(lines, "match", "matches"),))


def _search_batch(pattern: Pattern, root: Path, files: Sequence[TreeEntry], found: _Matches) -> None:
    """Add the matches in these files to ``found``."""
    for entry in files:
        trio.from_thread.check_cancelled()
        if why := _search_file(pattern, root, entry, found):
            found.skipped[why].append(entry.shown)
        found.searched += 1


def _search_file(pattern: Pattern, root: Path, entry: TreeEntry, found: _Matches) -> str:
    """Add the matches in a file to ``found``. Return why it was not searched to its end; empty if it was."""
    try:
        with open_file(root, entry.parts or (), entry.shown) as file:
            raw = file.read(MAX_WHOLE + 1)
    except (ToolError, OSError):
        return "(not readable)"
    if len(raw) > MAX_WHOLE:
        return f"(larger than {MAX_WHOLE} bytes)"
    text = FileText.of(raw)
    if text is None:
        return "(binary)"
    before, budget = found.lines, SearchBudget(FILE_S)
    try:
        for n, line in enumerate(text.lines, 1):
            if (match := budget.search(pattern, line, len(line))) is None:
                continue
            if len(found.rows) < MAX_MATCHES:
                at = f" (column {match.start() + 1})" if len(line) > MAX_EXCERPT else ""
                found.rows.append(f"{entry.shown}:{n}: {excerpt(line, match.start())}{at}")
            found.lines += 1
    except TooSlow:
        return "to the end (the pattern takes too long there: make it simpler)"
    finally:
        found.files += found.lines > before
    return ""


TOOLS: tuple[Tool, ...] = (list_files, read_file, search_files)
