"""The text of a page: its encoding, its paragraphs, and protection against slow pages and a hostile parser."""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal, TypeAlias

import pytest
import trio
from support.fences import PROTECTIONS

from chain.tools.processes.guarded import Guard
from chain.tools.research import pages
from chain.tools.research.addresses import SourceError
from chain.tools.research.page_text import MAX_PIECE, decode, paragraphs, pieces
from chain.tools.research.pages import WebPage, text_of_page
from chain.tools.research.ranking import Row

KOI8 = '<meta charset="koi8-r">да'
OLD_KOI8 = "<META http-equiv=Content-Type content='text/html; charset=koi8-r'>да"


@pytest.mark.parametrize(
    ("raw", "charset", "text"),
    [
        pytest.param("Größe".encode(), "utf-8", "Größe", id="UTF-8"),
        pytest.param("Größe".encode(), "", "Größe", id="UTF-8 without a charset"),
        pytest.param("“x”".encode("cp1252"), "iso-8859-1", "“x”", id="Windows-1252 declared as Latin-1"),
        pytest.param("“x”".encode("cp1252"), "", "“x”", id="Windows-1252 without a charset"),
        pytest.param("日本".encode("shift_jis"), '"Shift_JIS"', "日本", id="charset in quotes"),
        pytest.param("Größe".encode("utf-16"), "utf-8", "Größe", id="wrong charset, byte order mark of UTF-16"),
        pytest.param(b"\xef\xbb\xbfa", "latin-1", "a", id="wrong charset, byte order mark of UTF-8"),
        pytest.param(b"a\xffb", "utf-8", "a\ufffdb", id="invalid byte"),
        *(pytest.param("Größe".encode(), name, "Größe", id=f"charset {name}") for name in ("no-such", "idna", "zip")),
        pytest.param("Größe".encode(), "nul\0", "Größe", id="charset with a NUL"),
        pytest.param(b"x\xc3", "", "x", id="character that is cut off"),
        pytest.param(KOI8.encode("koi8-r"), "", KOI8, id="meta tag"),
        pytest.param(OLD_KOI8.encode("koi8-r"), "", OLD_KOI8, id="meta tag of HTML 4"),
        pytest.param(b'<meta charset="utf-16">\xc3\xb6', "", '<meta charset="utf-16">ö', id="meta tag with UTF-16"),
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
        pytest.param(
            PAGE,
            "The page|A heading|One two three|Four|five|first line|second|key value|k v|x|y|z|tail & <end>",
            id="whole page",
        ),
        pytest.param("", "", id="empty page"),
        pytest.param("just text", "just text", id="no tags"),
        pytest.param("<p>a<p", "a", id="tag that is cut off"),
        pytest.param("</p></div>a</b>", "a", id="end tags without start tags"),
        pytest.param("<b><i>a</b>b</i>", "ab", id="tags that overlap"),
        pytest.param("<table><p>a</table>b", "a|b", id="paragraph outside of the cells of a table"),
        pytest.param("<p>a<![CDATA[x]]>b", "ab", id="CDATA"),
        pytest.param("<svg><text>no</text></svg>a<template>no</template>", "a", id="elements that are not shown"),
        pytest.param("<pre></pre>a\nb", "a b", id="empty code block"),
        pytest.param("<p>a<!-- c -->b", "ab", id="comment"),
        pytest.param("<pre>a<br>b<b>c\n</b>d<div>e<pre>f\ng</pre></div></pre>", "a|bc|d|e|f|g", id="tags in code"),
    ],
)
def test_html_becomes_paragraphs_as_in_browsers(html: str, expected: str) -> None:
    assert "|".join(" ".join(text.split()) for text in paragraphs(html)) == expected


@pytest.mark.parametrize(
    ("text", "separator"),
    [
        pytest.param(" ".join(f"word{n}" for n in range(1000)), " ", id="words"),
        pytest.param("x" * (2 * MAX_PIECE + 500), "", id="no place to split"),
        pytest.param("", "", id="empty"),
    ],
)
def test_pieces_of_a_long_row_lose_nothing(text: str, separator: str) -> None:
    assert separator.join(pieces(text)) == text
    assert all(len(piece) <= MAX_PIECE for piece in pieces(text))


def test_long_row_without_spaces_is_split_after_punctuation() -> None:
    statements = "x;" * (MAX_PIECE // 2)
    assert pieces(statements + "x;x;") == [statements, "x;x;"]


# ------------------------------------------------------------------------------------------------ the separate process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the guard is for Linux")

Extract: TypeAlias = Callable[..., Awaitable[list[Row]]]


@pytest.fixture
async def extract(guard: Guard) -> Extract:
    async def run(raw: bytes, kind: Literal["html", "text"] = "html") -> list[Row]:
        return await text_of_page(WebPage("http://x/", raw, kind, charset="", was_cut=False), guard)

    return run


@pytest.mark.parametrize(
    ("raw", "texts"),
    [
        pytest.param("<p>Grüße<p>zwei".encode(), ["Grüße", "zwei"], id="two paragraphs"),
        pytest.param(b"<div>" * 5000 + b"deep", ["deep"], id="deep elements"),
        pytest.param(b"", [], id="empty page"),
    ],
)
async def test_rows_of_html_are_paragraphs(extract: Extract, raw: bytes, texts: list[str]) -> None:
    assert await extract(raw) == [("http://x/: paragraph ", n, text) for n, text in enumerate(texts, 1)]


async def test_rows_of_plain_text_are_lines(extract: Extract) -> None:
    rows = [("http://x/: line ", 1, "a"), ("http://x/: line ", 3, "<p>b c")]
    assert await extract(b"a\n\n <p>b  c\r\n", "text") == rows


async def test_pieces_of_a_line_have_its_number(extract: Extract) -> None:
    rows = await extract(b"y " * (2 * MAX_PIECE), "text")
    assert len(rows) > 1
    assert {row.n for row in rows} == {1}


BOMBS = {
    "elements a million deep": lambda: b"<div>" * 1_000_000,
    "half a million attributes": lambda: b"<a " + b" ".join(b"x%d=1" % n for n in range(500_000)) + b">",
    "elements that are never closed": lambda: b"".join(b"<b a=%d>" % n for n in range(400_000)),
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("bomb", BOMBS)
async def test_slow_page_times_out_without_blocking(
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
    assert ticks > 100, "other tasks ran meanwhile"


async def test_a_cancelled_extraction_leaves_no_process(extract: Extract) -> None:
    with trio.move_on_after(0.3) as scope:
        await extract(BOMBS["elements a million deep"]())
    assert scope.cancelled_caught


HOSTILE_PARSER = """
import os, socket

class LexborHTMLParser:
    def __init__(self, html):
        path, parent = html.split()[0], os.getppid()
        attacks = {
            "write": lambda: open(path, "w"),
            "connect": lambda: socket.socket(),
            "signal": lambda: os.kill(parent, 0),
            "keys": lambda: open(f"/proc/{parent}/environ").read(),
        }
        successful = []
        for name, attack in attacks.items():
            try:
                attack()
            except PermissionError:
                continue
            successful.append(name)
        self.output, self.root = " ".join([*successful, "environ:", *sorted(os.environ)]), self
        self.strip_tags, self.css, self.text = lambda *_, **__: None, lambda *_: [], lambda: self.output
"""
"""A parser that attacks its surroundings. The text of the page is a list of successful attacks and of variables."""


async def test_parser_has_a_fence_and_no_keys(
    extract: Extract, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sesame")
    monkeypatch.setattr(pages, "_library", lambda: str(tmp_path))
    (tmp_path / "selectolax").mkdir()
    (tmp_path / "selectolax/lexbor.py").write_text(HOSTILE_PARSER)
    victim = tmp_path / "victim"
    victim.write_text("content")
    (row,) = await extract(str(victim).encode())
    successful, _, environ = row.text.partition("environ: ")
    is_prevented = {
        "write": PROTECTIONS.writes,
        "connect": PROTECTIONS.network,
        "signal": PROTECTIONS.signals,
        "keys": PROTECTIONS.writes,
    }
    assert successful.split() == [attack for attack in is_prevented if not is_prevented[attack]]
    assert victim.read_text() == ("content" if PROTECTIONS.writes else "")
    assert set(environ.split()) <= {"PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR"}
