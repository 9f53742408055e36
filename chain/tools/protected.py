"""Protected files: files that are run outside of the sandbox, or that chain trusts.

``app.toolbox`` makes one ``Protected`` for a session from its configuration. Protected files that the configuration
does not name are found on the disk at each use: the Python that runs chain, the code of MCP servers, programs that git
runs, and instruction files.

- ``processes.writable_paths`` uses ``refused_places``: a command cannot write these files and folders.
- ``edit`` uses ``required_name``: an allowance covers a protected file only if it names the file.
- ``processes.shell`` makes a ``snapshot`` before and after a command, and reports the differences.

Landlock can protect a file only together with the folders above it. In these folders, a command then cannot create,
move or remove anything. So a command is denied only the files that would run as code, or that would lift the sandbox
without a question. It can write the other protected files, and the changes are reported: files that git must write,
files that only the model reads, and files that the user must trust again after a change.
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
"""Names of files that a session reads in any folder. Case is ignored, because some file systems ignore it."""
CONFIGURATION, _GIT = "config.yaml", ".git"

MAX_FOLDERS = 300
"""The most folders of a workspace that are searched, top folders first. The search takes about 10 ms."""
MAX_CONFIG_PLACES = 50
"""The most files and folders that the git configuration of one repository names."""
MAX_TEXT = 500_000
"""The most bytes of a git configuration that are read."""
MAX_LINKS = 40
"""The most links in one path: the system follows no more links."""
MAX_PATH = 4_096
"""The most characters of a path: the system refuses longer paths."""

_PACKAGES = frozenset({"node_modules", ".venv", "venv"})
"""Names of folders of installed packages. A program that starts in their parent folder runs code from them."""
_RUNNER = re.compile(
    r"python[\d.]*|node|ruby|perl|php|(ba|da|z)?sh|npx|p?npm|pnpx|yarn|bunx?|deno|uv|poetry|pipenv|pdm|hatch|rye|pixi|"
    r"tsx|ts-node|make|just|go|cargo|bundle|rake|mvn|gradle|docker-compose|compose"
)
"""Matches the names of programs that load code from their working directory."""
_DATA = (".db", ".sqlite", ".sqlite3", ".csv", ".log", ".md", ".txt")
"""Suffixes of data files. Such a file in a server's command is not its code."""
_NOT_REPORTED = ("/history", ".pyc", "__pycache__", ".sample")
"""Suffixes of paths whose changes are not reported: chain writes them itself, or git does not run them."""
_WORD = re.compile(r"[^\s'\"=:;,|&<>()]+")
_FOLDER_FLAG = re.compile(r"(?:--(?:directory|project|prefix|from|cwd)|-C)[ =](\S+)")
"""Matches options that name a program's working directory. A folder in any other argument may be data."""
_PATH_OF_GIT = re.compile(rf"(?im)(?:^|\])[ \t]*(hookspath|path)[ \t]*=[ \t]*\"?([^\r\n\0\"#;]{{1,{MAX_PATH}}})")


class Refused(NamedTuple):
    """The real paths of the files and folders that a command cannot write, and of the links that lead to them."""

    places: frozenset[str]
    """Files, and folders with their whole content."""
    code_folders: frozenset[str]
    """Folders from which code is loaded and that also contain other files. No entry can be added to them."""
    wide_folders: frozenset[str]
    """Folders in ``places`` with much other content, such as ``/usr``. The user may make their subfolders writable."""


Snapshot: TypeAlias = Mapping[str, tuple[int, ...]]
"""The state of files and folders by path. Two snapshots are compared to find changes."""


@dataclass(frozen=True, slots=True)
class Protected:
    """The protected files of a session.

    ``trusted`` are files and folders that a command cannot write. ``configured_files`` returns the files that
    configurations name. ``servers`` are the MCP servers that chain starts. ``instruction_names`` are names of files in
    lower case.
    """

    trusted: tuple[Path, ...] = ()
    configured_files: Callable[[], Iterable[Path]] = tuple
    servers: tuple[Launch, ...] = ()
    instruction_names: frozenset[str] = INSTRUCTIONS

    def refused_places(self, folders: Iterable[Path]) -> Refused:
        """Return the files and folders that a command cannot write. Reads the disk.

        ``folders`` are the folders that the command can write, except for refused files and folders inside them.
        """
        # The next Python to start searches the user's own folder of packages, even if the folder does not exist now.
        users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
        searched = [os.path.abspath(each) for each in (*sys.path, *users)]
        prefixes = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix]
        installed = [*prefixes, os.path.dirname(os.__file__), *filter(_has_packages, searched)]
        code, shared = _server_code(self.servers, {os.path.realpath(each) for each in folders})
        ours = {*installed, sys.executable, *_loaded_module_files(installed), *map(str, self.trusted), *code}
        kept = {place for each in ours for place in links_and_target(each)}
        wide = {os.path.realpath(each) for each in prefixes[2:]}
        narrow = kept - wide
        outermost = {each for each in kept if narrow.isdisjoint(parent_folders(each))}
        others = {
            place for each in (*searched, *shared) for place in links_and_target(each) if not is_in(place, outermost)
        }
        return Refused(frozenset(outermost), frozenset(others), frozenset(wide))

    def required_name(self, root: Path, parts: Sequence[str], path: str) -> str:
        """Return the part of a file's path that an allowance must contain to cover an edit of the file.

        Return an empty string if the file is not protected. ``parts`` are the parts of the file's real path below
        ``root``, and ``path`` is the path as the model wrote it. Reads the disk.
        """
        folders = [root.joinpath(*parts[:n]) for n in range(len(parts))]
        for folder, name in zip(folders, parts, strict=True):
            if name.casefold() == _GIT:
                return name
            # The new file may turn the folder into a repository, whose configuration exists already.
            if _is_repository({name.casefold(), *(entry.name.casefold() for entry in _entries(folder))}):
                return name if folder == root else folder.name
        file, refused = root.joinpath(*parts), self.refused_places([root])
        wide = refused.wide_folders.intersection(parent_folders(str(root)))
        places = {*self._reported_places(root, [root]), *refused.places} - wide
        first_new = next((each for each in (*folders[1:], file) if not os.path.lexists(each)), root)
        is_protected = (
            any(part.casefold() == _GIT for part in PurePath(path).parts)
            or file.name.casefold() in self.instruction_names
            or is_in(str(file).casefold(), {each.casefold() for each in places})
            or str(first_new.parent) in refused.code_folders
        )
        return file.name if is_protected else ""

    def snapshot(self, root: Path, folder: Path, before: Iterable[str] = (), *, is_fenced: bool) -> Snapshot:
        """Return the state of the protected files that a command in ``folder`` can change. Reads the disk.

        The paths in ``before``, an earlier snapshot, are included. If ``is_fenced``, the command runs in the sandbox,
        and the files that it cannot write are left out.
        """
        # Includes ``before``, because a command can create so many folders that the search misses these paths.
        places = {*self._reported_places(root, [root, folder]), *before}
        if not is_fenced:
            refused = self.refused_places([root])
            inside = [each for each in refused.places if is_in(each, {str(root)})]
            places |= refused.places | refused.code_folders
            places |= {top for each in inside for top, _, _ in islice(os.walk(each), MAX_FOLDERS)}
        files = {file for each in places for file in (each, *(e.path for e in _entries(each) if not e.is_dir()))}
        return {file: state for file in files if not file.endswith(_NOT_REPORTED) and (state := _state(file))}

    def _reported_places(self, root: Path, folders: Iterable[Path]) -> Iterator[str]:
        """Yield the protected files and folders that a command may write, so that their changes can be reported."""
        for file in (root / CONFIGURATION, *self.configured_files()):
            yield from links_and_target(str(file))
        for top in {each for folder in folders for each in (folder, *folder.parents) if os.path.lexists(each / _GIT)}:
            yield from _git_hooks_and_config(str(top / _GIT), str(top))
        searched = [str(root)]
        for folder in searched:  # grows in the loop
            entries = _entries(folder)
            names = {entry.name.casefold() for entry in entries}
            if _is_repository(names) or ("/.git/modules/" in folder and names & {"config", "hooks"}):
                yield from _git_hooks_and_config(folder, folder)
                entries = [entry for entry in entries if entry.name == "modules"]
            for entry in entries:
                name = entry.name.casefold()
                if name == _GIT:
                    yield from _git_hooks_and_config(entry.path, folder)
                    searched.append(os.path.join(entry.path, "modules"))
                elif name in self.instruction_names:
                    yield from links_and_target(entry.path)
                elif name not in _PACKAGES and entry.is_dir(follow_symlinks=False):
                    searched.append(entry.path)
            del searched[MAX_FOLDERS:]


def changed_files(before: Snapshot, after: Snapshot) -> list[str]:
    """Return the files that were changed, created or removed between two snapshots."""
    return sorted(file for file in {*before, *after} if before.get(file) != after.get(file))


def _git_hooks_and_config(git: str, top: str) -> Iterator[str]:
    """Yield the hooks and the configuration files of the repository ``git`` with the working tree ``top``."""
    if os.path.isfile(git):  # as in a worktree and a submodule
        yield git
        git = os.path.join(top, _first_row(git).removeprefix("gitdir: "))
    yield os.path.join(git, "commondir")
    common = os.path.normpath(os.path.join(git, _first_row(os.path.join(git, "commondir"))))
    places = [os.path.join(each, name) for each in {git, common} for name in ("config", "config.worktree")]
    places += [os.path.join(common, "hooks"), *map(os.path.expanduser, ("~/.gitconfig", "~/.config/git/config"))]
    for place in places:  # grows in the loop
        yield from links_and_target(place)
        yield from (os.path.realpath(entry.path) for entry in _entries(place) if entry.is_symlink())
        for key, value in _PATH_OF_GIT.findall(_read_text(place)):
            base = os.path.dirname(place) if key.casefold() == "path" else top
            places.append(os.path.join(base, os.path.expanduser(value.strip())))
        del places[MAX_CONFIG_PLACES:]


def _is_repository(names: Set[str]) -> bool:
    """Return whether git accepts a folder as a repository. ``names`` are the names of its entries, in lower case."""
    return "head" in names and ({"objects", "refs"} <= names or "commondir" in names)


def _server_code(servers: Iterable[Launch], writable: Set[str]) -> tuple[Set[str], Set[str]]:
    """Return the code of MCP servers in the ``writable`` folders, and the writable folders from which code is loaded.

    Code is every path in a server's command, and the working directory of a program that loads code from there. If this
    working directory is itself in ``writable``, people work in it, so only some entries are code: files, folders of
    packages, and folders that contain files with the suffix of the server's script.
    """
    code, shared = set[str](), set[str]()
    for launch in servers:
        text = " ".join((*launch.argv, *(value for name, value in launch.env.items() if name.endswith("PATH"))))
        words = [word for word in _WORD.findall(text) if not word.endswith(_DATA)]
        bases = [*writable, str(launch.cwd or "/")]
        paths = {os.path.join(base, os.path.expanduser(word)) for base in bases for word in words}
        found = {place for path in paths for place in links_and_target(path) if is_in(place, writable)} - writable
        files = {each for each in found if os.path.isfile(each)}
        folders = {each for each in found if os.path.isdir(each)} | {_folder_of_program(each) for each in files}
        if any(_RUNNER.fullmatch(os.path.basename(word)) for word in words):
            starts = [each for each in (launch.cwd, *_FOLDER_FLAG.findall(text)) if each]
            folders |= {os.path.realpath(os.path.join(bases[-1], each)) for each in starts}
        suffixes = tuple({os.path.splitext(each)[1] or ".sh" for each in files} | ({".py"} if "-m" in words else set()))
        for entry in (entry for folder in folders & writable for entry in _entries(folder)):
            has_code = any(each.name.endswith(suffixes) for each in _entries(entry.path))
            if entry.name in _PACKAGES or has_code or not entry.is_dir():
                files.add(entry.path)
        code |= files | {each for each in folders - writable if is_in(each, writable)}
        shared |= folders & writable
    return code, shared


def _folder_of_program(file: str) -> str:
    """Return the innermost folder of packages, such as ``venv``, that contains a file, or else the file's folder."""
    packages = (
        p for p in parent_folders(file) if os.path.basename(p) in _PACKAGES or os.path.exists(f"{p}/pyvenv.cfg")
    )
    return next(packages, os.path.dirname(file))


def _has_packages(folder: str) -> bool:
    """Return whether packages were installed in a folder."""
    return any(entry.name.endswith(".dist-info") for entry in _entries(folder))


def _loaded_module_files(installed: Sequence[str]) -> Iterator[str]:
    """Yield the paths of all loaded modules, except modules in the folders ``installed``.

    The paths of a package are its folder; those of any other module are its file and the folder of its compiled file.
    """
    theirs = tuple(each.rstrip("/") + "/" for each in installed)
    if sys.pycache_prefix and not sys.pycache_prefix.startswith(theirs):
        yield sys.pycache_prefix
    modules: list[object] = list(sys.modules.values())  # ``sys.modules`` can contain any object
    found = [vars(module) for module in modules if isinstance(module, ModuleType)]
    is_package = {
        file: "__path__" in names
        for names in found
        if isinstance(file := names.get("__file__"), str) and not file.startswith(theirs) and os.path.exists(file)
    }
    # A package without a file of its own may be in several folders that contain other packages too.
    packages = {os.path.dirname(file) for file in is_package if is_package[file]}
    yield from packages
    for file in is_package:
        folder = os.path.dirname(file)
        for place in (file, os.path.join(folder, "__pycache__")):
            # Whatever is in a package's folder is protected with it, except the target of a link.
            if folder not in packages or os.path.islink(place):
                yield place


def links_and_target(path: str) -> Iterator[str]:
    """Yield each link that is followed on the way to a path, and then the real path."""
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


def is_in(path: str, folders: Set[str]) -> bool:
    """Return whether a path is one of the folders or inside one of them."""
    return path in folders or any(each in folders for each in parent_folders(path))


def parent_folders(path: str) -> Iterator[str]:
    """Yield the folders that contain an absolute path, innermost first."""
    while path != (parent := os.path.dirname(path)):
        yield parent
        path = parent


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder; an empty list if it is not a folder or cannot be read."""
    with suppress(OSError), os.scandir(folder) as entries:
        return [*entries]
    return []


def _read_text(file: str) -> str:
    with suppress(OSError, ValueError), regular_file(os.open(file, FLAGS)) as opened:
        return os.fsdecode(opened.read(MAX_TEXT))
    return ""


def _first_row(file: str) -> str:
    return re.split(r"[\r\n\0]", _read_text(file)[:MAX_PATH])[0]


def _state(file: str) -> tuple[int, ...]:
    """Return values that change when a file changes or a folder is replaced; empty if it is missing. Follows links."""
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return ()
    if stat.S_ISDIR(found.st_mode):
        return found.st_dev, found.st_ino
    return found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns
