"""What a command may write, and what of that it may not: the files of this program itself.

Whoever may change the interpreter, a package or the configuration of chain has chain run what they like, outside of the
fence and with the key. Landlock knows no exceptions, so a folder that holds such files is not given to a command as a
whole, but what else is in it, one by one: in the folder itself nothing can be made, moved or removed then.
"""

from __future__ import annotations

import os
import site
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from chain.errors import ToolError
from chain.tools.paths import as_text
from chain.tools.processes import fence

Id = tuple[int, int]
"""Device and inode: what a file or folder is, by whatever path."""


class Own(NamedTuple):
    """The places of this program, each with no link in its path; a link on the way to one is a place as well."""

    kept: frozenset[str]
    """What is never changed, with all that is in it."""

    open: frozenset[str]
    """Folders in which modules are looked for, and that hold others' files too: nothing is added there."""

    wide: frozenset[str]
    """Those kept that hold much else, such as ``/usr``. Who gives a folder in there to commands does not mean those."""


def own_places(folders: Iterable[Path]) -> Own:
    """The places of this program: of the interpreter, all loaded modules, installed packages, and ``folders``."""
    # The user's own folder of packages is searched from the next start on, even if it is made only now.
    users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    searched = [os.path.abspath(each) for each in (*sys.path, *users)]
    prefixes = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix]
    installed = [*prefixes, os.path.dirname(os.__file__), *filter(_has_packages, searched)]
    real = cache(os.path.realpath)  # most modules are in folders of others
    ours = (*installed, sys.executable, *_loaded(installed), *map(str, folders))
    kept = {place for each in ours for place in _way(each, real)}
    wide = {os.path.realpath(each) for each in prefixes[2:]}
    narrow = kept - wide
    outermost = {each for each in kept if narrow.isdisjoint(_above(each))}
    others = {place for each in searched for place in _way(each, real) if not _is_in(place, outermost)}
    return Own(frozenset(outermost), frozenset(others), frozenset(wide))


def _has_packages(folder: str) -> bool:
    """Whether packages were installed there, rather than written."""
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:
        return False


def _loaded(installed: Sequence[str]) -> Iterator[str]:
    """The folder of each loaded package, the file of each module in no such folder, and where those are compiled.

    Those in the folders ``installed`` are left out.
    """
    theirs = tuple(each.rstrip("/") + "/" for each in installed)
    if sys.pycache_prefix and not sys.pycache_prefix.startswith(theirs):
        yield sys.pycache_prefix
    packages, files = set[str](), set[str]()
    modules: list[object] = list(sys.modules.values())  # of anything that somebody put there
    for module in modules:
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if isinstance(file, str) and not file.startswith(theirs) and os.path.exists(file):
            files.add(file)
            if "__path__" in vars(module):
                packages.add(os.path.dirname(file))
    yield from packages
    for file in files:
        # A package without a file of its own may lie in several folders, with what others have in them.
        if (folder := os.path.dirname(file)) not in packages:
            yield from (file, os.path.join(folder, "__pycache__"))


def _way(path: str, real: Callable[[str], str] = os.path.realpath) -> Iterator[str]:
    """Each link on the way to a path, and where it leads; ``real`` resolves all links of a path."""

    def resolved(path: str) -> str:
        """The path, with no link on the way to its last part."""
        return os.path.join(real(os.path.dirname(path)), os.path.basename(path))

    path = os.path.abspath(path)
    waiting, seen = [path], set[str]()
    while waiting:
        given = waiting.pop()
        for each in (given, *map(str, Path(given).parents)):
            place = resolved(each)
            if place not in seen and os.path.islink(place):
                seen.add(place)
                waiting.append(os.path.join(os.path.dirname(place), os.readlink(place)))
    yield from seen
    place = resolved(path)
    yield real(path) if place in seen else place


class Places:
    """The files and folders that commands may write, opened before the first of them runs; it blocks.

    A command that may write the folder above one could put a link in its place, and have whatever that leads to from
    the next command on. ``workspace`` and ``writable`` are the user's choice; one that does not exist is left out.
    Raises ``ToolError`` for a path whose way leads over a link in another: a command of an earlier session may have
    made it.
    """

    def __init__(self, workspace: Path, writable: Sequence[Path], own: Own) -> None:
        chosen = dict.fromkeys(os.path.realpath(each) for each in (workspace, *writable)).keys()
        for path in writable:
            *links, place = _way(str(path))
            if any(_is_in(link, {each for each in chosen if each != place}) for link in links):
                raise ToolError(f"{as_text(path)} is behind a link that a command may change; name what that leads to.")
        self.is_exposed = any(_is_in(each, own.kept - own.wide) for each in chosen)
        """Whether a command may change this program, since the user chose a folder of its own."""
        above = {parent for place in own.kept | own.open for parent in _above(place)}
        self._kept, self._closed = own.kept, above | own.open
        inside = (each for each in own.kept if _is_in(each, chosen) and own.kept.isdisjoint(_above(each)))
        self.kept = tuple(sorted(inside))
        """What of this program is in the folders that a command may write, and it may not."""
        outside = (each for each in self._closed if not _is_in(each, own.kept))
        self.closed = () if self.is_exposed else tuple(sorted(each for each in outside if _is_in(each, chosen)))
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


def _is_in(place: str, folders: Set[str]) -> bool:
    """Whether it is one of the folders, or in one."""
    return place in folders or any(each in folders for each in _above(place))


def _above(place: str) -> Iterator[str]:
    """The folders that an absolute path is in, from the innermost."""
    while place != (above := os.path.dirname(place)):
        yield above
        place = above


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
    try:
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return []  # what cannot be listed is not known to be another's
    try:
        return os.listdir(readable)
    finally:
        os.close(readable)
