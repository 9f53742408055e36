"""Opens files of the workspace and of added directories for tools, and only those.

Each path belongs to one root (``root_of``): a relative path to the workspace, an absolute path to a directory that the
user added. ``..`` is refused, and the target of a link must be in the root. A link that is created after the check of
the path is not followed, because each folder of the path is opened in turn, from the root down. All functions but
``root_of`` and ``innermost_root`` read the disk, so call them in a worker thread.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path, PurePath

from chain.errors import ToolError, UserError, nearest_name
from chain.regular_file import FLAGS, regular_file

MAX_WHOLE = 5 * 1024 * 1024
"""The most bytes of a file that can be edited, or read as a whole. Of a larger file, only parts can be read."""

MAX_NAMES = 2_000
"""The most names of a folder that are compared with a missing name, to suggest a similar name."""

# O_PATH, where it exists, also opens a folder that can be entered but not listed.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def added_root(workspace: Path, added: Sequence[Path], path: str) -> Path:
    """Return the real path of a directory that the user wants to add; an empty path if tools may use it already.

    A relative ``path`` is relative to the workspace. Raise ``UserError`` if there is no directory with this path.
    """
    shown = printable_path(PurePath(path))
    try:
        real = Path(workspace, os.path.expanduser(path)).resolve(strict=True)
        is_directory = real.is_dir()
    except (OSError, RuntimeError, ValueError):
        raise UserError(f"there is no directory {shown}") from None
    if not is_directory:
        raise UserError(f"{shown} is not a directory")
    is_known = any(real.is_relative_to(root) for root in (workspace.resolve(), *added))
    return Path() if is_known else real


def innermost_root(workspace: Path, added: Sequence[Path], path: Path) -> Path:
    """Return the innermost root that contains an absolute path; the workspace if none contains it."""
    roots = [root for root in (workspace.resolve(), *added) if path.is_relative_to(root)]
    return max(roots, key=lambda root: len(root.parts), default=workspace.resolve())


def root_of(workspace: Path, added: Sequence[Path], path: str) -> Path:
    """Return the root of a model's path: the workspace, or for an absolute path the added directory that contains it.

    Raise ``ToolError`` for an absolute path that is in no added directory.
    """
    given = PurePath(path)
    if not given.is_absolute() and not path.startswith("~"):
        return workspace.resolve()
    if not any(given.is_relative_to(root) for root in added):
        others = f" or a path in {', '.join(map(printable_path, added))}" if added else ""
        raise ToolError(
            f"{path} is an absolute path: give one relative to the workspace, such as notes/today.md{others}."
        )
    return innermost_root(workspace, added, Path(path))


def resolve_inside(root: Path, path: str) -> Path:
    """Return the real path of a file, which need not exist. ``root`` is the root of the path (``root_of``).

    Raise ``ToolError`` if the path is not valid or leads out of ``root``.
    """
    given, root = PurePath(path), root.resolve()
    if "\0" in path or not path.strip():
        raise ToolError("The path is empty or contains a NUL character; give a path relative to the workspace.")
    if (given.is_absolute() and not given.is_relative_to(root)) or path.startswith("~"):
        raise ToolError(f"{path} is an absolute path: give one relative to the workspace, such as notes/today.md.")
    where = printable_path(root) if given.is_absolute() else "the workspace"
    if ".." in given.parts:
        raise ToolError(f"{path} is refused: a path must not contain .. and stays inside {where}.")
    try:
        real = (root / given).resolve()
        # In Python 3.12 and earlier a circle of links is an error; later versions return a path that contains them.
        is_circle = any(os.path.islink(p) for p in (real, *real.parents) if p != root and p.is_relative_to(root))
    except (OSError, RuntimeError):
        is_circle = True
    if is_circle:
        raise ToolError(f"{path} cannot be followed: its links form a circle.")
    if not real.is_relative_to(root):
        raise ToolError(f"{path} is refused: it is a link that leads out of {where}.")
    return real


def resolve_existing(root: Path, path: str) -> Path:
    """Return the real path of an existing file or folder. ``root`` is the root of the path (``root_of``).

    Raise ``ToolError`` if the path does not exist or leads out of ``root``. The message suggests a similar name if the
    folder has one.
    """
    real = resolve_inside(root, path)
    try:
        real.stat()
    except FileNotFoundError:
        raise ToolError(describe_missing(root, PurePath(path))) from None
    except NotADirectoryError:
        raise ToolError(f"There is no {printable_path(PurePath(path))}: a part of this path is a file.") from None
    except OSError as error:
        raise ToolError(f"{printable_path(PurePath(path))} cannot be read: {error.strerror}.") from None
    return real


def describe_broken_link(root: Path, path: PurePath) -> str:
    """Return a sentence about the first broken link in a path; empty if the path has none."""
    for here in reversed([path, *path.parents]):
        if (root / here).is_symlink() and not (root / here).exists():
            return f"{printable_path(here)} is a broken link: its target does not exist."
    return ""


def describe_missing(root: Path, path: PurePath) -> str:
    """Return an error message for a missing path. The message names a broken link or suggests a similar name."""
    if not root.is_dir():
        name = printable_path(root)
        return f"{name} was removed." if path.is_absolute() else f"The workspace, {name}, was removed."
    if link := describe_broken_link(root, path):
        return link
    missing, real_root = f"There is no {printable_path(path)}.", root.resolve()
    here = PurePath(real_root) if path.is_absolute() else PurePath()
    for n, part in enumerate(path.parts[len(here.parts) :], len(here.parts)):
        if (root / here / part).exists():
            here /= part
            continue
        try:
            with open_entries(real_root, resolve_inside(root, str(here)).relative_to(real_root).parts) as entries:
                names = [entry.name for entry in itertools.islice(entries, MAX_NAMES)]
        except (OSError, ToolError):
            return missing
        # Only names that can be shown unchanged: the model could not use any other.
        near = nearest_name(part, sorted(name for name in names if printable_path(PurePath(name)) == name))
        if near and near != printable_path(PurePath(part)):
            return f"{missing[:-1]}; did you mean {printable_path(here.joinpath(near, *path.parts[n + 1 :]))}?"
        return missing
    return missing


@contextmanager
def open_entries(root: Path, parts: Sequence[str]) -> Iterator[Iterator[os.DirEntry[str]]]:
    """Open the folder with the path ``parts`` below ``root`` and yield its entries. Raise ``OSError`` if that fails."""
    descriptor = open_below(str(root), parts, os.O_DIRECTORY)
    try:
        with os.scandir(descriptor) as entries:
            yield entries
    finally:
        os.close(descriptor)


def open_below(root: str, parts: Sequence[str], flags: int = 0) -> int:
    """Open a file or folder for reading, by the parts of its real path below ``root``. Return a descriptor.

    Raise ``OSError`` if it cannot be opened, or if the path contains a link: a link that was created after the path was
    resolved may lead out of ``root``. The call never blocks on a pipe without a writer.
    """
    *folders, name = parts or (".",)
    here = open_folder(root, folders)
    try:
        return os.open(name, FLAGS | flags | os.O_NOFOLLOW, dir_fd=here)
    finally:
        os.close(here)


def open_folder(root: str, parts: Sequence[str]) -> int:
    """Open a folder, by the parts of its real path below ``root``. Return a descriptor to use as ``dir_fd``.

    Raise ``OSError`` if it cannot be opened or the path contains a link.
    """
    here = os.open(root, _FOLDER)
    for part in parts:
        try:
            below = os.open(part, _FOLDER, dir_fd=here)
        finally:
            os.close(here)
        here = below
    return here


def open_file(root: Path, parts: tuple[str, ...], shown: str) -> BufferedReader:
    """Open a regular file for reading, by the parts of its real path below ``root``.

    Raise ``ToolError`` if it cannot be opened or the path contains a link. ``shown`` is the path for the message.
    """
    try:
        return regular_file(open_below(str(root), parts))
    except OSError as error:
        raise ToolError(f"{shown} cannot be read: {error.strerror}.") from None


def printable_path(path: PurePath) -> str:
    """Return a path on one line, with ``?`` for characters that cannot be shown."""
    text = path.as_posix().encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() else "?" for c in text)
