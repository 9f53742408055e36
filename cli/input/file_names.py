"""Completion of file names after ``@``: the names in one folder, and fuzzy matches among all files.

Slow disks delay a key by at most ``KEY_PATIENCE_S``.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from itertools import islice
from operator import itemgetter
from pathlib import Path, PurePosixPath

from chain.concurrency.threads import run_with_timeout
from cli.input.file_index import FileIndex, IgnoreRule, ignore_rules, is_ignored

MAX_FOLDER_READ = 2_000
"""Maximum names that are read from a folder, which takes a millisecond or two."""

MAX_OFFERED = 100
"""Maximum names that are offered."""

MAX_COMPLETED_PATH = 1_000
"""Maximum characters at the end of a text that are searched for an unfinished path."""

KEY_PATIENCE_S = 0.1
"""Seconds that a slow file system may delay a key."""

FRESH_S = 2.0
"""Seconds for which the names in a folder are cached."""

LEAST_MISTYPED = 3
"""With at least this many typed letters, names that differ from them in one letter are offered too."""

_UNFINISHED = re.compile(r"""(?:^|(?<=[\s(\[{<>"'`,;:=|]))@("[^"\n]*|[^\s"@][^\s"]*|)\Z""")
_NAMED = re.compile(r"""(?:^|(?<=[\s(\[{<>"'`,;:=|]))@(?:"([^"\n]+)"|([^\s"@][^\s"]*))""")
_BEHIND_NAME = re.compile(r"""(:L?\d+(-L?\d+)?)?[.,;:!?…)\]}>'`*|]*\Z""")
"""Matches what may follow the name of a file: a range of lines, and punctuation."""
MAX_NAMED = 20
"""Maximum names in one line that ``missing_names`` checks."""
_NEEDS_QUOTES = re.compile(r"""[\s"']""")


_Names = Sequence[tuple[str, bool]]
"""Names of files, each with whether git ignores the file."""


class FileNames:
    """Completion of the file names of one workspace and of the ``added`` directories. Any thread may use it."""

    def __init__(self, workspace: Path, added: Callable[[], Sequence[Path]] = tuple) -> None:
        self._workspace = workspace
        self._added = added
        self._index = FileIndex()
        self._read: tuple[str, float, _Names] = ("", 0.0, ())

    def complete_name(self, text: str) -> tuple[str, Sequence[str]]:
        """Return the text before the unfinished file name at the end of a text, and the completions of that name.

        Names in the typed folder come first, then fuzzy matches among all files, and last what git ignores. If nothing
        matches, return names in the folder that differ in one letter. The names of folders end with ``/``.
        """
        found = _UNFINISHED.search(text, max(len(text) - MAX_COMPLETED_PATH, 0))
        if found is None:
            return text, ()
        before, quoted = text[: found.start(1)], found[1].startswith('"')
        folder, slash, typed = found[1].removeprefix('"').rpartition("/")
        folded, there = typed.casefold(), self._names(folder + slash)
        names = [each for each in there if each[0].casefold().startswith(folded)]
        path, added = folder + slash + typed, self._added()
        roots = (self._workspace, *added)
        self._index.prepare(roots)
        matches = self._index.matches(path, roots, MAX_OFFERED, KEY_PATIENCE_S) if typed else []
        if not (names or matches) and len(folded) >= LEAST_MISTYPED:
            names = [each for each in there if _is_one_letter_off(folded, each[0].casefold())]
        whole = [(f"{folder}{slash}{name}", ignored) for name, ignored in names]
        whole += [(f"{root}/", False) for root in added if f"{root}/".startswith(path) and f"{root}/" != path]
        whole = sorted([*whole, *matches], key=itemgetter(1))
        shown = dict.fromkeys(name for name, _ in whole if name.isprintable() and '"' not in name)
        return before, [_quoted(name, always=quoted) for name in islice(shown, MAX_OFFERED)]

    def completions(self, text: str) -> list[str]:
        """Return a text once with each completion of the unfinished file name at its end."""
        before, names = self.complete_name(text)
        return [line for name in names if (line := before + name) != text]

    def missing_names(self, text: str) -> list[str]:
        """Return the names after an ``@`` for which no file exists.

        Return an empty list if the text has several rows, or if the disk is slow.
        """
        words = [] if "\n" in text else [quoted or word for quoted, word in _NAMED.findall(text)[:MAX_NAMED]]
        found: list[str] = []

        def check() -> None:
            for word in words:
                names = (word, _BEHIND_NAME.sub("", word))
                if not any(os.path.lexists(self._workspace / os.path.expanduser(name)) for name in names):
                    found.append(names[1])

        return found if words and run_with_timeout(check, KEY_PATIENCE_S) else []

    def _names(self, folder: str) -> _Names:
        before, at, names = self._read
        if before == folder and time.monotonic() - at < FRESH_S:
            return names
        root = next((each for each in self._added() if folder.startswith(f"{each}/")), self._workspace)
        found: list[tuple[str, bool]] = []
        run_with_timeout(lambda: found.extend(_names_in(root, folder.removeprefix(f"{root}/"))), KEY_PATIENCE_S)
        self._read = folder, time.monotonic(), tuple(found)
        return self._read[2]


def _is_one_letter_off(typed: str, name: str) -> bool:
    return len(name) >= len(typed) and sum(a != b for a, b in zip(typed, name, strict=False)) == 1


def _quoted(name: str, *, always: bool) -> str:
    if not always and not _NEEDS_QUOTES.search(name):
        return name
    return f'"{name}' if name.endswith("/") else f'"{name}"'


def _names_in(root: Path, folder: str) -> _Names:
    """Return the names in a folder below ``root``, as they are offered. Raise ``OSError`` if it cannot be read."""
    parts = PurePosixPath(folder).parts
    here = root.joinpath(*parts)
    if folder.startswith(("/", "~")) or ".." in parts or not here.resolve().is_relative_to(root.resolve()):
        return []
    rules: list[IgnoreRule] = []
    is_inside_ignored = False
    for n in range(len(parts) + 1):
        is_inside_ignored = is_inside_ignored or (n > 0 and is_ignored(parts[:n], True, rules))
        rules += ignore_rules(root.joinpath(*parts[:n]), n)
    with os.scandir(here) as entries:
        found = [(entry.name, entry.is_dir()) for entry in islice(entries, MAX_FOLDER_READ)]

    def rank(entry: tuple[str, bool]) -> tuple[bool, bool, str]:
        name, is_folder = entry
        ignored = is_inside_ignored or is_ignored((*parts, name), is_folder, rules)
        return ignored, name.startswith("."), name.casefold()

    ordered = sorted((rank(entry), entry) for entry in found)
    return [(f"{name}/" if is_folder else name, ignored) for (ignored, *_), (name, is_folder) in ordered]
