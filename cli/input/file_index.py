"""An index of all files in the workspace and in added directories, for fuzzy matching; and git's ignore rules."""

from __future__ import annotations

import fnmatch
import heapq
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from chain.app.toolbox import LEFT_OUT
from chain.concurrency.threads import run_with_timeout

MAX_INDEXED = 100_000
"""Maximum files of an index. Matching them takes about a microsecond per file, each time a key is pressed."""

MAX_RANKED = 20_000
"""Maximum matches that are ranked, in some hundredths of a second. Further matches of a short text are ignored."""

INDEX_S = 5.0
"""Maximum seconds to read the names of all files. If the disk is slower, the index is incomplete."""

INDEX_FRESH_S = 10.0
"""Seconds after which an index is old. Then the next key starts to read the names again, in the background."""

MAX_IGNORE_FILE = 64 * 1024
"""Maximum bytes that are read from a ``.gitignore``."""


class IgnoreRule(NamedTuple):
    """A row of a ``.gitignore``, whose folder is ``depth`` levels below the root."""

    matches: Callable[[str], object]
    depth: int
    is_path: bool
    """Whether the pattern is compared with the path below the folder; else it is compared with the last name alone."""
    only_folders: bool
    is_exception: bool


def ignore_rules(folder: Path, depth: int) -> list[IgnoreRule]:
    """Return the rules of the ``.gitignore`` in a folder ``depth`` levels below the root; none if it is unreadable."""
    try:
        if not (path := folder / ".gitignore").is_file():
            return []
        with path.open("rb") as file:
            rows = file.read(MAX_IGNORE_FILE).decode(errors="replace").splitlines()
    except OSError:
        return []
    return [_rule(row.rstrip(), depth) for row in rows if row.strip() and not row.startswith("#")]


def _rule(row: str, depth: int) -> IgnoreRule:
    pattern = row.removeprefix("!")
    shown = pattern.rstrip("/")
    is_path = "/" in shown
    expression = fnmatch.translate(shown.removeprefix("/").replace("**/", "*") if is_path else shown)
    return IgnoreRule(re.compile(expression).match, depth, is_path, pattern.endswith("/"), row.startswith("!"))


def is_ignored(parts: Sequence[str], is_folder: bool, rules: Iterable[IgnoreRule]) -> bool:
    """Return whether git ignores a path whose folder it does not ignore. The last matching rule decides."""
    found = parts[-1] == ".git"
    for rule in rules:
        if rule.only_folders and not is_folder:
            continue
        if rule.matches("/".join(parts[rule.depth :]) if rule.is_path else parts[-1]):
            found = not rule.is_exception
    return found


class _File(NamedTuple):
    folded: str
    """The path in ``name``, case-folded."""
    base_start: int
    """The index in ``folded`` at which the last name of the path begins."""
    is_ignored: bool
    name: str
    """The path to type after an ``@``: relative for a file in the workspace, absolute for others."""


@dataclass(eq=False, slots=True)
class _Reading:
    """The files that a reading thread has found so far. ``start_time`` is the thread's start by the monotonic clock."""

    roots: tuple[Path, ...]
    start_time: float = field(default_factory=time.monotonic)
    files: list[_File] = field(default_factory=list)
    complete: threading.Event = field(default_factory=threading.Event)

    @property
    def age(self) -> float:
        """Seconds since the start of the reading."""
        return time.monotonic() - self.start_time

    def read(self) -> None:
        """Read the names of all files below ``roots``, and set ``complete``. Blocks."""
        try:
            for n, root in enumerate(self.roots):
                room = MAX_INDEXED - len(self.files)
                self.files.extend(islice(_files_below(root, self.start_time + INDEX_S, is_added=n > 0), room))
        finally:
            self.complete.set()


@dataclass(eq=False, slots=True)
class _Match:
    """The matches of ``typed`` among the first ``searched_count`` files of a reading.

    A longer text that begins with ``typed`` can match only these files.
    """

    reading: _Reading
    searched_count: int = 0
    typed: str = ""
    files: Sequence[_File] = ()


class FileIndex:
    """An index of all files of some directories, the workspace first. Any thread may use it."""

    def __init__(self) -> None:
        self._current = _Reading(())
        self._next: _Reading | None = None
        self._match = _Match(self._current)

    def matches(self, typed: str, roots: Sequence[Path], count: int, patience_s: float) -> list[tuple[str, bool]]:
        """Return the names of the ``count`` best matches, each with whether git ignores the file.

        A file matches if its path contains the characters of ``typed`` in order. The best matches are not ignored, are
        in the last name of the path, and have the fewest other characters in between, in this order of importance. If
        the names are still being read, wait until ``patience_s`` seconds after the start of the reading.
        """
        self.prepare(roots)
        self._current.complete.wait(max(patience_s - self._current.age, 0))
        typed = typed.casefold()
        files: Sequence[_File] = self._current.files
        found, before = len(files), self._match
        if before.reading is self._current and before.searched_count == found and typed.startswith(before.typed):
            files = before.files
        search = _fuzzy_expression(typed).search
        fitting, ranked = [], []
        for file in islice(files, found):
            in_name = search(file.folded, file.base_start)
            if (match := in_name or search(file.folded)) is not None:
                start, end = match.span()
                fitting.append(file)
                length, place = end - start, start - file.base_start if in_name else start
                ranked.append((file.is_ignored, in_name is None, length, place, len(file.folded), file.name))
                if len(ranked) == MAX_RANKED:
                    break
        else:
            self._match = _Match(self._current, found, typed, fitting)
        return [(name, is_ignored) for is_ignored, *_, name in heapq.nsmallest(count, ranked)]

    def prepare(self, directories: Sequence[Path]) -> None:
        """Use the latest reading of these directories. If there is none or it is old, start one in the background."""
        roots = tuple(directories)
        if self._next is not None and self._next.complete.is_set():
            self._current, self._next = self._next, None
        if self._current.roots != roots:
            self._current, self._next = _Reading(roots), None
            run_with_timeout(self._current.read, 0)
        elif self._next is None and self._current.complete.is_set() and self._current.age > INDEX_FRESH_S:
            self._next = _Reading(roots)
            run_with_timeout(self._next.read, 0)


def _fuzzy_expression(text: str) -> re.Pattern[str]:
    """Return a regular expression that finds the characters of a nonempty text in order, without backtracking."""
    first, *others = map(re.escape, text)
    return re.compile("".join([first, *(f"[^{each}]*{each}" for each in others)]))


def _files_below(root: Path, deadline: float, *, is_added: bool) -> Iterator[_File]:
    """Yield the files below a directory until the deadline: upper folders first, files that git ignores last.

    Skip links and folders of generated files.
    """
    folders: deque[tuple[tuple[str, ...], bool, tuple[IgnoreRule, ...]]] = deque([((), False, ())])
    ignored_folders: list[tuple[tuple[str, ...], bool, tuple[IgnoreRule, ...]]] = []
    while (folders or ignored_folders) and time.monotonic() < deadline:
        parts, is_inside_ignored, rules = folders.popleft() if folders else ignored_folders.pop()
        here = root.joinpath(*parts)
        rules = rules if is_inside_ignored else (*rules, *ignore_rules(here, len(parts)))
        with suppress(OSError), os.scandir(here) as entries:
            for entry in islice(entries, MAX_INDEXED):
                name = entry.name
                is_folder = entry.is_dir(follow_symlinks=False)
                if entry.is_symlink() or (is_folder and name in LEFT_OUT):
                    continue
                own = (*parts, name)
                is_left = is_inside_ignored or is_ignored(own, is_folder, rules)
                if is_folder:
                    (ignored_folders if is_left else folders).append((own, is_left, rules))
                elif name.isprintable() and '"' not in name:
                    path = "/".join((str(root), *own) if is_added else own)
                    folded = path.casefold()
                    yield _File(folded, len(folded) - len(name.casefold()), is_left, path)
