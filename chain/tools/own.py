"""Files of a workspace that make things happen: those of git, and those that the chain is configured by.

What is written into them runs later, outside of any fence, or tells the next chain what it may do. So no allowance
covers their edits but one that names them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import TypeAlias

INSTRUCTIONS = ("agents.md", "claude.md", ".mcp.json")
"""Names of files that chains read, in whatever folder they are started. Case does not count, as on some disks."""

CONFIGURATION = "config.yaml"

_GIT = ".git"

MAX_NAME = 5_000
"""Bytes of a row that names a folder; the kernel takes no longer ones."""


def powerful_part(root: Path, parts: Sequence[str], path: str, own: Iterable[Path]) -> str:
    """The part of a file's real path below ``root`` that an allowance has to name; empty if it need not name any.

    ``path`` is as the model wrote it, and ``own`` are files that the chain is configured by. Reads the disk.
    """
    if not parts:
        return ""
    folders = [root.joinpath(*parts[:n]) for n in range(len(parts))]
    for folder, name in zip(folders, parts, strict=True):
        if name.casefold() == _GIT:
            return name
        # Also one that this file would complete: it may have its configuration already.
        if _is_repository(folder, name):
            return name if folder == root else folder.name
    # A link may lead out of .git, or stand in its place.
    hooks = {os.path.realpath(folder / _GIT / "hooks") for folder in folders}
    through_git = any(part.casefold() == _GIT for part in PurePath(path).parts)
    name, file = parts[-1], root.joinpath(*parts)
    is_own = (
        name.casefold() in INSTRUCTIONS
        or [part.casefold() for part in parts] == [CONFIGURATION]
        or str(file).casefold() in {os.path.realpath(each).casefold() for each in own}
    )
    return name if is_own or through_git or not hooks.isdisjoint(map(str, folders)) else ""


def _is_repository(folder: Path, made: str) -> bool:
    """Whether git takes a folder for one of its own, whatever its name is, once ``made`` is in it."""

    def has(name: str) -> bool:
        return made.casefold() == name.casefold() or os.path.lexists(folder / name)

    return has("HEAD") and ((has("objects") and has("refs")) or has("commondir"))


GitState: TypeAlias = Mapping[str, tuple[int, ...]]
"""The hooks and the configuration of git, by path, each with what changes when it is changed."""


def git_state(folders: Iterable[Path], before: Iterable[str] = ()) -> GitState:
    """The state of the repositories that the folders are in, and of the files ``before``. Reads the disk."""
    tops = {top for folder in folders for top in (folder, *folder.parents) if os.path.lexists(top / _GIT)}
    files = {*before, *(file for top in tops for file in _files_of_git(top))}
    return {file: state for file in files if (state := _state(file))}


def changed_files(before: GitState, after: GitState) -> list[str]:
    """The files that were changed, made or removed."""
    return sorted(file for file in {*before, *after} if before.get(file) != after.get(file))


def _files_of_git(top: Path) -> Iterator[str]:
    own = top / _GIT
    if os.path.isfile(own):  # as in a worktree and a submodule
        yield str(own)
        own = top / _first_row(own).removeprefix("gitdir: ")
    yield str(own / "commondir")
    common = own / _first_row(own / "commondir")
    yield from (str(folder / name) for folder in {own, common} for name in ("config", "config.worktree"))
    with suppress(OSError), os.scandir(common / "hooks") as entries:
        yield from (entry.path for entry in entries)


def _first_row(file: Path) -> str:
    """The first row of a file that names a folder; empty if there is no such file."""
    with suppress(OSError):
        if os.path.isfile(file):  # a pipe would never open
            with file.open("rb") as opened:
                return os.fsdecode(opened.readline(MAX_NAME).rstrip(b"\r\n").partition(b"\0")[0])
    return ""


def _state(file: str) -> tuple[int, ...]:
    """What changes with a file; empty if there is none. Links are followed, as git does when it reads or runs one."""
    try:
        found = os.stat(file)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns
