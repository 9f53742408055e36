"""Lists the files below a folder of the workspace, in a fixed order. Also shortens a long line for a search result.

``walk`` follows no link out of the workspace, even if the link is created during the walk. The number of files is
limited. ``walk`` reads the disk, so call it in a worker thread. It ends when the task that waits for it is cancelled.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

import trio

from chain.text.wording import join_first
from chain.tools.paths import open_entries, printable_path, resolve_existing

_CACHES = (".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", "__pycache__")
LEFT_OUT = frozenset({".git", ".hg", ".svn", ".venv", "node_modules", *_CACHES})
"""Names of folders that are left out of a tree: repositories, installed packages and caches."""

MAX_TREE_ENTRIES = 20_000
"""The most files in one tree, and the most folders. Finding this many takes about a second."""

MAX_EXCERPT = 200
"""The most characters of the excerpt of a matching line."""

MAX_OMISSIONS = 10
"""The most names of omitted files in one note."""

ENTRIES_PER_CHECK = 1_000
"""Entries of a folder between two checks for cancellation."""


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A file in a tree: its path as shown, and the parts of its real path below the tree's ``root``.

    For a file that must not be opened, ``parts`` is ``None``, and ``note`` says why.
    """

    shown: str
    parts: tuple[str, ...] | None = None
    note: str = ""


@dataclass(slots=True)
class Tree:
    """The files below a folder. ``root`` is the real path of the workspace or of an added directory.

    ``folders`` is the number of subfolders. ``left_out`` and ``unreadable`` are the paths of the folders that were not
    entered. ``is_complete`` is false if files or folders are missing because of ``MAX_TREE_ENTRIES``.
    """

    root: Path
    entries: list[TreeEntry] = field(default_factory=list)
    folders: int = 0
    left_out: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    is_complete: bool = True

    def notes(self) -> list[str]:
        """Return sentences about folders and files that the tree does not contain."""
        omitted = (("Left out", self.left_out), ("Not readable", self.unreadable))
        notes = [f"{what}: {join_first(names, MAX_OMISSIONS)}." for what, names in omitted if names]
        if not self.is_complete:
            limited = "files" if len(self.entries) == MAX_TREE_ENTRIES else "folders"
            notes.append(f"Only the first {MAX_TREE_ENTRIES} {limited} were read; name a subfolder to see the others.")
        return notes


def walk(workspace: Path, path: str) -> Tree:
    """Return all files below the folder ``path``, or the file ``path`` alone. Raise ``ToolError`` if there is none."""
    base, given, root = resolve_existing(workspace, path), PurePath(path), workspace.resolve()
    parts = base.relative_to(root).parts
    if not base.is_dir():
        return Tree(root, [TreeEntry(printable_path(given), parts)])
    tree, waiting, seen = Tree(root), [(given, parts)], 1
    while waiting:
        here, parts = waiting.pop()
        try:
            names, folders, links = scan(root, parts)
        except OSError:
            tree.unreadable.append(printable_path(here))
            continue
        tree.folders += here != given
        tree.left_out += sorted(f"{printable_path(here / name)}/" for name in folders if name in LEFT_OUT)
        entered = [name for name in folders if name not in LEFT_OUT]
        inner = _first_sorted(entered, MAX_TREE_ENTRIES - seen)
        seen += len(inner)
        found = _first_sorted(names, MAX_TREE_ENTRIES - len(tree.entries))
        for name in found:
            shown = printable_path(here / name)
            tree.entries.append(
                _link_entry(root, parts, name, shown) if name in links else TreeEntry(shown, (*parts, name))
            )
        tree.is_complete = tree.is_complete and len(inner) == len(entered) and len(found) == len(names)
        if len(tree.entries) == MAX_TREE_ENTRIES:
            tree.is_complete = tree.is_complete and not (inner or waiting)
            break
        waiting += [(here / name, (*parts, name)) for name in reversed(inner)]
    return tree


def scan(root: Path, parts: tuple[str, ...]) -> tuple[list[str], list[str], set[str]]:
    """Return a folder's file names, subfolder names, and file names that are links. Raise ``OSError`` on failure."""
    names, folders, links = list[str](), list[str](), set[str]()
    with open_entries(root, parts) as entries:
        for n, entry in enumerate(entries):
            if n % ENTRIES_PER_CHECK == 0:
                trio.from_thread.check_cancelled()
            is_folder = entry.is_dir(follow_symlinks=False)
            (folders if is_folder else names).append(entry.name)
            if not is_folder and entry.is_symlink():
                links.add(entry.name)
    return names, folders, links


def _first_sorted(names: Sequence[str], most: int) -> list[str]:
    """Return the first ``most`` names in sorted order. Sorting a very long list would block other threads."""
    return sorted(names) if len(names) <= most else heapq.nsmallest(max(most, 0), names)


def _link_entry(root: Path, parts: tuple[str, ...], name: str, shown: str) -> TreeEntry:
    try:
        real = root.joinpath(*parts, name).resolve(strict=True)
        is_folder = real.is_dir()
    except (OSError, RuntimeError):
        return TreeEntry(shown, note="a broken link")
    if not real.is_relative_to(root):
        return TreeEntry(shown, note="a link that leads out of the workspace")
    if is_folder:
        return TreeEntry(shown, note="a link to a folder, not followed")
    return TreeEntry(shown, real.relative_to(root).parts)


def excerpt(line: str, index: int) -> str:
    """Return a line or, if it is long, the part of it around the match at ``index``."""
    start = 0 if index < MAX_EXCERPT * 3 // 4 else index - MAX_EXCERPT // 2
    part = line[start : start + MAX_EXCERPT].strip()
    return ("…" if start else "") + part + ("…" if len(line) > start + MAX_EXCERPT else "")
