"""Decoding of text files. Pure.

Text is UTF-8, or UTF-16 with a byte order mark. Any other file that contains a NUL is binary.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

from chain.text.wording import join_first

MAX_NUMBERS = 10
"""The most line numbers in one sentence."""

_CODECS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_LONE_LF = re.compile(r"(?<!\r)\n")


@dataclass(frozen=True, slots=True)
class FileText:
    """The decoded content of a file, with its line ends unchanged; ``mark`` is its byte order mark, or empty.

    ``is_damaged``: some bytes could not be decoded and are U+FFFD in ``body``.
    """

    body: str = ""
    mark: bytes = b""
    codec: str = "utf-8"
    is_damaged: bool = False

    @classmethod
    def of(cls, raw: bytes) -> FileText | None:
        """Decode the bytes of a file. Return ``None`` if they are binary."""
        mark = next((mark for mark in _CODECS if raw.startswith(mark)), b"")
        codec = _CODECS.get(mark, "utf-8")
        body = raw[len(mark) :].decode(codec, "replace")
        is_damaged = "\ufffd" in body and mark + body.encode(codec) != raw
        return None if "\0" in body else cls(body, mark, codec, is_damaged)

    @property
    def lines(self) -> list[str]:
        """The lines without their line ends. As in editors, there is no empty line after a final line end."""
        lines = self.body.replace("\r\n", "\n").split("\n")
        return lines[:-1] if not lines[-1] else lines

    @property
    def is_crlf(self) -> bool:
        """Whether all line ends are CR LF; false for a file without line ends."""
        return 0 < self.body.count("\n") == self.body.count("\r\n")

    def adapt_line_ends(self, text: str) -> str:
        """Return the model's text with CR LF line ends if all line ends of this file are CR LF; otherwise unchanged."""
        return _LONE_LF.sub("\r\n", text) if self.is_crlf else text

    @property
    def notes(self) -> list[str]:
        """Remarks on the encoding and the line ends, which ``lines`` does not show. Each is part of a sentence."""
        name, crlf = self.codec.upper(), [n for n, line in enumerate(self.body.split("\n"), 1) if line[-1:] == "\r"]
        ends = f"lines {join_first([*map(str, crlf)], MAX_NUMBERS)} end with CR LF, the others with LF" if crlf else ""
        found = {
            f"{name} with a byte order mark": bool(self.mark),
            f"it is not {name}, and \ufffd replaces bytes that could not be decoded": self.is_damaged,
            "the lines end with CR LF" if self.is_crlf else ends: bool(crlf),
        }
        return [note for note, holds in found.items() if holds]
