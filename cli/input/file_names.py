"""The names of files that an unfinished ``@`` and path could become. It reads one folder, and waits hardly for it."""

from __future__ import annotations

import fnmatch
import os
import re
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path, PurePosixPath

from chain.concurrency.threads import run_with_timeout

MAX_FOLDER_READ = 2_000
"""Names of a folder that are looked at: a millisecond or two."""

MAX_OFFERED = 100
"""Names that are offered: who needs another one types more of it."""

MAX_IGNORE_FILE = 64 * 1024
"""Bytes of a ``.gitignore`` that are read."""

MAX_COMPLETED_PATH = 1_000
"""Characters of the longest path that is completed: a text that is edited may be long."""

KEY_PATIENCE_S = 0.1
"""How long a file system may hold up the next key."""

FRESH_S = 2.0
"""How long a folder that was read is not read again: a menu is drawn with each key."""

LEAST_MISTYPED = 3
"""Letters of a name of which one may be mistyped: of fewer it could be any."""

_UNFINISHED = re.compile(r"""(?:^|(?<=[\s(\[{<>"'`,;:=|]))@("[^"\n]*|[^\s"@][^\s"]*|)\Z""")
_NAMED = re.compile(r"""(?:^|(?<=[\s(\[{<>"'`,;:=|]))@(?:"([^"\n]+)"|([^\s"@][^\s"]*))""")
_BEHIND_NAME = re.compile(r"""(:L?\d+(-L?\d+)?)?[.,;:!?…)\]}>'`*|]*\Z""")
"""The lines of a file that are meant, and signs that end a sentence."""
MAX_NAMED = 20
"""Names of one line that are looked up."""
_NEEDS_QUOTES = re.compile(r"""[\s"']""")


class FileNames:
    """Completes the names of the files of one workspace, in any thread."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._read: tuple[str, float, tuple[str, ...]] = ("", 0.0, ())

    def begun(self, text: str) -> tuple[str, Sequence[str]]:
        """The text before an unfinished name at its end, and the names that this could become.

        Where none begins with what was typed, they are those that do but for one letter. Folders end with a ``/``.
        Those that git ignores come last, and names with a dot at their beginning before them.
        """
        found = _UNFINISHED.search(text, max(len(text) - MAX_COMPLETED_PATH, 0))
        if found is None:
            return text, ()
        before, quoted = text[: found.start(1)], found[1].startswith('"')
        folder, slash, typed = found[1].removeprefix('"').rpartition("/")
        folded, there = typed.casefold(), self._names(folder + slash)
        names = [name for name in there if name.casefold().startswith(folded)]
        if not names and len(folded) >= LEAST_MISTYPED:
            names = [name for name in there if _is_one_letter_off(folded, name.casefold())]
        whole = [f"{folder}{slash}{name}" for name in names if name.isprintable() and '"' not in name]
        return before, [_quoted(name, always=quoted) for name in whole[:MAX_OFFERED]]

    def completions(self, text: str) -> list[str]:
        """The whole texts that a text can be completed to."""
        before, names = self.begun(text)
        return [line for name in names if (line := before + name) != text]

    def missing(self, text: str) -> list[str]:
        """Return the names after an ``@`` that name nothing, of a text of one row."""
        words = [] if "\n" in text else [quoted or word for quoted, word in _NAMED.findall(text)[:MAX_NAMED]]
        found: list[str] = []

        def look() -> None:
            for word in words:
                names = (word, _BEHIND_NAME.sub("", word))
                if not any(os.path.lexists(self._workspace / os.path.expanduser(name)) for name in names):
                    found.append(names[1])

        return found if words and run_with_timeout(look, KEY_PATIENCE_S) else []

    def _names(self, folder: str) -> tuple[str, ...]:
        before, at, names = self._read
        if before == folder and time.monotonic() - at < FRESH_S:
            return names
        found: list[str] = []
        run_with_timeout(lambda: found.extend(_names_of(self._workspace, folder)), KEY_PATIENCE_S)
        self._read = folder, time.monotonic(), tuple(found)
        return self._read[2]


def _is_one_letter_off(typed: str, name: str) -> bool:
    return len(name) >= len(typed) and sum(a != b for a, b in zip(typed, name, strict=False)) == 1


def _quoted(name: str, *, always: bool) -> str:
    if not always and not _NEEDS_QUOTES.search(name):
        return name
    return f'"{name}' if name.endswith("/") else f'"{name}"'


def _names_of(workspace: Path, folder: str) -> list[str]:
    """The names in a folder of the workspace, in the order in which they are offered. Raises ``OSError``."""
    parts = PurePosixPath(folder).parts
    here = workspace.joinpath(*parts)
    if folder.startswith(("/", "~")) or ".." in parts or not here.resolve().is_relative_to(workspace.resolve()):
        return []
    rules = [(parts[n:], rule) for n in range(len(parts) + 1) for rule in _rules(workspace.joinpath(*parts[:n]))]
    with os.scandir(here) as entries:
        found = [(entry.name, entry.is_dir()) for entry in islice(entries, MAX_FOLDER_READ)]

    def place(entry: tuple[str, bool]) -> tuple[bool, bool, str]:
        name, is_folder = entry
        return _is_ignored((*parts, name), is_folder, rules), name.startswith("."), name.casefold()

    return [f"{name}/" if is_folder else name for name, is_folder in sorted(found, key=place)]


def _rules(folder: Path) -> list[str]:
    """The patterns of the ``.gitignore`` in a folder."""
    try:
        if not (path := folder / ".gitignore").is_file():
            return []
        with path.open("rb") as file:
            rows = file.read(MAX_IGNORE_FILE).decode(errors="replace").splitlines()
    except OSError:
        return []
    return [row.rstrip() for row in rows if row.strip() and not row.startswith("#")]


def _is_ignored(path: Sequence[str], is_folder: bool, rules: Sequence[tuple[Sequence[str], str]]) -> bool:
    """Whether git would ignore a path: the last pattern that fits decides. What is in an ignored folder is as well."""
    if path[0] == ".git":
        return True
    is_ignored = False
    for below, rule in rules:
        pattern = rule.removeprefix("!")
        own = [*below, path[-1]]  # the path below the folder of the pattern's file
        shown = pattern.rstrip("/")
        if "/" in shown:
            fits = fnmatch.fnmatchcase("/".join(own), shown.removeprefix("/").replace("**/", "*"))
        else:
            fits = any(fnmatch.fnmatchcase(name, shown) for name in own)
        only_folders = (
            pattern.endswith("/") and not is_folder and not any(fnmatch.fnmatchcase(name, shown) for name in own[:-1])
        )
        if fits and not only_folders:
            is_ignored = not rule.startswith("!")
    return is_ignored
