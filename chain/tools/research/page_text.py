"""A separate program that extracts the text of a web page. It reads the page's bytes and writes rows.

A hostile page of 5 MB can keep an HTML parser busy for hours, with the interpreter's lock held. A thread of chain would
then stop all of chain; a process can be killed, and its memory and processor time are limited.

Arguments: the folder that contains selectolax; the kind of page, ``html`` or ``text``; and the charset of the
``Content-Type`` header, or an empty string. An output row is in UTF-8, and has the number of a paragraph (HTML) or of a
line (text), a tab, and the text. ``paragraphs`` defines what counts as a paragraph.
"""

from __future__ import annotations

import codecs
import os
import re
import resource
import sys
from itertools import islice

if __name__ == "__main__":
    # An isolated program that is run by its path finds only the standard library.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from chain.tools.processes import fence

MAX_MEMORY = 2 * 1024 * 1024 * 1024
"""Bytes of address space. A usual page of 5 MB needs 260 MB."""

MAX_CPU_S = 15
"""Seconds of processor time, more than ``pages.TEXT_S``."""

MAX_ROWS = 200_000
"""The most rows of a source that are searched: 5 MB with 25 characters a row."""

MAX_PIECE = 1_000
"""Characters of a row. A longer line or paragraph is split into several rows with the same number."""

_PIECE = re.compile(rf"(?s).{{1,{MAX_PIECE}}}(?:(?<=\W)|\Z)|.{{1,{MAX_PIECE}}}")

_HIDDEN = ["script", "style", "noscript", "template", "svg", "math", "object", "iframe"]
_BLOCK = """:not(a, abbr, acronym, b, bdi, bdo, big, cite, code, data, del, dfn, em, font, i, ins, kbd, label, mark,
    nobr, q, rp, rt, ruby, s, samp, small, span, strike, strong, sub, sup, td, th, time, tt, u, var, wbr)"""
"""Matches elements that end a paragraph. Table cells do not end a paragraph, because a single cell says little."""

_BREAK = "\x1e"
"""The character that separates paragraphs while the text is extracted."""

_META = re.compile(rb"<meta[^>]{0,300}?charset\s*=\s*[\"']?\s*(?!utf-16)([\w-]{1,40})", re.IGNORECASE)
"""Matches the charset that a page declares. It cannot be UTF-16, because the tag itself is ASCII."""

_BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_WIDER = {"iso8859-1": "cp1252", "ascii": "cp1252"}
"""Maps some charsets that pages declare to those with which they are decoded, as in browsers."""


def decode(raw: bytes, charset: str, *, is_html: bool) -> str:
    """Decode a page by its byte order mark, the ``charset`` of its header or its ``meta`` tag.

    The first of the three that names a known encoding is used, or else UTF-8 or, for invalid UTF-8, Windows-1252.
    """
    mark = next((codec for mark, codec in _BOMS.items() if raw.startswith(mark)), "")
    meta = _META.search(raw, 0, 2048) if is_html else None
    for name in (mark, charset, meta[1].decode() if meta else ""):
        try:
            codec = codecs.lookup(name).name
            return raw.decode(_WIDER.get(codec, codec), "replace")
        except (LookupError, ValueError):
            continue  # an unknown charset, or one that is not for text
    try:
        return codecs.utf_8_decode(raw)[0]  # a character cut off at the end is left out
    except UnicodeDecodeError:
        return raw.decode("cp1252", "replace")


def paragraphs(html: str) -> list[str]:
    """Return the texts of a page's paragraphs, headings, list items, table rows and lines of code, in order."""
    from selectolax.lexbor import LexborHTMLParser

    page = LexborHTMLParser(html)
    if page.root is None:
        return []
    page.strip_tags(_HIDDEN, recursive=True)
    for cell in page.css("td, th"):
        cell.insert_before(" ")
    for block in page.css(_BLOCK):
        block.insert_before(_BREAK)
        block.insert_after(_BREAK)
    for code in page.css("pre"):
        code.replace_with(code.text().replace("\n", _BREAK))
    return [text for text in page.root.text().split(_BREAK) if text.strip()]


def pieces(text: str) -> list[str]:
    """Split text into pieces of at most ``MAX_PIECE`` characters, between words where possible."""
    return [piece.rstrip() for piece in _PIECE.findall(text) if not piece.isspace()]


def main(library: str, kind: str, charset: str) -> None:
    """Read a page from standard input and write its rows to standard output."""
    sys.path.append(library)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # error messages would mix with the page's rows
    fence.enter_all()  # before the page is read, which may be hostile
    for what, most in ((resource.RLIMIT_AS, MAX_MEMORY), (resource.RLIMIT_CPU, MAX_CPU_S)):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))
    text = decode(sys.stdin.buffer.read(), charset, is_html=kind == "html")
    texts = paragraphs(text) if kind == "html" else text.split("\n")
    rows = ((n, piece) for n, row in enumerate(texts, 1) for piece in pieces(" ".join(row.split())))
    for n, piece in islice(rows, MAX_ROWS):
        sys.stdout.buffer.write(f"{n}\t{piece}\n".encode("utf-8", "replace"))


if __name__ == "__main__":
    main(*sys.argv[1:])
