"""The tools that read files of the workspace: list, read and search.

What they may open is said in ``paths``. Rows have one form, ``PATH: N lines, N words, N bytes`` and
``PATH:LINE: text``, for models and rule files alike.

Files are read in worker threads, which are left behind when the run is interrupted, and end when they next check it.
The threads are these tools' own: a file system that does not answer makes nobody else wait.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BufferedReader
from pathlib import Path, PurePath

import trio

from chain.errors import ToolError
from chain.messages import JsonObject
from chain.threads import Threads
from chain.tools import grep
from chain.tools.paths import MAX_WHOLE, as_text, existing, open_file
from chain.tools.seen import digest
from chain.tools.tool import Tool, ToolContext, tool

LEFT_OUT = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        ".venv",
        "__pycache__",
        "node_modules",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".hypothesis",
        ".tox",
    }
)
"""Folders that hold what programs made: thousands of files that nobody asks about."""

MAX_FOUND = 20_000
"""Files of a tree that are listed, and folders; it takes about a second to find so many."""

MAX_ROWS = 300
"""Rows in a list: with usual paths they just fit the default limit of a tool result."""

MAX_MATCHES = 200
"""Rows of a search; who needs more needs a better pattern."""

MAX_COUNTED = 64 * 1024 * 1024
"""Bytes of all the files that one list counts lines and words of; it takes about a second."""

MAX_SHOWN = 24_000
"""Characters of a file in one result: below the default limit of a tool result, so that it ends where it says."""

MAX_PATTERN = 1_000

_THREADS = Threads("files")

LOOK_UP = 1_000
"""Names of a folder between two checks whether the run goes on."""

BATCH = 1_000
"""Files that one search process gets; progress is reported between them."""

SEARCH_S = 20
"""Seconds for a search: 20,000 usual files take about 10, and an expression that needs longer will not end at all."""


@tool(read_only=True)
async def list_files(ctx: ToolContext, path: str = ".") -> str:
    """List the files under a folder of the workspace, each with its lines, words and bytes.

    `path` is relative to the workspace, and "." is the workspace itself. Folders such as .git are left out.
    """
    return await _THREADS.run(partial(_list, ctx.workspace, path), abandon_on_cancel=True)


@tool(read_only=True)
async def read_file(ctx: ToolContext, path: str, offset: int = 1, limit: int = 0) -> str:
    """Read a text file of the workspace. The first row of the result gives its lines, words and bytes.

    `path` is relative to the workspace. `offset` is the first line to show, counted from 1, and `limit` the number of
    lines; 0 shows as many as fit. A result that does not reach the end says how to read on.
    """
    if offset < 1 or limit < 0:
        raise ToolError("offset counts lines from 1, and limit must not be negative.")
    found = await _THREADS.run(partial(_read, ctx.workspace, path, offset, limit), abandon_on_cancel=True)
    if found.digest:
        # Also when only a part is shown: an edit has to say what stands in the file, and its difference shows the rest.
        ctx.seen.note(found.path, found.digest)
    return found.text


@tool(read_only=True)
async def search_files(ctx: ToolContext, pattern: str, path: str = ".") -> str:
    """Search the text files under a folder of the workspace, or one file, line by line.

    `pattern` is a Python regular expression; begin it with (?i) to ignore case. `path` is relative to the workspace.
    The result has a row PATH:LINE: text for each matching line, and the counts at the end.
    """
    if not pattern or len(pattern) > MAX_PATTERN:
        raise ToolError(f"The pattern must have 1 to {MAX_PATTERN} characters; it has {len(pattern)}.")
    tree = await _THREADS.run(partial(_tree, ctx.workspace, path), abandon_on_cancel=True)
    with trio.move_on_after(SEARCH_S) as patience:
        return await _search(ctx, pattern, path, tree)
    assert patience.cancelled_caught
    raise ToolError(
        f"The search took longer than {SEARCH_S} s and was ended: make the pattern simpler, or search a smaller folder."
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file as it is shown, and the parts of its real path below the workspace; without them ``note`` says why."""

    shown: str
    parts: tuple[str, ...] | None = None
    note: str = ""


@dataclass(slots=True)
class _Tree:
    """The files under a folder in their order, and what was passed over. ``root`` is the workspace, resolved."""

    root: Path
    entries: list[_Entry] = field(default_factory=list)
    folders: int = 0
    left_out: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    complete: bool = True

    def notes(self) -> list[str]:
        """What was passed over, a sentence each."""
        notes = []
        if self.left_out:
            notes.append(f"Left out: {_some(self.left_out)}.")
        if self.unreadable:
            notes.append(f"Not readable: {_some(self.unreadable)}.")
        if not self.complete:
            notes.append(f"Only the first {MAX_FOUND} files were looked at; give a folder inside for the others.")
        return notes


def _some(names: list[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _list(workspace: Path, path: str) -> str:
    tree = _tree(workspace, path)
    rows, budget = list[str](), MAX_COUNTED
    for entry in tree.entries[:MAX_ROWS]:
        trio.from_thread.check_cancelled()
        row, used = _row(tree.root, entry, budget)
        budget -= used
        rows.append(row)
    shown = as_text(PurePath(path))
    more = len(tree.entries) - len(rows)
    if more:
        rows.append(f"({more} more files are not shown; list a folder inside {shown}.)")
    count = f"{len(tree.entries)} file{'' if len(tree.entries) == 1 else 's'}"
    folders = f" in {tree.folders + 1} folders" if tree.folders else ""
    return "\n".join([f"{shown}: {count}{folders}", *rows, *tree.notes()])


def _row(root: Path, entry: _Entry, budget: int) -> tuple[str, int]:
    """A file's row, and how many bytes were read for it."""
    if entry.parts is None:
        return f"{entry.shown}: {entry.note}", 0
    try:
        with open_file(root, entry.parts, entry.shown) as file:
            size = os.fstat(file.fileno()).st_size
            if size > min(MAX_WHOLE, budget):
                return f"{entry.shown}: {size} bytes, not counted", 0
            raw = file.read(MAX_WHOLE)
    except (ToolError, OSError):
        return f"{entry.shown}: not readable", 0
    if b"\0" in raw:
        return f"{entry.shown}: {len(raw)} bytes, binary", len(raw)
    return f"{entry.shown}: {_counts(raw, _text(raw))}", len(raw)


def _counts(raw: bytes, text: str) -> str:
    return f"{len(_lines(text))} lines, {len(text.split())} words, {len(raw)} bytes"


def _text(raw: bytes) -> str:
    return raw.decode("utf-8-sig", "replace").replace("\r\n", "\n")


def _lines(text: str) -> list[str]:
    """The lines as editors count them: an end of line ends one and begins none."""
    lines = text.split("\n")
    return lines[:-1] if not lines[-1] else lines


@dataclass(frozen=True, slots=True)
class _Found:
    """The text of a result; the digest of the file, if all of it went through our hands."""

    text: str
    path: Path
    digest: str = ""


def _read(workspace: Path, path: str, offset: int, limit: int) -> _Found:
    real, shown, root = existing(workspace, path), as_text(PurePath(path)), workspace.resolve()
    if real.is_dir():
        raise ToolError(f"{shown} is a folder; use list_files to see what is in it.")
    with open_file(root, real.relative_to(root).parts, shown) as file:
        size = os.fstat(file.fileno()).st_size
        if b"\0" in file.peek():
            raise ToolError(f"{shown} is a binary file of {size} bytes; only text can be read.")
        if size > MAX_WHOLE:
            if offset == 1 and not limit:
                raise ToolError(
                    f"{shown} has {size} bytes, more than the {MAX_WHOLE} that are read whole: read a part with "
                    "offset (the first line, from 1) and limit (the number of lines)."
                )
            return _Found(_part(f"{shown}: {size} bytes", _lines_from(file, offset), offset, limit), real)
        raw = file.read(MAX_WHOLE)
    if b"\0" in raw:
        raise ToolError(f"{shown} is a binary file of {size} bytes; only text can be read.")
    text = _text(raw)
    head = f"{shown}: {_counts(raw, text)}"
    if "\ufffd" in text and "\ufffd".encode() not in raw:
        head += "; it is not UTF-8, and \ufffd stands for what could not be read"
    return _Found(_part(head, iter(_lines(text)[offset - 1 :]), offset, limit), real, digest(raw))


def _lines_from(file: BufferedReader, offset: int) -> Iterator[str]:
    """The lines of a file too large to be held, from ``offset``; of a very long line only the beginning."""
    n, begins = 1, True
    for count in itertools.count():
        piece = file.readline(MAX_SHOWN)
        if not piece:
            return
        if count % 1_000 == 0:
            trio.from_thread.check_cancelled()
        if begins and n >= offset:
            yield _text(piece).rstrip("\n")
        begins = piece.endswith(b"\n")
        n += begins


def _part(head: str, lines: Iterator[str], offset: int, limit: int) -> str:
    """As many of the lines as fit, below a row that says which they are unless they are all."""
    shown: list[str] = []
    chars, more = 0, False
    for line in lines:
        chars += len(line) + 1
        if (limit and len(shown) == limit) or (chars > MAX_SHOWN and shown):
            more = True
            break
        shown.append(line if chars <= MAX_SHOWN else f"{line[:MAX_SHOWN]}… (the rest of this line is not shown)")
    if not shown and offset > 1:
        raise ToolError(f"There is no line {offset}. {head}.")
    if more or offset > 1:
        last = offset + len(shown) - 1
        head += f"; lines {offset} to {last} are shown" + (f", read on with offset={last + 1}" if more else "")
    return "\n".join([head, *shown])


def _tree(workspace: Path, path: str) -> _Tree:
    base, given, root = existing(workspace, path), PurePath(path), workspace.resolve()
    parts = base.relative_to(root).parts
    if not base.is_dir():
        return _Tree(root, [_Entry(as_text(given), parts)])
    tree, waiting, seen = _Tree(root), [(given, parts)], 1
    while waiting:
        here, parts = waiting.pop()
        try:
            names, folders, links = _scan(root, parts)
        except OSError:
            tree.unreadable.append(as_text(here))
            continue
        tree.folders += here != given
        tree.left_out += sorted(f"{as_text(here / name)}/" for name in folders if name in LEFT_OUT)
        inner = _first([name for name in folders if name not in LEFT_OUT], MAX_FOUND - seen)
        seen += len(inner)
        found = _first(names, MAX_FOUND - len(tree.entries))
        for name in found:
            shown = as_text(here / name)
            tree.entries.append(_link(root, parts, name, shown) if name in links else _Entry(shown, (*parts, name)))
        left = len(folders) - len(inner) - sum(name in LEFT_OUT for name in folders)
        tree.complete = tree.complete and not left and len(found) == len(names)
        if len(tree.entries) == MAX_FOUND:
            tree.complete = tree.complete and not (inner or waiting)
            break
        waiting += [(here / name, (*parts, name)) for name in reversed(inner)]
    return tree


def _scan(root: Path, parts: tuple[str, ...]) -> tuple[list[str], list[str], set[str]]:
    """The names in a folder of what is no folder, of the folders, and of the links. Raises ``OSError``."""
    names: list[str] = []
    folders: list[str] = []
    links: set[str] = set()
    descriptor = grep.open_below(str(root), parts, os.O_DIRECTORY)
    try:
        with os.scandir(descriptor) as entries:
            for n, entry in enumerate(entries):
                if n % LOOK_UP == 0:
                    trio.from_thread.check_cancelled()
                is_folder = entry.is_dir(follow_symlinks=False)
                (folders if is_folder else names).append(entry.name)
                if not is_folder and entry.is_symlink():
                    links.add(entry.name)
    finally:
        os.close(descriptor)
    return names, folders, links


def _first(names: Sequence[str], most: int) -> list[str]:
    """The first of the names in their order. Sorting all of very many would hold up every other thread."""
    return sorted(names) if len(names) <= most else heapq.nsmallest(max(most, 0), names)


def _link(root: Path, parts: tuple[str, ...], name: str, shown: str) -> _Entry:
    try:
        real = root.joinpath(*parts, name).resolve(strict=True)
        is_folder = real.is_dir()
    except (OSError, RuntimeError):
        return _Entry(shown, note="a broken link")
    if not real.is_relative_to(root):
        return _Entry(shown, note="a link that leads out of the workspace")
    if is_folder:
        return _Entry(shown, note="a link to a folder, not followed")
    return _Entry(shown, real.relative_to(root).parts)


async def _search(ctx: ToolContext, pattern: str, path: str, tree: _Tree) -> str:
    files = [(entry.shown, entry.parts) for entry in tree.entries if entry.parts is not None]
    rows: list[str] = []
    matches = matching = skipped = 0
    for start in range(0, len(files), BATCH):
        if start:
            ctx.progress(f"searched {start} of {len(files)} files, {matches} matches")
        found = await _grep(pattern, tree.root, files[start : start + BATCH], MAX_MATCHES - len(rows))
        rows += found["rows"]
        matches += found["matches"]
        matching += found["files"]
        skipped += found["skipped"]
    if matches > len(rows):
        rows.append(f"({matches - len(rows)} more matching lines are not shown.)")
    lines, s = "line" if matches == 1 else "lines", "" if len(files) == 1 else "s"
    rows.append(f"{matches} matching {lines} in {matching} of {len(files)} file{s} searched.")
    if skipped:
        rows.append(f"Not searched: {skipped} that are binary, not readable or larger than {grep.MAX_FILE} bytes.")
    return "\n".join([*rows, *tree.notes()])


async def _grep(pattern: str, root: Path, files: list[tuple[str, tuple[str, ...]]], rows: int) -> JsonObject:
    request = json.dumps({"pattern": pattern, "root": str(root), "files": files, "rows": rows})
    # A session of its own: Ctrl-C in the terminal is for the chain, which ends the search itself.
    done = await trio.run_process(
        [sys.executable, "-I", "-S", grep.__file__],
        stdin=request.encode(),
        capture_stdout=True,
        stderr=subprocess.DEVNULL,
        check=False,
        start_new_session=True,
    )
    if done.returncode:
        raise ToolError(f"The search for {pattern!r} failed (its process ended with {done.returncode}); simplify it.")
    answer: JsonObject = json.loads(done.stdout)
    if "error" in answer:
        raise ToolError(f"{pattern!r} is not a regular expression: {answer['error']}.")
    return answer


TOOLS: tuple[Tool, ...] = (list_files, read_file, search_files)
