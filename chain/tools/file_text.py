"""The text of a file's bytes: its encoding, its byte order mark and its ends of line. Pure.

Files of text are UTF-8, or UTF-16 with a byte order mark. Anything else in which a NUL stands is binary.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

from chain.text.wording import first_of

MAX_NUMBERS = 10
"""Line numbers that a sentence names."""

_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_LONE_LF = re.compile(r"(?<!\r)\n")


@dataclass(frozen=True, slots=True)
class FileText:
    """A file's content as text. ``body`` has the ends of line as they are in the file.

    ``mark`` is the byte order mark, if there is one. ``is_damaged``: U+FFFD stands for bytes that are no text.
    """

    body: str = ""
    mark: bytes = b""
    codec: str = "utf-8"
    is_damaged: bool = False

    @classmethod
    def of(cls, raw: bytes) -> FileText | None:
        """Decode a file's bytes. ``None`` if they are binary."""
        mark = next((mark for mark in _MARKS if raw.startswith(mark)), b"")
        codec = _MARKS.get(mark, "utf-8")
        body = raw[len(mark) :].decode(codec, "replace")
        is_damaged = "\ufffd" in body and mark + body.encode(codec) != raw
        return None if "\0" in body else cls(body, mark, codec, is_damaged)

    @property
    def text(self) -> str:
        """The text with LF as the end of every line."""
        return self.body.replace("\r\n", "\n")

    @property
    def lines(self) -> list[str]:
        """The lines as editors count them, without their ends: an end of line ends one and begins none."""
        lines = self.text.split("\n")
        return lines[:-1] if not lines[-1] else lines

    @property
    def is_crlf(self) -> bool:
        """Whether all ends of line are CR LF, and there is one."""
        return 0 < self.body.count("\n") == self.body.count("\r\n")

    def adapted(self, text: str) -> str:
        """The model's text with this file's ends of line; unchanged where those are mixed."""
        return _LONE_LF.sub("\r\n", text) if self.is_crlf else text

    @property
    def notes(self) -> list[str]:
        """Parts of a sentence about what ``lines`` do not show."""
        name = self.codec.upper()
        notes = [f"{name} with a byte order mark"] if self.mark else []
        if self.is_damaged:
            notes.append(f"it is not {name}, and \ufffd stands for what could not be read")
        if self.is_crlf:
            notes.append("the lines end with CR LF")
        elif "\r\n" in self.body:
            numbers = [str(n) for n, line in enumerate(self.body.split("\n"), 1) if line.endswith("\r")]
            notes.append(f"ends of line are mixed: CR LF at {first_of(numbers, MAX_NUMBERS)}, LF at the others")
        return notes
