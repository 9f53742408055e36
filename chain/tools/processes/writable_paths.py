"""The files and directories that a command may write: those that the user chose, without protected ones.

Landlock rules have no exceptions. So a directory that contains a protected file (``protected``) is not allowed as a
whole. Instead each of its other entries is allowed. A command cannot create, move or remove anything directly in it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from chain.errors import ToolError
from chain.tools.paths import printable_path
from chain.tools.processes import fence
from chain.tools.protected import Refused, is_in, links_and_target, parent_folders

Id = tuple[int, int]
"""Device and inode, which identify a file by any of its paths."""


class WritablePaths:
    """The files and directories that commands may write. The constructor opens them, and blocks.

    It opens them before the first command runs, because a command could later replace a path by a link. ``workspace``
    and ``writable`` are the paths that the user chose. Missing paths are left out. Raise ``ToolError`` if a path is
    behind a link that is inside another of the chosen paths: a command of an earlier session may have created the link.
    """

    def __init__(self, workspace: Path, writable: Sequence[Path], refused: Refused) -> None:
        chosen = dict.fromkeys(os.path.realpath(each) for each in (workspace, *writable)).keys()
        for path in writable:
            *links, place = links_and_target(str(path))
            if any(is_in(link, {each for each in chosen if each != place}) for link in links):
                raise ToolError(f"{printable_path(path)} is behind a link that a command may change; name its target.")
        self.is_exposed = any(is_in(each, refused.places - refused.wide_folders) for each in chosen)
        """Whether commands may change chain's own files, because the user made a directory with such files writable."""
        closed = {parent for place in refused.places | refused.code_folders for parent in parent_folders(place)}
        self._protected, self._closed = refused.places, closed | refused.code_folders
        inside = (
            each for each in refused.places if is_in(each, chosen) and refused.places.isdisjoint(parent_folders(each))
        )
        self.protected = tuple(sorted(inside))
        """The protected files and directories inside directories that commands may write."""
        outside = (each for each in self._closed if not is_in(each, refused.places))
        self.closed_folders = () if self.is_exposed else tuple(sorted(each for each in outside if is_in(each, chosen)))
        """The directories in which commands cannot create, move or remove anything directly."""
        self._descriptors: list[int] = []
        for each in (*chosen, *fence.DEVICES):
            with suppress(OSError):
                self._descriptors.append(os.open(each, os.O_PATH | os.O_CLOEXEC))

    def rules(self, temporary: int, *, signals: bool) -> int:
        """Return the descriptor of a Landlock ruleset (``fence.rules``) that allows these paths and ``temporary``.

        ``temporary`` is the descriptor of a directory. With ``signals``, the ruleset also refuses signals to outside
        processes. Blocks. Raise ``OSError`` if this kernel's Landlock does not support it.
        """
        protected, closed = (set(), set()) if self.is_exposed else (_ids(self._protected), _ids(self._closed))
        parts = (_writable_parts(each, protected, closed) for each in self._descriptors)
        return fence.rules(chain([temporary], *parts), signals=signals)

    def close(self) -> None:
        """Close the descriptors."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def _ids(paths: Iterable[str]) -> set[Id]:
    """Return the ids of the files that are at these paths now. Missing files are left out.

    Commands cannot replace these files, because they cannot change the directories that contain them.
    """
    found = set()
    for path in paths:
        with suppress(OSError):
            found.add(_id(os.lstat(path)))
    return found


def _id(status: os.stat_result) -> Id:
    return status.st_dev, status.st_ino


def _writable_parts(descriptor: int, protected: set[Id], closed: set[Id]) -> Iterator[int]:
    """Yield descriptors of the writable parts of a file or directory. Each is valid until the next is requested.

    A protected file or directory has no writable part. The writable parts of a ``closed`` directory are those of its
    entries. Any other file or directory is itself the only part.
    """
    status = os.fstat(descriptor)
    if _id(status) in protected or stat.S_ISLNK(status.st_mode):
        return
    if _id(status) not in closed:
        yield descriptor
        return
    names: list[str] = []
    with suppress(OSError):  # a directory that cannot be listed may contain a protected place
        names = os.listdir(f"/proc/self/fd/{descriptor}")
    for name in names:
        try:
            part = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
        except OSError:
            continue  # it was removed
        try:
            yield from _writable_parts(part, protected, closed)
        finally:
            os.close(part)
