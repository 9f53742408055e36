"""The text of a page: its encoding, its paragraphs, and pages that are made to be slow."""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest
import trio
from support.fences import PROTECTIONS

from chain.tools.processes.guarded import Guard
from chain.tools.research import pages
from chain.tools.research.addresses import SourceError
from chain.tools.research.page_text import MAX_PIECE, decode, paragraphs, pieces
from chain.tools.research.pages import WebPage, text_of_page
from chain.tools.research.ranking import Row

META = '<meta charset="koi8-r">да'
OLD_META = "<META http-equiv=Content-Type content='text/html; charset=koi8-r'>да"


@pytest.mark.parametrize(
    ("raw", "charset", "text"),
    [
        ("Größe".encode(), "utf-8", "Größe"),
        ("Größe".encode(), "", "Größe"),
        ("Größe".encode("latin-1"), "iso-8859-1", "Größe"),
        ("“x”".encode("cp1252"), "iso-8859-1", "“x”"),
        ("“x”".encode("cp1252"), "", "“x”"),
        ("日本".encode("shift_jis"), '"Shift_JIS"', "日本"),
        ("Größe".encode("utf-16"), "utf-8", "Größe"),
        (b"\xef\xbb\xbfa", "latin-1", "a"),
        (b"a\xffb", "utf-8", "a\ufffdb"),
        *(("Größe".encode(), unknown, "Größe") for unknown in ("no-such", "idna", "zip", "nul\0")),
        ("xö".encode()[:-1], "", "x"),
        (META.encode("koi8-r"), "", META),
        (OLD_META.encode("koi8-r"), "", OLD_META),
        (b'<meta charset="utf-16">\xc3\xb6', "", '<meta charset="utf-16">ö'),
    ],
)
def test_the_encoding_is_found_as_in_browsers(raw: bytes, charset: str, text: str) -> None:
    assert decode(raw, charset, is_html=True) == text


PAGE = """<!doctype html><title>The page</title><style>p{}</style><script>var x = '<p>no</p>';</script>
<h1>A <b>he</b>ading</h1><!-- not this --><p>One
  <i>two</i> three<p>Four<br>five
<pre>first  line
second</pre>
<table><tr><th>key<td>value</tr><tr><td>k<td>v</tr></table>
<ul><li>x<ul><li>y</ul>z</ul><noscript>turn it on</noscript>tail &amp; &lt;end&gt;"""


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        (PAGE, "The page|A heading|One two three|Four|five|first line|second|key value|k v|x|y|z|tail & <end>"),
        ("", ""),
        ("just text", "just text"),
        ("<p>a<p", "a"),
        ("</p></div>a</b>", "a"),
        ("<b><i>a</b>b</i>", "ab"),
        ("<table><p>a</table>b", "a|b"),
        ("<p>a<![CDATA[x]]>b", "ab"),
        ("<svg><text>no</text></svg>a<template>no</template>", "a"),
        ("<pre></pre>a\nb", "a b"),
        ("<p>a<!-- c -->b", "ab"),
        ("<pre>a<br>b<b>c\n</b>d<div>e<pre>f\ng</pre></div></pre>", "a|bc|d|e|f|g"),
    ],
)
def test_html_becomes_paragraphs_as_in_browsers(html: str, expected: str) -> None:
    assert "|".join(" ".join(text.split()) for text in paragraphs(html)) == expected


def test_a_long_row_is_split_between_words() -> None:
    words = " ".join(f"word{n}" for n in range(1000))
    assert " ".join(pieces(words)) == words
    assert max(map(len, pieces(words))) <= MAX_PIECE
    assert "".join(pieces("x" * 2500)) == "x" * 2500
    assert pieces("") == []
    assert pieces("x;" * 600) == ["x;" * 500, "x;" * 100]


# ------------------------------------------------------------------------------------------------ the separate process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the guard is for Linux")

Extract: TypeAlias = Callable[..., Awaitable[list[Row]]]


@pytest.fixture
async def extract(guard: Guard) -> Extract:
    """Return a function that extracts the text of a page."""

    async def run(raw: bytes, kind: str = "html") -> list[Row]:
        return await text_of_page(WebPage("http://x/", raw, "html" if kind == "html" else "text", "", False), guard)

    return run


async def test_html_has_paragraphs_and_text_has_lines(extract: Extract) -> None:
    where = "http://x/: paragraph "
    assert await extract("<p>Grüße<p>zwei".encode()) == [(where, 1, "Grüße"), (where, 2, "zwei")]
    assert await extract(b"<div>" * 5000 + b"deep") == [(where, 1, "deep")]
    assert await extract(b"") == []
    where = "http://x/: line "
    assert await extract(b"a\n\n <p>b  c\r\n", "plain") == [(where, 1, "a"), (where, 3, "<p>b c")]
    long = await extract(b"y " * 3000, "plain")
    assert len(long) > 1
    assert {row.n for row in long} == {1}


BOMBS = {
    "elements a million deep": lambda: b"<div>" * 1_000_000,
    "half a million attributes": lambda: b"<a " + b" ".join(b"x%d=1" % n for n in range(500_000)) + b">",
    "elements that are never closed": lambda: b"".join(b"<b a=%d>" % n for n in range(400_000)),
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("bomb", BOMBS)
async def test_a_slow_page_is_given_up_without_blocking(
    extract: Extract, bomb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "TEXT_S", 0.3)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await trio.lowlevel.checkpoint()
            ticks += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        with pytest.raises(SourceError, match="its text could not be extracted"):
            await extract(BOMBS[bomb]())
        nursery.cancel_scope.cancel()
    assert ticks > 100


async def test_a_cancelled_extraction_leaves_no_process(extract: Extract) -> None:
    with trio.move_on_after(0.3) as scope:
        await extract(BOMBS["elements a million deep"]())
    assert scope.cancelled_caught


HOSTILE_PARSER = """
import os, socket

class LexborHTMLParser:
    def __init__(self, html):
        kept, parent = html.split()[0], os.getppid()
        attempts = {
            "write": lambda: open(kept, "w"),
            "connect": lambda: socket.socket(),
            "signal": lambda: os.kill(parent, 0),
            "keys": lambda: open(f"/proc/{parent}/environ").read(),
        }
        reached = []
        for name, attempt in attempts.items():
            try:
                attempt()
            except PermissionError:
                continue
            reached.append(name)
        self.found, self.root = " ".join([*reached, "and", *sorted(os.environ)]), self
        self.strip_tags, self.css, self.text = lambda *_, **__: None, lambda *_: [], lambda: self.found
"""


async def test_the_parser_has_a_fence_and_no_keys(
    extract: Extract, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sesame")
    monkeypatch.setattr(pages, "_library", lambda: str(tmp_path))
    (tmp_path / "selectolax").mkdir()
    (tmp_path / "selectolax/lexbor.py").write_text(HOSTILE_PARSER)
    (tmp_path / "kept").write_text("kept")
    ((_, _, said),) = await extract(str(tmp_path / "kept").encode())
    reached, _, environ = said.partition("and ")
    may = {
        "write": PROTECTIONS.writes,
        "connect": PROTECTIONS.network,
        "signal": PROTECTIONS.signals,
        "keys": PROTECTIONS.writes,
    }
    assert reached.split() == [name for name, is_refused in may.items() if not is_refused]
    assert (tmp_path / "kept").read_text() == ("kept" if PROTECTIONS.writes else "")
    assert set(environ.split()) <= {"PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR"}
