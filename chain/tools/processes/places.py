"""What a command may write, and what of that it may not (``protected``).

Landlock knows no exceptions, so a folder that holds protected files is not given to a command as a whole, but what else
is in it, one by one: in the folder itself nothing can be created, moved or removed then.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from chain.errors import ToolError
from chain.tools.paths import as_text
from chain.tools.processes import fence
from chain.tools.protected import Refused, above, is_in, way

Id = tuple[int, int]
"""Device and inode: what a file or folder is, by whatever path."""


class WritablePaths:
    """The files and folders that commands may write, opened before the first of them runs; it blocks.

    A command that may write the folder above one could put a link in its place, and have whatever that leads to from
    the next command on. ``workspace`` and ``writable`` are the user's choice; one that does not exist is left out.
    Raises ``ToolError`` for a path whose way leads over a link in another: a command of an earlier session may have
    made it.
    """

    def __init__(self, workspace: Path, writable: Sequence[Path], refused: Refused) -> None:
        chosen = dict.fromkeys(os.path.realpath(each) for each in (workspace, *writable)).keys()
        for path in writable:
            *links, place = way(str(path))
            if any(is_in(link, {each for each in chosen if each != place}) for link in links):
                raise ToolError(f"{as_text(path)} is behind a link that a command may change; name what that leads to.")
        self.is_exposed = any(is_in(each, refused.kept - refused.wide) for each in chosen)
        """Whether a command may change this program, since the user chose a folder of its own."""
        closed = {parent for place in refused.kept | refused.open for parent in above(place)}
        self._kept, self._closed = refused.kept, closed | refused.open
        inside = (each for each in refused.kept if is_in(each, chosen) and refused.kept.isdisjoint(above(each)))
        self.kept = tuple(sorted(inside))
        """What is in the folders that a command may write, and it may not."""
        outside = (each for each in self._closed if not is_in(each, refused.kept))
        self.closed = () if self.is_exposed else tuple(sorted(each for each in outside if is_in(each, chosen)))
        """The folders in which no command makes, moves or removes anything."""
        self._descriptors: list[int] = []
        for each in (*chosen, *fence.DEVICES):
            with suppress(OSError):
                self._descriptors.append(os.open(each, os.O_PATH | os.O_CLOEXEC))

    def rules(self, temporary: int, *, signals: bool) -> int:
        """The ``fence.rules`` of a command that may write these and one folder more. It blocks. Raises ``OSError``."""
        kept, closed = (set(), set()) if self.is_exposed else (_ids(self._kept), _ids(self._closed))
        parts = (_parts(each, kept, closed) for each in self._descriptors)
        return fence.rules(chain([temporary], *parts), signals=signals)

    def close(self) -> None:
        """Close what was opened."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def _ids(places: Iterable[str]) -> set[Id]:
    """What is at these places now: they are in folders that no command can change."""
    found = set()
    for place in places:
        with suppress(OSError):
            found.add(_id(os.lstat(place)))
    return found


def _id(status: os.stat_result) -> Id:
    return status.st_dev, status.st_ino


def _parts(descriptor: int, kept: set[Id], closed: set[Id]) -> Iterator[int]:
    """Descriptors of what may be written of a file or folder, each open until the next is asked for."""
    status = os.fstat(descriptor)
    if _id(status) in kept or stat.S_ISLNK(status.st_mode):
        return
    if _id(status) not in closed:
        yield descriptor
        return
    for name in _names(descriptor):
        try:
            part = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
        except OSError:
            continue  # it is gone
        try:
            yield from _parts(part, kept, closed)
        finally:
            os.close(part)


def _names(folder: int) -> list[str]:
    with suppress(OSError):
        return os.listdir(f"/proc/self/fd/{folder}")
    return []  # what cannot be listed is not known to be another's
