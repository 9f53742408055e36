"""The text of a page, run as a program of its own: the page's bytes in, its paragraphs out.

Whatever reads HTML can be made to need hours for a page of 5 MB, and keeps the interpreter's lock meanwhile: in a
thread of the chain it would stop everything. A process can be killed, and its memory be limited. selectolax builds the
tree that browsers build and takes 0.1 s for a usual page of 5 MB (html.parser takes 6).

Arguments: the folder that selectolax is in, ``html`` or ``text``, the charset of the header or nothing. A row of the
output is the number of a paragraph (HTML) or of a line, a tab, and its text or a piece of it; in UTF-8.
"""

from __future__ import annotations

import codecs
import os
import re
import resource
import sys
from collections.abc import Iterable, Iterator
from itertools import islice

if __name__ == "__main__":
    # Run by its path and isolated, it finds the standard library alone; its own package comes after that.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from chain.tools.processes import fence

MAX_MEMORY = 2 * 1024 * 1024 * 1024
"""Bytes of address space. The usual page of 5 MB needs 260 MB, and the worst that was found 600."""

MAX_CPU_S = 15
"""Seconds of processor time, above what its caller waits."""

MAX_PAGE_ROWS = 100_000
"""Rows that are given back; a page of more is a file of data, and ranking them would take seconds."""

_UP_TO_WORD = re.compile(r".*\W", re.DOTALL)

MAX_PIECE = 1_000
"""Characters of a row. It is what is searched and ranked, so a text of one long line is cut into several."""

_HIDDEN = frozenset({"script", "style", "noscript", "template", "svg", "math", "object", "iframe"})

_INLINE = frozenset(
    """a abbr acronym b bdi bdo big cite code data del dfn em font i ins kbd label mark nobr q rp rt ruby s samp small
    span strike strong sub sup td th time tt u var wbr""".split()  # noqa: SIM905 - a word on each row would say no more
)
"""Elements that end no paragraph. The cells of a table's row are one: apart they say little."""

_META = re.compile(rb"<meta[^>]{0,300}?charset\s*=\s*[\"']?\s*([\w-]{1,40})", re.IGNORECASE)

_NOT_FOR_PAGES = frozenset({"idna", "punycode", "unicode-escape", "raw-unicode-escape", "utf-7", "undefined"})
"""Codecs of Python's that no page has; some take time that grows with the square of the length."""

_BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def decoded(raw: bytes, charset: str, *, is_html: bool) -> str:
    """The text by its byte order mark, header, ``meta``, as UTF-8 or Windows-1252, as browsers read it."""
    for mark, codec in _BOMS.items():
        if raw.startswith(mark):
            return raw.decode(codec, "replace")
    meta = _META.search(raw, 0, 2048) if is_html else None
    inside = meta[1].decode("ascii", "replace") if meta else ""
    # A page whose meta could be read as ASCII is not UTF-16, whatever it says.
    for name in (charset, "" if inside.lower().startswith("utf-16") else inside):
        if codec := _codec(name):
            return raw.decode(codec, "replace")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        # Where only its end is missing, a character was cut in two with the page.
        return raw.decode("utf-8" if error.reason == "unexpected end of data" else "cp1252", "replace")


def _codec(name: str) -> str:
    """The codec of a charset's label; empty for one that is unknown."""
    try:
        found = codecs.lookup(name.strip(" \"'")).name
        b"abcd".decode(found, "replace")  # there are codecs for other things than text, such as zlib
    except (LookupError, ValueError):
        return ""
    if found in _NOT_FOR_PAGES:
        return ""
    return "cp1252" if found in ("iso8859-1", "ascii") else found


def lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a text that are not blank, each with its number."""
    for n, line in enumerate(text.split("\n"), 1):
        if line := " ".join(line.split()):
            yield n, line


def paragraphs(html: str) -> Iterator[str]:
    """The text of a page's paragraphs, headings, list items and rows of tables, in order."""
    from selectolax.lexbor import LexborHTMLParser

    parts: list[str] = []
    node = LexborHTMLParser(html).root
    pre = 0
    while node is not None:
        tag = node.tag or ""
        if node.is_text_node:
            text = node.text_content or ""
            for n, line in enumerate(text.split("\n") if pre else (text,)):
                if n:
                    yield "".join(parts)
                    parts.clear()
                parts.append(line)
        elif tag in ("td", "th"):
            parts.append(" ")
        elif tag not in _INLINE and not tag.startswith("-"):
            yield "".join(parts)
            parts.clear()
        below = None if tag in _HIDDEN else node.first_child
        if below is not None:
            pre += tag == "pre"
            node = below
            continue
        # On to the next one, upwards out of all that end here. A loop, since elements may be deeper than the stack.
        while node is not None and node.next is None:
            node = node.parent
            above = "" if node is None else node.tag or ""
            pre -= above == "pre"
            if above not in _INLINE:
                yield "".join(parts)
                parts.clear()
        node = None if node is None else node.next
    yield "".join(parts)


def numbered(texts: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The texts that are not blank, in one row each, counted from 1."""
    return enumerate(filter(None, (" ".join(text.split()) for text in texts)), 1)


def pieces(text: str) -> Iterator[str]:
    """The text in pieces of at most ``MAX_PIECE`` characters. No word is cut, unless it is longer than that."""
    start = 0
    while len(text) - start > MAX_PIECE:
        found = _UP_TO_WORD.match(text, start, start + MAX_PIECE)
        end = found.end() if found else start + MAX_PIECE
        yield text[start:end].rstrip()
        start = end
    yield text[start:]


def _limit(what: int, most: int) -> None:
    # The process may have a lower one already.
    _, hard = resource.getrlimit(what)
    if hard == resource.RLIM_INFINITY or hard > most:
        resource.setrlimit(what, (most, most))


def main(library: str, kind: str, charset: str) -> None:
    """Read a page from standard input and write its rows."""
    sys.path.append(library)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # whose rows would be among those of the page
    fence.enter_all()  # before the page is read, which may be hostile
    _limit(resource.RLIMIT_AS, MAX_MEMORY)
    _limit(resource.RLIMIT_CPU, MAX_CPU_S)
    is_html = kind == "html"
    text = decoded(sys.stdin.buffer.read(), charset, is_html=is_html)
    rows = ((n, piece) for n, row in (numbered(paragraphs(text)) if is_html else lines(text)) for piece in pieces(row))
    for n, piece in islice(rows, MAX_PAGE_ROWS):
        sys.stdout.buffer.write(f"{n}\t{piece}\n".encode("utf-8", "replace"))


if __name__ == "__main__":
    main(*sys.argv[1:])
