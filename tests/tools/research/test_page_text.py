"""The text of a page: its encoding, its paragraphs, and pages that were made to be slow."""

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest
import trio

from chain.tools.processes.guarded import Guard
from chain.tools.processes.probe import probe
from chain.tools.research import pages
from chain.tools.research.addresses import Unreadable
from chain.tools.research.page_text import MAX_PIECE, decode, paragraphs, pieces
from chain.tools.research.pages import WebPage, text_of_page
from chain.tools.research.ranking import Row


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
        ("Größe".encode(), "no-such", "Größe"),
        ("Größe".encode(), "idna", "Größe"),
        ("Größe".encode(), "zip", "Größe"),
        ("Größe".encode(), "nul\0", "Größe"),
        ("xö".encode()[:-1], "", "x"),
        (b'<meta charset="utf-16">\xc3\xb6', "", '<meta charset="utf-16">ö'),
    ],
)
def test_the_encoding_is_found_as_browsers_do(raw: bytes, charset: str, text: str) -> None:
    assert decode(raw, charset, is_html=True) == text


@pytest.mark.parametrize(
    "meta", ['<meta charset="koi8-r">', "<META http-equiv=Content-Type content='text/html; charset=koi8-r'>"]
)
def test_a_meta_says_the_encoding_if_the_header_does_not(meta: str) -> None:
    raw = f"{meta}да".encode("koi8-r")
    assert decode(raw, "", is_html=True) == f"{meta}да"
    assert decode(raw, "koi8-r", is_html=False) == f"{meta}да"


PAGE = """<!doctype html><title>The page</title><style>p{}</style><script>var x = '<p>no</p>';</script>
<h1>A <b>he</b>ading</h1><!-- not this --><p>One
  <i>two</i> three<p>Four<br>five
<pre>first  line
second</pre>
<table><tr><th>key<td>value</tr><tr><td>k<td>v</tr></table>
<ul><li>x<ul><li>y</ul>z</ul><noscript>turn it on</noscript>tail &amp; &lt;end&gt;"""


def texts(html: str) -> list[str]:
    return [" ".join(text.split()) for text in paragraphs(html)]


def test_a_page_becomes_paragraphs() -> None:
    assert texts(PAGE) == [
        "The page",
        "A heading",
        "One two three",
        "Four",
        "five",
        "first line",
        "second",
        "key value",
        "k v",
        "x",
        "y",
        "z",
        "tail & <end>",
    ]


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("", []),
        ("just text", ["just text"]),
        ("<p>a<p", ["a"]),
        ("</p></div>a</b>", ["a"]),
        ("<b><i>a</b>b</i>", ["ab"]),
        ("<table><p>a</table>b", ["a", "b"]),
        ("<p>a<![CDATA[x]]>b", ["ab"]),
        ("<svg><text>no</text></svg>a<template>no</template>", ["a"]),
        ("a\0b &#xD800; &bogus; &#0;", None),
        ("<pre></pre>a\nb", ["a b"]),
        ("<p>a<!-- c -->b", ["ab"]),
        ("<pre>a<br>b<b>c\n</b>d<div>e<pre>f\ng</pre></div></pre>", ["a", "bc", "d", "e", "f", "g"]),
    ],
)
def test_broken_html_is_read_as_browsers_do(html: str, expected: list[str] | None) -> None:
    found = texts(html)
    assert expected is None or found == expected


def test_a_long_row_is_cut_into_pieces_and_none_is_lost() -> None:
    words = " ".join(f"word{n}" for n in range(1000))
    cut = pieces(words)
    assert " ".join(cut) == words
    assert max(map(len, cut)) <= MAX_PIECE
    assert "".join(pieces("x" * 2500)) == "x" * 2500
    assert pieces("") == []
    assert pieces("x;" * 600) == ["x;" * 500, "x;" * 100]


# ------------------------------------------------------------------------------------------- in a process of its own


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the guard is for Linux")

MakeText: TypeAlias = Callable[..., Awaitable[list[Row]]]


@pytest.fixture
async def text() -> AsyncIterator[MakeText]:
    """Return a function that makes text of a page. Afterwards no process may be left."""
    guard = Guard()

    async def make(raw: bytes, kind: str = "html", charset: str = "") -> list[Row]:
        page = WebPage("http://x/", raw, "html" if kind == "html" else "text", charset, False)
        return await text_of_page(page, guard)

    yield make
    await guard.close()
    assert not children()


def children() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


async def test_a_page_has_paragraphs_and_a_text_has_lines(text: MakeText) -> None:
    where = "http://x/: paragraph "
    assert await text("<p>Grüße<p>zwei".encode()) == [(where, 1, "Grüße"), (where, 2, "zwei")]
    where = "http://x/: line "
    assert await text(b"a\n\n <p>b  c\r\n", "plain") == [(where, 1, "a"), (where, 3, "<p>b c")]
    long = await text(b"y " * 3000, "plain")
    assert {row.n for row in long} == {1}
    assert len(long) > 1


async def test_a_page_without_a_text_has_no_paragraphs(text: MakeText) -> None:
    assert await text(b"") == []


async def test_elements_that_are_deeper_than_any_stack_are_read(text: MakeText) -> None:
    found = await text(b"<div>" * 5000 + b"deep")
    assert found == [("http://x/: paragraph ", 1, "deep")]


BOMBS = {
    "elements a million deep": lambda: b"<div>" * 1_000_000,
    "half a million attributes": lambda: b"<a " + b" ".join(b"x%d=1" % n for n in range(500_000)) + b">",
    "elements that are never closed": lambda: b"".join(b"<b a=%d>" % n for n in range(400_000)),
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("bomb", BOMBS)
async def test_a_page_that_was_made_to_be_slow_is_given_up_and_holds_nothing_up(
    text: MakeText, bomb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "TEXT_S", 0.3)
    ticks = 0
    async with trio.open_nursery() as nursery:

        async def tick() -> None:
            nonlocal ticks
            while True:
                await trio.lowlevel.checkpoint()
                ticks += 1

        nursery.start_soon(tick)
        with pytest.raises(Unreadable, match="its text could not be extracted"):
            await text(BOMBS[bomb]())
        nursery.cancel_scope.cancel()
    assert ticks > 100, "the rest of the program went on meanwhile"


async def test_an_interrupt_ends_the_reader(text: MakeText) -> None:
    with trio.move_on_after(0.3) as scope:
        await text(BOMBS["elements a million deep"]())
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
        self.found = " ".join([*reached, "and", *sorted(os.environ)])
        self.root = self

    def strip_tags(self, tags, recursive):
        pass

    def css(self, selector):
        return []

    def text(self):
        return self.found
"""


async def test_a_page_is_parsed_behind_a_fence_and_without_keys(
    text: MakeText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sesame")
    monkeypatch.setattr(pages, "_library", lambda: str(tmp_path))
    (tmp_path / "selectolax").mkdir()
    (tmp_path / "selectolax/lexbor.py").write_text(HOSTILE_PARSER)
    (tmp_path / "kept").write_text("kept")
    ((_, _, said),) = await text(str(tmp_path / "kept").encode())
    reached, _, environ = said.partition("and ")
    held = probe()
    may = {"write": held.writes, "connect": held.network, "signal": held.signals, "keys": held.writes}
    assert reached.split() == [name for name, is_refused in may.items() if not is_refused]
    assert (tmp_path / "kept").read_text() == ("kept" if held.writes else "")
    assert set(environ.split()) <= {"PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR"}
