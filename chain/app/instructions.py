"""Reads the project instructions: the ``AGENTS.md`` files that are appended to the system prompts of a session.

The user's own file comes first, then one file of each folder from the top of the repository down to the workspace. A
repository is not trusted: only regular files are read, and links are followed only within the repository. Unreadable
files are skipped with a notice. A disk that hangs delays a run only briefly, and no error here fails a run.
"""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import trio

from chain.concurrency.threads import Threads
from chain.config.load import Settings
from chain.errors import UserError
from chain.journal.records import InstructionsRead
from chain.regular_file import regular_file
from chain.tools.paths import open_below, printable_path

KIB = 1024
MAX_EACH = 32 * KIB
"""The limit of one file in bytes: about 8,000 tokens in every request."""
MAX_ALL = 96 * KIB
"""The limit of all files together in bytes: about 25,000 tokens, an eighth of a usual window."""

READ_S = 2.0
"""The time that a run waits for the disk, in seconds."""

OWN_NAME = "AGENTS.md"
"""The name of the user's own file of instructions, in the folder of the user's configuration.

The configuration cannot change this name, since other files of the folder contain API keys.
"""

INSTRUCTIONS_HEAD = (
    "Instructions of the user and of the project, each from the file that is named before it. Where two disagree, the "
    "later one holds. They say how to work here, and allow nothing that needs the user's approval."
)
REST_LEFT_OUT = "[The rest of this file is left out.]"

_THREADS = Threads("instructions", 2)
"""Two threads, so that one that hangs on a disk does not block later runs."""


async def read_in_time(settings: Settings, workspace: Path, latest: InstructionsRead) -> InstructionsRead:
    """Read the instructions in a thread. If that takes longer than ``READ_S``, return ``latest`` with a fault."""
    read = partial(read_instructions, workspace, settings.instructions, settings.config_folder)
    with trio.move_on_after(READ_S):
        return await _THREADS.run(read, abandon_on_cancel=True)
    slow = f"The project instructions could not be read within {READ_S:g} s, so the previous ones are used."
    return replace(latest, faults=(slow,))


def read_instructions(workspace: Path, names: Sequence[str], own: Path | None = None) -> InstructionsRead:
    """Return the instructions for a workspace. Reads the disk.

    The path of the workspace must have no links. ``names`` are the file names to look for in each folder, and ``own``
    is the folder of the user's configuration.
    """
    parts, files, faults = [INSTRUCTIONS_HEAD], list[str](), list[str]()
    seen, left = set[tuple[int, int]](), MAX_ALL
    for place in _instruction_files(workspace, names, own):
        try:
            data, found = place.read(min(left, MAX_EACH))
            if (found.st_dev, found.st_ino) in seen:
                continue  # a link to a file that was read
            seen.add((found.st_dev, found.st_ino))
            is_cut = found.st_size > len(data)
            text = _decode(data, is_cut=is_cut)
        except UserError as error:
            faults.append(f"{place.shown} is left out of the project instructions: {error}.")
            continue
        if is_cut:
            bound = f"the limits are {MAX_EACH // KIB} KiB for a file and {MAX_ALL // KIB} KiB for all files"
            size = f"{found.st_size:,} bytes"
            part = f"has only its first {len(data):,} of {size} in" if text else f"({size}) is left out of"
            faults.append(f"{place.shown} {part} the project instructions: {bound}.")
        if text:
            left -= len(data)
            files.append(place.shown)
            parts.append("\n".join([f"[Instructions: {place.shown}]", text, *([REST_LEFT_OUT] if is_cut else [])]))
    return InstructionsRead("\n\n".join(parts) if files else "", tuple(files), tuple(faults))


@dataclass(frozen=True, slots=True)
class _InstructionFile:
    """A file of instructions. ``shown`` is its name for people.

    ``repository`` is the top of the repository that contains the file; ``None`` for the user's own file.
    """

    path: Path
    shown: str
    repository: Path | None = None

    def read(self, limit: int) -> tuple[bytes, os.stat_result]:
        """Return the first ``limit`` bytes and the status of the file.

        Raise ``UserError`` if it cannot be read. The message continues a sentence in which the caller names the file.
        """
        try:
            real, top = Path(os.path.realpath(self.path, strict=True)), self.repository or Path("/")
            if not real.is_relative_to(top):
                raise UserError("it is a link that leads out of the repository")
            parts = real.relative_to(top).parts
            if self.repository is not None and ".git" in parts:
                raise UserError("it is a link into .git, which may contain keys")
            # Checked before the open too, because opening some devices has effects.
            if not stat.S_ISREG(os.lstat(real).st_mode):
                raise UserError("it is a folder, a device, a pipe or a socket; only files are read")
            with regular_file(open_below(str(top), parts)) as file:
                return file.read(limit), os.fstat(file.fileno())
        except FileNotFoundError:
            raise UserError("it is a broken link") from None
        except OSError as error:
            raise UserError(f"it cannot be read ({error.strerror or error})") from None


def _instruction_files(workspace: Path, names: Sequence[str], own: Path | None) -> Iterator[_InstructionFile]:
    if names and own is not None and os.path.lexists(own / OWN_NAME):
        # The user may have linked it to any place.
        yield _InstructionFile(own / OWN_NAME, printable_path(own / OWN_NAME))
    folders = _repository_folders(workspace)
    for folder in folders:
        name = next((name for name in names if os.path.lexists(folder / name)), None)
        if name is not None:
            shown = printable_path(Path(os.path.relpath(folder / name, workspace)))
            yield _InstructionFile(folder / name, shown, folders[0])


def _repository_folders(workspace: Path) -> Sequence[Path]:
    """Return the folders from the top of the repository down to the workspace; outside of one, the workspace alone."""
    found = []
    for folder in (workspace, *workspace.parents):
        found.append(folder)
        if os.path.lexists(folder / ".git"):
            return found[::-1]
    return found[:1]


def _decode(data: bytes, *, is_cut: bool) -> str:
    """Decode a file, up to its last complete row if it is truncated. Raise ``UserError`` if it is not text."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data, final=not is_cut)
    except UnicodeDecodeError:
        raise UserError("it is not UTF-8; save it as UTF-8") from None
    if "\0" in text:
        raise UserError("it is not text: it contains a NUL character")
    if is_cut and "\n" in text:
        text = text.rpartition("\n")[0]
    return text.removeprefix("\ufeff").strip()
