"""Attaches files to a message.

A line of the message names a file by ``@`` and a path, as in ``@docs/a.md``. Tools must be allowed to read the path. If
no such file exists, the word remains text.

The files are read in the step that delivers the line, and nothing else can run during this step. So only regular files
and folders are opened, with non-blocking calls, and their size is limited. If the file system does not respond within
``FILE_SYSTEM_S``, the reading thread is abandoned and the files are left out.
"""

from __future__ import annotations

import heapq
import os
import re
import stat
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePath

from chain.concurrency.threads import run_with_timeout
from chain.errors import ToolError
from chain.messages import Block, Image, Text
from chain.text.wording import FILE_BEGIN, STDIN_BEGIN, pluralize
from chain.tools.file_text import FileText
from chain.tools.file_versions import KnownFileVersions, digest
from chain.tools.paths import MAX_WHOLE, innermost_root, open_entries, open_file, printable_path, resolve_inside

MAX_ATTACHED_CHARS = 20_000
"""The most characters of an attached file: about 6,000 tokens. The model can read the rest with a tool."""

MAX_ENTRIES = 300
"""The most names shown of an attached folder, as many as ``list_files`` shows."""

MAX_FOLDER_NAMES = 20_000
"""The most names of a folder that are read. Reading them takes some hundredths of a second."""

MAX_NAMED = 20
"""The most files of one message. Their text fills at most half of a context window of 200,000 tokens."""

MAX_NAMES_TRIED = 200
"""The most words with an ``@`` in one line that are tried as file names. Most in a pasted text name no file."""

MAX_NAMED_BYTES = 16 * 1024 * 1024
"""The most bytes of all files of one message. A request may have 32 MB. Reading takes some hundredths of a second."""

FILE_SYSTEM_S = 1.0
"""The longest time, in seconds, for which a file system that does not respond may block everything else."""

OUTSIDE = "outside the workspace"

_IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}

_WORD = re.compile(r"""(?:^|(?<=[\s(\[{<>"'`,;:=|]))@(?:"([^"\n]+)"|([^\s"@][^\s"]*))""")
_LINES = re.compile(r":L?\d+(?:[-:]L?\d+)?\Z")
"""Matches a suffix with line numbers, as in ``cli/main.py:12``. The whole file is attached nevertheless."""
_END = ".,;:!?…)]}>'`*|"
"""Characters that can follow a name or be a part of it. Of the possible names, the longest that exists is used."""


@dataclass(frozen=True, slots=True)
class Attachments:
    """The attachments of one message. ``blocks`` are the attached contents, which follow the texts of the lines.

    ``notes`` maps the id of a line to a note about the files that were attached to it or left out.
    """

    blocks: tuple[Block, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LineContent:
    """One line of a message: its id, its text, and the ``images`` that its sender attached to it."""

    id: str
    text: str
    images: tuple[Image, ...] = ()


@dataclass(frozen=True, slots=True)
class _Attachment:
    """The result of attaching one file.

    If the file is attached, ``blocks`` are its content, and ``description`` describes it briefly. If it is left out,
    ``blocks`` is empty, and ``description`` is the reason. ``path`` and ``digest`` are set for a file that was read as
    text; ``size`` is in bytes.
    """

    description: str
    blocks: tuple[Block, ...] = ()
    path: Path | None = None
    digest: str = ""
    size: int = 0


def read_named_files(
    workspace: Path, seen: KnownFileVersions, lines: Sequence[LineContent], added: Sequence[Path] = ()
) -> Attachments:
    """Return the attachments of one message: the files that its lines name, and the images that its senders attached.

    The versions of text files are recorded in ``seen``. ``added`` are the directories outside the workspace that tools
    may use. The call raises nothing, and takes at most ``FILE_SYSTEM_S``.
    """
    wanted = [(line.id, names) for line in lines for names in islice(names_in(line.text), MAX_NAMES_TRIED)]
    sent = [(line.id, image.name, _attach_image(image)) for line in lines for image in line.images]
    found = list(sent)
    is_whole = not wanted or run_with_timeout(lambda: found.extend(_read_all(workspace, added, wanted)), FILE_SYSTEM_S)
    if not is_whole:
        late = _Attachment("their disk does not respond")
        found = [*sent, *((id, "its files", late) for id, _ in wanted)]
    blocks: dict[tuple[Block, ...], None] = {}  # an ordered set: a file that is named twice is attached once
    notes: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for id, name, each in found:
        attached, left_out = notes.setdefault(id, ({}, {}))
        if each.blocks:
            blocks[each.blocks] = None
            attached[f"{name} ({each.description})"] = None
        else:
            left_out[f"{name}: {each.description}"] = None
        if each.path is not None:
            seen.digests[each.path] = each.digest
    return Attachments(
        tuple(block for each in blocks for block in each),
        {id: _note(list(attached), list(left_out)) for id, (attached, left_out) in notes.items()},
    )


def names_in(text: str) -> Iterator[Sequence[str]]:
    """For each word of a line that may be a file name, yield the file names that it may mean, longest first.

    Piped input and files that an editor embedded in the line are not the user's own words, so they name no files.
    """
    for word in _WORD.finditer(text.partition(STDIN_BEGIN)[0].partition(FILE_BEGIN)[0]):
        if word[1] is not None:
            yield (word[1],)
            continue
        names, name = [word[2]], word[2]
        while name:
            shorter = _LINES.sub("", name)
            name = shorter if shorter != name else name[:-1] if name[-1] in _END else ""
            if name:
                names.append(name)
        yield names


def _note(attached: Sequence[str], left_out: Sequence[str]) -> str:
    parts = [f"with {', '.join(attached)}"] if attached else []
    return "; ".join([*parts, *(f"without {each}" for each in left_out)])


def _read_all(
    workspace: Path, added: Sequence[Path], wanted: Sequence[tuple[str, Sequence[str]]]
) -> Iterator[tuple[str, str, _Attachment]]:
    """For each word that names a file, yield the id of the word's line, the path as shown, and the attachment."""
    root, known, room = workspace.resolve(), dict[str, _Attachment | None](), MAX_NAMED_BYTES
    for id, names in wanted:
        for name in names:
            if name not in known:
                is_full = sum(each is not None and bool(each.blocks) for each in known.values()) >= MAX_NAMED
                attachment = known[name] = _attach(root, added, name, room, is_full=is_full)
                room -= attachment.size if attachment is not None else 0
            if (found := known[name]) is not None:
                yield id, printable_path(PurePath(name)), found
                break


def _attach(root: Path, added: Sequence[Path], name: str, room: int, *, is_full: bool) -> _Attachment | None:
    """Return the attachment for a name; ``None`` if there is no such file.

    ``room`` is the number of bytes that can still be attached to the message. If ``is_full``, no further file
    can be attached.
    """
    try:
        given = PurePath(os.path.expanduser(name)) if name.startswith("~") else PurePath(name)
        if given.is_absolute():
            root = innermost_root(root, added, Path(given))
            if not given.is_relative_to(root):
                return _Attachment(OUTSIDE) if os.path.exists(given) else None
            given = given if root in added else given.relative_to(root)
        given = PurePath(os.path.normpath(given))
        if not os.path.exists(root / given):
            return None
        return _Attachment(OUTSIDE) if ".." in given.parts else _attach_inside(root, given, room, is_full=is_full)
    except (OSError, ValueError):  # a name that no file can have
        return None


def _attach_inside(root: Path, path: PurePath, room: int, *, is_full: bool) -> _Attachment:
    """Return the attachment for an existing path below ``root``. Raise ``OSError`` if its status cannot be read.

    If the file is left out, for example because a link leads out of ``root``, the attachment gives the reason.
    """
    try:
        parts = resolve_inside(root, str(path)).relative_to(root).parts
    except ToolError:
        return _Attachment(OUTSIDE)
    status, shown = os.stat(root.joinpath(*parts), follow_symlinks=False), printable_path(path)
    if is_full:
        return _Attachment(f"more than the {MAX_NAMED} files of one message")
    try:
        if stat.S_ISDIR(status.st_mode):
            return _attach_folder(root, parts, shown)
        if not stat.S_ISREG(status.st_mode):
            return _Attachment("a device, a pipe or a socket")
        with open_file(root, parts, shown) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_WHOLE:
                return _Attachment(f"too large, {size:,} bytes")
            if size > room:
                return _Attachment(f"more than the {MAX_NAMED_BYTES:,} bytes of one message")
            raw = file.read(MAX_WHOLE)
    except ToolError as error:
        return _Attachment(str(error).removeprefix(f"{shown} ").removesuffix("."))
    except OSError as error:
        return _Attachment(f"cannot be read: {error.strerror}")
    if (image := image_of(shown, raw)) is not None:
        return _attach_image(image)
    text = FileText.of(raw)
    return _Attachment("binary") if text is None else _attach_text(shown, text, raw, root.joinpath(*parts))


def image_type(content: bytes) -> str:
    """Return the media type of an image in a format that model services accept; empty for other content."""
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for beginning, kind in _IMAGES.items() if content.startswith(beginning)), "")


def image_of(name: str, content: bytes) -> Image | None:
    """Return the content as an image for the model; ``None`` if it is no image that model services accept."""
    media_type, size = image_type(content), len(content)
    return Image(media_type, digest(content), name, b64encode(content).decode(), size) if media_type else None


def _attach_image(image: Image) -> _Attachment:
    description = f"{image.media_type.removeprefix('image/').upper()}, {image.size:,} bytes"
    return _Attachment(description, (Text(f"[Image {image.name}]"), image), size=image.size)


def _attach_text(shown: str, file: FileText, raw: bytes, path: Path) -> _Attachment:
    text = file.body.replace("\r\n", "\n")
    count = pluralize(len(file.lines), "line")
    body, more = text[:MAX_ATTACHED_CHARS], "".join(f"; {note}" for note in file.notes)
    if len(text) > MAX_ATTACHED_CHARS:
        whole = body.count("\n")
        body = body[: body.rindex("\n") + 1] if whole else body
        here = f"lines 1 to {whole} are here" if whole else "its beginning is here"
        rest = f"line {whole + 1}" if whole else f"column {MAX_ATTACHED_CHARS + 1}"
        more += f"; {here}, and the rest can be read from {rest} on"
    return _Attachment(count, (Text(f"[File {shown}, {count}{more}]\n{body}"),), path, digest(raw), len(raw))


def _attach_folder(root: Path, parts: tuple[str, ...], shown: str) -> _Attachment:
    with open_entries(root, parts) as entries:
        names = [f"{e.name}/" if e.is_dir(follow_symlinks=False) else e.name for e in islice(entries, MAX_FOLDER_NAMES)]
    listed = heapq.nsmallest(MAX_ENTRIES, names)
    rows = [printable_path(PurePath(name)) + ("/" if name.endswith("/") else "") for name in listed]
    count = pluralize(len(names), "entry", "entries") + ("" if len(names) < MAX_FOLDER_NAMES else " or more")
    if len(names) > len(rows):
        rows.append(f"({len(names) - len(rows):,} more are not shown)")
    return _Attachment(f"a folder, {count}", (Text("\n".join([f"[Folder {shown}, {count}]", *rows])),))
