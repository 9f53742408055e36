"""Images and files that the user attaches to a line: from the clipboard, and from outside the workspace.

An attachment has a label in the editor, such as ``[clipboard-1.png]``. A line that contains the label is sent together
with the image or the text of the file.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import trio

from chain.chain import MAX_IMAGE, image_type
from chain.concurrency.threads import Threads, run_with_timeout
from chain.errors import UserError
from chain.text.wording import FILE_BEGIN

CLIPBOARD_S = 5.0
"""The time limit, in seconds, to read the clipboard: the program that owns the clipboard may not answer."""

FILE_S = 5.0
"""The time limit, in seconds, to read a file: the disk may not answer."""

PASTE_PATIENCE_S = 0.1
"""Seconds that a paste may be delayed to check whether it is the path of a file."""

MAX_TEXT = 50_000
"""Maximum characters of an attached text file: half of the maximum of a line."""

MAX_PATH = 4_096
"""Maximum characters of a path; the system has the same limit."""

CLIPBOARD_PROGRAMS: Sequence[tuple[str, ...]] = (
    ("wl-paste", "--no-newline", "--type", "image/png"),
    ("xclip", "-selection", "clipboard", "-target", "image/png", "-out"),
    ("pngpaste", "-"),
)
"""Programs that write the clipboard's image to their output, for Wayland, X11 and macOS."""

_THREADS = Threads("attachments")


@dataclass(frozen=True, slots=True)
class Attachment:
    """An image, or a text file with its absolute path. ``about`` describes its kind and size."""

    label: str
    about: str
    image: bytes = b""
    path: str = ""
    text: str = ""

    @property
    def name(self) -> str:
        """The label without its brackets."""
        return self.label[1:-1]


class Attachments:
    """The attachments of one session. No two attachments have the same label."""

    def __init__(self) -> None:
        self._by_label: dict[str, Attachment] = {}
        self._images = 0

    async def attach_clipboard(self, environ: Mapping[str, str]) -> Attachment:
        """Attach the image in the clipboard. Raise ``UserError`` if there is none, or if it is too large."""
        content = await read_clipboard(environ)
        kind = _image_kind(content)
        if not kind:
            raise UserError("there is no image in the clipboard")
        if len(content) > MAX_IMAGE:
            raise UserError(f"the image in the clipboard has more than {MAX_IMAGE:,} bytes")
        self._images += 1
        return self._add(f"[clipboard-{self._images}.{kind.lower()}]", _description(kind, content), image=content)

    async def attach_file(self, path: Path) -> Attachment:
        """Attach a file. Raise ``UserError`` if it cannot be read, is too large, or is neither an image nor text."""
        content: bytes | None = None
        with trio.move_on_after(FILE_S):
            content = await _THREADS.run(lambda: _content(path), abandon_on_cancel=True)
        if content is None:
            raise UserError(f"{path} cannot be read within {FILE_S:g} s")
        if kind := _image_kind(content):
            return self._add(self._free_label(path), _description(kind, content), image=content, path=str(path))
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise UserError(f"{path} is neither text nor an image (PNG, JPEG, GIF or WebP)")
        if len(text) > MAX_TEXT:
            raise UserError(
                f"{path} has {len(text):,} characters, and the limit is {MAX_TEXT:,}; /add-dir lets tools read it"
            )
        return self._add(self._free_label(path), f"{len(text):,} characters", path=str(path), text=text)

    def expand(self, line: str) -> tuple[str, list[tuple[str, bytes]]]:
        """Return a line with the texts of the files whose labels it contains, and the images labelled in it."""
        found = [each for each in self._by_label.values() if each.label in line]
        files = [f'{FILE_BEGIN}{each.path}">\n{each.text}\n</file>' for each in found if not each.image]
        # A returned line already contains the texts of its files.
        return line + "".join(file for file in files if file not in line), [
            (each.name, each.image) for each in found if each.image
        ]

    def _add(self, label: str, about: str, *, image: bytes = b"", path: str = "", text: str = "") -> Attachment:
        added = self._by_label[label] = Attachment(label, about, image, path, text)
        return added

    def _free_label(self, path: Path) -> str:
        """Return the label of a file: its name in brackets, with a number if another file has this label already."""
        name, number = "".join(c if c.isprintable() else "?" for c in path.name), 1
        label = f"[{name}]"
        while label in self._by_label and self._by_label[label].path != str(path):
            number += 1
            label = f"[{name} {number}]"
        return label


async def read_clipboard(environ: Mapping[str, str]) -> bytes:
    """Return the image in the clipboard; empty if there is none. Raise ``UserError`` if it cannot be read."""
    found = [argv for argv in CLIPBOARD_PROGRAMS if shutil.which(argv[0], path=environ.get("PATH"))]
    if not found:
        raise UserError("install wl-paste (Wayland), xclip (X11) or pngpaste (macOS) to attach images")
    content = b""
    with trio.move_on_after(CLIPBOARD_S) as limit:
        for argv in found:
            content = content or await _output_of(argv, environ)
    if limit.cancelled_caught:
        raise UserError(f"the clipboard did not answer within {CLIPBOARD_S:g} s")
    return content


async def _output_of(argv: Sequence[str], environ: Mapping[str, str]) -> bytes:
    """Return the output of a program; empty if it fails. Stop the program after a little over ``MAX_IMAGE`` bytes."""
    try:
        process = await trio.lowlevel.open_process(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ
        )
    except OSError:
        return b""
    assert process.stdout is not None
    content = b""
    try:
        while len(content) <= MAX_IMAGE and (part := await process.stdout.receive_some()):
            content += part
        if len(content) <= MAX_IMAGE and await process.wait() != 0:
            content = b""
    finally:
        # A cancelled caller must not leave the clipboard program running.
        with trio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.stdout.aclose()
            await process.wait()
    return content


def outside_path(pasted: str, roots: Sequence[Path], timeout_s: float = PASTE_PATIENCE_S) -> Path | None:
    """Return the path of an existing file outside the folders ``roots`` if a pasted text names one; else ``None``.

    Terminals write the path of a dropped file in quotes, with backslashes, or as a ``file:`` address. If the disk does
    not answer within ``timeout_s`` seconds, return ``None``.
    """
    text = pasted.strip()
    if not text or len(text) > MAX_PATH or not text.isprintable():
        return None
    if text.startswith("file://"):
        path = unquote(urlsplit(text).path)
    else:
        try:
            words = shlex.split(text)
        except ValueError:  # a quote that is not closed
            words = []
        path = os.path.expanduser(words[0] if len(words) == 1 else text)
    if not os.path.isabs(path) or "\0" in path:
        return None
    found: list[Path] = []

    def resolve() -> None:
        real = Path(path).resolve()
        if real.is_file() and not any(real.is_relative_to(root) for root in roots):
            found.append(Path(path))

    run_with_timeout(resolve, timeout_s)
    return found[0] if found else None


def _content(path: Path) -> bytes:
    """Return the content of a regular file. Raise ``UserError`` if it cannot be read or is too large."""
    try:
        if not path.exists() or path.is_file():
            with path.open("rb") as file:
                if (size := os.fstat(file.fileno()).st_size) > MAX_IMAGE:
                    raise UserError(f"{path} has {size:,} bytes, and the limit is {MAX_IMAGE:,}")
                return file.read(MAX_IMAGE)
        raise UserError(f"{path} is not a file")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def _image_kind(content: bytes) -> str:
    """Return the kind of an image, such as ``PNG``; empty for other content."""
    return image_type(content).removeprefix("image/").upper()


def _description(kind: str, content: bytes) -> str:
    return f"{kind}, {len(content):,} bytes"
