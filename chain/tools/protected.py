"""What runs or is trusted outside of the sandbox: the one list behind write protection, allowances and notices.

The wiring (``app.toolbox``) makes one ``Protected`` for a session from its configuration. The rest is found on the disk
whenever somebody asks: the Python that runs chain, the code of servers, what git runs, and files with instructions.

- ``processes.writable_paths`` asks for ``refused``: what a command cannot write.
- ``edit`` asks for ``name_needed``: what an allowance does not cover unless it names it. That is all places.
- ``processes.shell`` asks for a ``snapshot`` before and after a command, and reports what differs.

Landlock can refuse a file only with the folders above it, in which a command then creates, moves and removes nothing.
So commands are refused what would run as code or lift the sandbox without a question. Reported is what git needs to
work, what is only read by the model, and what asks for trust again once it has changed.
"""

from __future__ import annotations

import os
import re
import site
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath
from types import ModuleType
from typing import NamedTuple, TypeAlias

from chain.config.servers import Launch
from chain.regular_file import FLAGS, regular_file

INSTRUCTIONS = frozenset({"agents.md", "claude.md", ".mcp.json"})
"""Files that a session reads, in whatever folder it is started. Case does not count, as on some disks."""
CONFIGURATION, _GIT = "config.yaml", ".git"

MAX_FOLDERS = 300
"""Folders of a workspace that are searched, the nearest first: some 10 ms before and after each command."""
MAX_CONFIG_PLACES = 50
"""Files and folders that the configuration of a repository may name."""
MAX_TEXT = 500_000
"""Bytes of a configuration of git that are read."""
MAX_LINKS = 40
"""Links on the way to one path; the system follows no more."""
MAX_PATH = 4_096
"""Characters of a path; the system refuses longer ones."""

_PACKAGES = frozenset({"node_modules", ".venv", "venv"})
"""Folders of installed packages, from which a program takes code that starts next to them."""
_RUNNER = re.compile(
    r"python[\d.]*|node|ruby|perl|php|(ba|da|z)?sh|npx|p?npm|pnpx|yarn|bunx?|deno|uv|poetry|pipenv|pdm|hatch|rye|pixi|"
    r"tsx|ts-node|make|just|go|cargo|bundle|rake|mvn|gradle|docker-compose|compose"
)
"""Programs that look for code in the folder where they start."""
_DATA = (".db", ".sqlite", ".sqlite3", ".csv", ".log", ".md", ".txt")
"""Ends of names of files that a server works on, and is not started from."""
_UNWATCHED = ("/history", ".pyc", "__pycache__", ".sample")
"""What chain writes itself, and examples of hooks, which git does not run."""
_WORD = re.compile(r"[^\s'\"=:;,|&<>()]+")
_FOLDER_FLAG = re.compile(r"(?:--(?:directory|project|prefix|from|cwd)|-C)[ =](\S+)")
"""A folder in which people work counts if it is named so; else it may be what a server works on."""
_PATH_OF_GIT = re.compile(rf"(?im)(?:^|\])[ \t]*(hookspath|path)[ \t]*=[ \t]*\"?([^\r\n\0\"#;]{{1,{MAX_PATH}}})")


class Refused(NamedTuple):
    """What commands cannot write, by paths without links; a link on the way to a place is a place as well."""

    kept: frozenset[str]
    """Files and folders that are never changed, with all that is in them."""
    open: frozenset[str]
    """Folders in which code is looked for, and that hold other files too: nothing is added there."""
    wide: frozenset[str]
    """Those kept that hold much else, such as ``/usr``: a folder in there may be given to commands."""


Snapshot: TypeAlias = Mapping[str, tuple[int, ...]]
"""Files and folders by path, each with what changes when it is changed."""


@dataclass(frozen=True, slots=True)
class Protected:
    """What is protected in a session. ``trusted`` are the folders and files that a command cannot write.

    ``named`` gives the files that configurations name, and ``servers`` are the programs that are started. ``names`` are
    those of files with instructions, in small letters.
    """

    trusted: tuple[Path, ...] = ()
    named: Callable[[], Iterable[Path]] = tuple
    servers: tuple[Launch, ...] = ()
    names: frozenset[str] = INSTRUCTIONS

    def refused(self, folders: Iterable[Path]) -> Refused:
        """Return what a command cannot write that may write these folders, the workspace first. Reads the disk."""
        # The user's own folder of packages is searched from the next start on, even if it is made only now.
        users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
        searched = [os.path.abspath(each) for each in (*sys.path, *users)]
        prefixes = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix]
        installed = [*prefixes, os.path.dirname(os.__file__), *filter(_has_packages, searched)]
        code, shared = _code(self.servers, {os.path.realpath(each) for each in folders})
        ours = {*installed, sys.executable, *_loaded(installed), *map(str, self.trusted), *code}
        kept = {place for each in ours for place in way(each)}
        wide = {os.path.realpath(each) for each in prefixes[2:]}
        narrow = kept - wide
        outermost = {each for each in kept if narrow.isdisjoint(above(each))}
        others = {place for each in (*searched, *shared) for place in way(each) if not is_in(place, outermost)}
        return Refused(frozenset(outermost), frozenset(others), frozenset(wide))

    def name_needed(self, root: Path, parts: Sequence[str], path: str) -> str:
        """Return the part of a file's real path below ``root`` that an allowance has to name; empty if none.

        ``path`` is as the model wrote it. Reads the disk.
        """
        folders = [root.joinpath(*parts[:n]) for n in range(len(parts))]
        for folder, name in zip(folders, parts, strict=True):
            if name.casefold() == _GIT:
                return name
            # Also one that this file would complete: it may have its configuration already.
            if _is_repository({name.casefold(), *(entry.name.casefold() for entry in _entries(folder))}):
                return name if folder == root else folder.name
        file, refused = root.joinpath(*parts), self.refused([root])
        wide = refused.wide.intersection(above(str(root)))
        places = {*self._reported(root, [root]), *refused.kept} - wide
        first_new = next((each for each in (*folders[1:], file) if not os.path.lexists(each)), root)
        is_protected = (
            any(part.casefold() == _GIT for part in PurePath(path).parts)
            or file.name.casefold() in self.names
            or is_in(str(file).casefold(), {each.casefold() for each in places})
            or str(first_new.parent) in refused.open
        )
        return file.name if is_protected else ""

    def snapshot(self, root: Path, folder: Path, before: Iterable[str] = (), *, is_fenced: bool) -> Snapshot:
        """Return the state of the files that a command in a folder could change, and of ``before``. Reads the disk.

        ``is_fenced``: what is refused to commands cannot be changed, and is left out.
        """
        # With what was there before: a command can make so many folders that it is not found again.
        places = {*self._reported(root, [root, folder]), *before}
        if not is_fenced:
            refused = self.refused([root])
            inside = [each for each in refused.kept if is_in(each, {str(root)})]
            places |= refused.kept | refused.open
            places |= {top for each in inside for top, _, _ in islice(os.walk(each), MAX_FOLDERS)}
        files = {file for each in places for file in (each, *(e.path for e in _entries(each) if not e.is_dir()))}
        return {file: state for file in files if not file.endswith(_UNWATCHED) and (state := _state(file))}

    def _reported(self, root: Path, folders: Iterable[Path]) -> Iterator[str]:
        """Yield what a command may write and people hear of: by name, of git, and what links lead to."""
        for file in (root / CONFIGURATION, *self.named()):
            yield from way(str(file))
        for top in {each for folder in folders for each in (folder, *folder.parents) if os.path.lexists(each / _GIT)}:
            yield from _of_git(str(top / _GIT), str(top))
        searched = [str(root)]
        for folder in searched:  # more are added
            entries = _entries(folder)
            names = {entry.name.casefold() for entry in entries}
            if _is_repository(names) or ("/.git/modules/" in folder and names & {"config", "hooks"}):
                yield from _of_git(folder, folder)
                entries = [entry for entry in entries if entry.name == "modules"]
            for entry in entries:
                name = entry.name.casefold()
                if name == _GIT:
                    yield from _of_git(entry.path, folder)
                    searched.append(os.path.join(entry.path, "modules"))
                elif name in self.names:
                    yield from way(entry.path)
                elif name not in _PACKAGES and entry.is_dir(follow_symlinks=False):
                    searched.append(entry.path)
            del searched[MAX_FOLDERS:]


def changed_files(before: Snapshot, after: Snapshot) -> list[str]:
    """Return the files that were changed, created or removed."""
    return sorted(file for file in {*before, *after} if before.get(file) != after.get(file))


def _of_git(git: str, top: str) -> Iterator[str]:
    """Yield the hooks and the configuration of a repository whose files are in ``top``."""
    if os.path.isfile(git):  # as in a worktree and a submodule
        yield git
        git = os.path.join(top, _first_row(git).removeprefix("gitdir: "))
    yield os.path.join(git, "commondir")
    common = os.path.normpath(os.path.join(git, _first_row(os.path.join(git, "commondir"))))
    places = [os.path.join(each, name) for each in {git, common} for name in ("config", "config.worktree")]
    places += [os.path.join(common, "hooks"), *map(os.path.expanduser, ("~/.gitconfig", "~/.config/git/config"))]
    for place in places:  # more are added
        yield from way(place)
        yield from (os.path.realpath(entry.path) for entry in _entries(place) if entry.is_symlink())
        for key, value in _PATH_OF_GIT.findall(_text(place)):
            base = os.path.dirname(place) if key.casefold() == "path" else top
            places.append(os.path.join(base, os.path.expanduser(value.strip())))
        del places[MAX_CONFIG_PLACES:]


def _is_repository(names: Set[str]) -> bool:
    """Whether git takes a folder with these names in it for a repository, whatever its own name is."""
    return "head" in names and ({"objects", "refs"} <= names or "commondir" in names)


def _code(servers: Iterable[Launch], chosen: Set[str]) -> tuple[Set[str], Set[str]]:
    """Return what in the ``chosen`` folders servers are started from, and those folders that hold other files as well.

    It is what the words of a command name, with its folder, and where a program starts that looks for code there. Of a
    chosen folder itself, in which people work, it is the files, packages, and folders with files such as the script.
    """
    code, shared = set[str](), set[str]()
    for launch in servers:
        text = " ".join((*launch.argv, *(value for name, value in launch.env.items() if name.endswith("PATH"))))
        words = [word for word in _WORD.findall(text) if not word.endswith(_DATA)]
        bases = [*chosen, str(launch.cwd or "/")]
        paths = {os.path.join(base, os.path.expanduser(word)) for base in bases for word in words}
        found = {place for path in paths for place in way(path) if is_in(place, chosen)} - chosen
        files = {each for each in found if os.path.isfile(each)}
        folders = {each for each in found if os.path.isdir(each)} | {_folder_of_program(each) for each in files}
        if any(_RUNNER.fullmatch(os.path.basename(word)) for word in words):
            starts = [each for each in (launch.cwd, *_FOLDER_FLAG.findall(text)) if each]
            folders |= {os.path.realpath(os.path.join(bases[-1], each)) for each in starts}
        suffixes = tuple({os.path.splitext(each)[1] or ".sh" for each in files} | ({".py"} if "-m" in words else set()))
        for entry in (entry for folder in folders & chosen for entry in _entries(folder)):
            has_code = any(each.name.endswith(suffixes) for each in _entries(entry.path))
            if entry.name in _PACKAGES or has_code or not entry.is_dir():
                files.add(entry.path)
        code |= files | {each for each in folders - chosen if is_in(each, chosen)}
        shared |= folders & chosen
    return code, shared


def _folder_of_program(file: str) -> str:
    """The folder that a file is in, or all the packages that it was installed with."""
    packages = (p for p in above(file) if os.path.basename(p) in _PACKAGES or os.path.exists(f"{p}/pyvenv.cfg"))
    return next(packages, os.path.dirname(file))


def _has_packages(folder: str) -> bool:
    """Whether packages were installed there, rather than written."""
    return any(entry.name.endswith(".dist-info") for entry in _entries(folder))


def _loaded(installed: Sequence[str]) -> Iterator[str]:
    """The folder of each loaded package, the file of each other module, and where those are compiled.

    Those in the folders ``installed`` are left out.
    """
    theirs = tuple(each.rstrip("/") + "/" for each in installed)
    if sys.pycache_prefix and not sys.pycache_prefix.startswith(theirs):
        yield sys.pycache_prefix
    modules: list[object] = list(sys.modules.values())  # of anything that somebody put there
    for names in (vars(module) for module in modules if isinstance(module, ModuleType)):
        file = names.get("__file__")
        if isinstance(file, str) and not file.startswith(theirs) and os.path.exists(file):
            folder = os.path.dirname(file)
            # A package without a file of its own may lie in several folders, with what others have in them.
            yield from (folder,) if "__path__" in names else (file, os.path.join(folder, "__pycache__"))


def way(path: str) -> Iterator[str]:
    """Yield each link on the way to a path, and at the end where it leads."""
    place, waiting, links = "/", os.path.abspath(path).split("/")[::-1], list[str]()
    while waiting:
        here = os.path.normpath(os.path.join(place, waiting.pop()))
        try:
            target = os.readlink(here) if len(links) < MAX_LINKS else ""
        except (OSError, ValueError):
            target = ""
        if target:
            links.append(here)
            waiting += target.split("/")[::-1]
        place = here if not target else "/" if target.startswith("/") else place
    yield from links
    yield place


def is_in(place: str, folders: Set[str]) -> bool:
    """Return whether a path is one of the folders, or in one."""
    return place in folders or any(each in folders for each in above(place))


def above(place: str) -> Iterator[str]:
    """Yield the folders that an absolute path is in, from the innermost."""
    while place != (parent := os.path.dirname(place)):
        yield parent
        place = parent


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """What is directly in a folder; nothing for a file, and where it cannot be read."""
    with suppress(OSError), os.scandir(folder) as entries:
        return [*entries]
    return []


def _text(file: str) -> str:
    with suppress(OSError, ValueError), regular_file(os.open(file, FLAGS)) as opened:
        return os.fsdecode(opened.read(MAX_TEXT))
    return ""


def _first_row(file: str) -> str:
    return re.split(r"[\r\n\0]", _text(file)[:MAX_PATH])[0]


def _state(file: str) -> tuple[int, ...]:
    """What changes with a file; empty if there is none. Links are followed, as git does when it reads or runs one."""
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return ()
    if stat.S_ISDIR(found.st_mode):
        return found.st_dev, found.st_ino
    return found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns
