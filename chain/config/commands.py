"""Custom commands: prompts in Markdown files. The user starts one with a slash and the name of its file.

Files in the folder ``commands`` of the user's configuration belong to the user. Files in ``.chain/commands`` of a
workspace may come from anyone: a file is parsed and offered only while the user trusts its content (``trust``). A
command of the user overrides one of the workspace with the same name, and a built-in command overrides both.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from chain.config import trust, yamlfile
from chain.config.load import Settings
from chain.config.yamlfile import Node
from chain.errors import ConfigError, UnreadableFile, did_you_mean
from chain.regular_file import FLAGS, regular_file

WORKSPACE_FOLDER = Path(".chain", "commands")

MAX_COMMAND_BYTES = 64 * 1024
"""The limit of a file in bytes. A longer text, with its arguments, would exceed the limit of a line."""

MAX_COMMANDS = 100
"""The limit of the commands in a folder, so that a folder with many files does not delay the start."""

_NAME = re.compile(r"[A-Za-z0-9][\w-]{0,39}", re.ASCII)
_FENCE = "---"
_KEYS = ("description", "model")
_FIELD = re.compile(r"\$(?:(?P<all>ARGUMENTS)(?!\w)|(?P<number>[1-9])(?!\d))", re.ASCII)


@dataclass(frozen=True, slots=True)
class CustomCommand:
    """A custom command. ``name`` has no slash. ``model`` names a definition; empty for the current model."""

    name: str
    file: Path
    body: str
    description: str = ""
    model: str = ""

    @property
    def has_fields(self) -> bool:
        """Whether the text contains fields for arguments."""
        return _FIELD.search(self.body) is not None

    def expand(self, arguments: str) -> str:
        """Return the text of the command with the arguments in its fields. If it has none, append them as a paragraph.

        ``$1`` to ``$9`` are the words of the arguments, split and quoted as in a shell. A field in an argument is not
        replaced.
        """
        arguments = arguments.strip()
        try:
            words = shlex.split(arguments)
        except ValueError:  # a quote that is not closed, such as an apostrophe
            words = arguments.split()

        def value(found: re.Match[str]) -> str:
            if found["all"]:
                return arguments
            place = int(found["number"])
            return words[place - 1] if place <= len(words) else ""

        text = _FIELD.sub(value, self.body)
        return text if self.has_fields or not arguments else f"{text}\n\n{arguments}"


@dataclass(frozen=True, slots=True)
class UntrustedCommand:
    """A command file of the workspace whose content the user does not trust yet."""

    name: str
    file: Path
    digest: str


@dataclass(frozen=True, slots=True)
class FoundCommands:
    """The commands by name, and the files that need the user's trust.

    ``faults`` has a sentence about each unusable file or model, and ``notes`` one about each ignored key. ``broken``
    has the faults of unusable files by the names of their commands.
    """

    commands: tuple[CustomCommand, ...] = ()
    untrusted_commands: tuple[UntrustedCommand, ...] = ()
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    broken: Mapping[str, str] = field(default_factory=dict)


def find_commands(settings: Settings, workspace: Path, state: Path, built_in: Collection[str] = ()) -> FoundCommands:
    """Return the commands of the user and of a workspace. Reads the disk.

    ``built_in`` are reserved names, without the slash. ``state`` is the folder with the trusted digests.
    """
    found, untrusted = dict[str, CustomCommand](), list[UntrustedCommand]()
    faults, notes, broken = list[str](), list[str](), dict[str, str]()
    own = settings.config_folder
    places = [(own / "commands", False)] if own is not None else []
    for folder, is_foreign in (*places, (workspace / WORKSPACE_FOLDER, True)):
        try:
            files = _files(folder, workspace if is_foreign else None)
        except ConfigError as error:
            faults.append(str(error))
            continue
        for file in files:
            try:
                name = _checked_name(file, built_in, found)
                text = _read(file, is_foreign=is_foreign)
                if is_foreign and not trust.is_trusted(digest := _digest(name, text), state):
                    untrusted.append(UntrustedCommand(name, file, digest))
                    continue
                command = _parse(name, file, text, notes)
                if fault := _model_fault(settings, command):
                    faults.append(fault)
                    command = replace(command, model="")
                found[name] = command
            except ConfigError as error:
                faults.append(str(error))
                broken[file.stem.casefold()] = str(error)
    commands = tuple(found[name] for name in sorted(found))
    return FoundCommands(commands, tuple(untrusted), tuple(faults), tuple(notes), broken)


def trust_commands(commands: Collection[UntrustedCommand], state: Path) -> None:
    """Store that the user trusts the current content of these files. Raise ``UserError`` if that cannot be stored."""
    for command in commands:
        trust.remember(command.digest, state)


def _files(folder: Path, workspace: Path | None) -> list[Path]:
    """Return the files of a folder. Raise ``ConfigError`` if the folder is outside the ``workspace``."""
    try:
        names = sorted(entry.name for entry in _entries(folder) if entry.name.endswith(".md"))
        if names and workspace is not None and not folder.resolve().is_relative_to(workspace.resolve()):
            raise ConfigError("leads out of the workspace, so its commands are not read", file=folder)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", file=folder) from None
    if len(names) > MAX_COMMANDS:
        raise ConfigError(f"has {len(names)} commands, and the limit is {MAX_COMMANDS}; remove some", file=folder)
    return [folder / name for name in names]


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        yield from entries


def _checked_name(file: Path, built_in: Collection[str], found: Collection[str]) -> str:
    """Return the name of a command from its file name. Raise ``ConfigError`` if it is invalid or taken."""
    name = file.stem.casefold()
    shown = yamlfile.printable(file.name)
    if not _NAME.fullmatch(name):
        why = "a command has up to 40 letters of a-z, digits, _ and -"
        raise ConfigError(f"{shown} cannot be a command: {why}; rename it", file=file.parent)
    if name in built_in:
        raise ConfigError(f"/{name} is a built-in command; rename the file to use it", file=file)
    if name in found:
        raise ConfigError(f"/{name} is already one of your own commands; rename the file to use it", file=file)
    return name


def _read(file: Path, *, is_foreign: bool) -> str:
    """Return the text of a file. Raise ``ConfigError`` if it is unusable, or if it is a link and ``is_foreign``."""
    try:
        with regular_file(os.open(file, FLAGS | (os.O_NOFOLLOW if is_foreign else 0))) as opened:
            raw = opened.read(MAX_COMMAND_BYTES + 1)
    except OSError as error:
        raise UnreadableFile(f"cannot be read: {error.strerror or error}", file=file) from None
    if len(raw) > MAX_COMMAND_BYTES:
        raise ConfigError(f"is larger than {MAX_COMMAND_BYTES // 1024} kB, the limit for a command", file=file)
    return yamlfile.decode(raw, file).replace("\r\n", "\n")


def _digest(name: str, text: str) -> str:
    return hashlib.sha256(f"command {name}\n{text}".encode(errors="surrogatepass")).hexdigest()


def _parse(name: str, file: Path, text: str, notes: list[str]) -> CustomCommand:
    """Return the command of a file. Append a note for each unknown key. Raise ``ConfigError`` if a key is invalid."""
    front_matter, body = _split(file, text)
    if not body:
        raise ConfigError("has no text; write what the model is to do", file=file)
    given = dict.fromkeys(_KEYS, "")
    for key, node in front_matter.items():
        if key not in _KEYS:
            why = f"unknown key {yamlfile.printable(key)} is ignored; a command may have {' and '.join(_KEYS)}"
            notes.append(str(ConfigError(why, file=file, line=node.line)))
        elif node.value is not None:
            given[key] = node.text().strip()
    return CustomCommand(name, file, body, **given)


def _model_fault(settings: Settings, command: CustomCommand) -> str:
    """Return why the model of a command cannot be used; empty if it can."""
    name, names = command.model, settings.model_names
    if not name or name in names:
        return ""
    hint = did_you_mean(name, names, f"the models are {', '.join(names)}", 0.5)
    why = f"there is no model {name!r:.60}, so /{command.name} uses the current one: {hint}"
    return str(ConfigError(why, file=command.file))


def _split(file: Path, text: str) -> tuple[dict[str, Node], str]:
    """Split a file into the keys of its front matter, YAML between two lines ``---``, and the text after it."""
    first, _, rest = text.partition("\n")
    if first.rstrip() != _FENCE:
        return {}, text.strip()
    rows = rest.split("\n")
    end = next((n for n, row in enumerate(rows) if row.rstrip() == _FENCE), None)
    if end is None:
        raise ConfigError(f"the front matter has no end: add a line {_FENCE} after it", file=file, line=1)
    # An empty row replaces the fence, so that line numbers are those of the file.
    head = yamlfile.parse("\n".join(["", *rows[:end]]), str(file))
    return {} if head.value is None else head.mapping(), "\n".join(rows[end + 1 :]).strip()
