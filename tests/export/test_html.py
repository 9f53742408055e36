"""The exported page: its parts, and that no text of a session can run in it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser
from support import trying
from support.eventful import FIRST, eventful, with_text

from chain import events
from chain.export.escaping import prose
from chain.export.html import html
from chain.export.outline import outline_of
from chain.journal.reading import Reading
from chain.session.restored_state import events_of_journal

INIT = events.Init(session="20261123-000849-a36c99", version="0.2.0", model="offline", workspace="/home/me/here")


def page_of(happened: list[events.Event]) -> str:
    return "".join(html(outline_of(happened)))


def parsed() -> LexborHTMLParser:
    return LexborHTMLParser(page_of([INIT, *eventful().events]))


# -------------------------------------------------------------------------------------------------------------- safety

TAGS = """
html head meta title link style body a header p h1 h2 h3 h4 h5 h6 dl div dt dd section ul ol li i span main details
summary small strong b em s pre code footer table thead tbody tr th td blockquote hr br
"""
ATTRIBUTES = "lang charset http-equiv content name rel href class id style title open start"

HOSTILE = [
    "<script>window.hit = 1</script>",
    '"><img src=x onerror="window.hit = 1">',
    "' onfocus='window.hit = 1' autofocus x='",
    "</style><style>body{display:none}</style>",
    "</title></head><body onload=window.hit=1>",
    "--><svg/onload=window.hit=1>",
    "[a](javascript:window.hit=1) <javascript:window.hit=1> [b](data:text/html,<script>window.hit=1</script>)",
    "[c](JaVaScRiPt&colon;window.hit=1) [d](\x01javascript:window.hit=1) [e](//example.org) [f](vbscript:x)",
    "![picture](http://127.0.0.1:9/x.png) ![p](https://127.0.0.1:9/'onerror=window.hit=1)",
    '[g](https://example.org/"onmouseover="window.hit=1) [h](https://example.org "t\\" onclick=\\"window.hit=1")',
    '```"><script>window.hit=1</script>\nx\n```\n<iframe src=http://127.0.0.1:9></iframe>\n\n',
    "<meta http-equiv=refresh content='0;url=http://127.0.0.1:9'><base href=http://127.0.0.1:9/>",
    "&lt;script&gt;window.hit=1&lt;/script&gt; &#60;script&#62;",
    "\x1b]0;title\x07\x1b[31m\x9b2J\u202etxet\x00<scr\x00ipt>window.hit=1</scr\x00ipt>",
    "\ud800<b onclick=window.hit=1>\udfff",
    "url(http://127.0.0.1:9/x.png); background: url(http://127.0.0.1:9/y.png)",
]


def check_safe(page: str) -> None:
    """Check that only known elements and attributes are on a page, and that its links lead somewhere."""
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", page)
    parser = LexborHTMLParser(page)
    ids = [node.attributes["id"] for node in parser.css("[id]")]
    assert len(set(ids)) == len(ids)
    policy = parser.css_first("meta[http-equiv]").attributes["content"]
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert len(parser.css("meta")) == 4
    for node in parser.css("*"):
        assert node.tag in TAGS.split(), node.html
        assert not set(node.attributes) - set(ATTRIBUTES.split()), node.html
        style, href = node.attributes.get("style"), node.attributes.get("href")
        assert style is None or re.fullmatch(r"(?:(?:left|width|--\w+):[\d.]+%?;?)+|text-align:\w+", style)
        if href is not None and node.tag == "a":
            assert re.match(r"#(?:story|e\d+)\Z|https?://|mailto:", href)
            assert not href.startswith("#") or href[1:] in ids


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(text: str) -> None:
    check_safe(page_of(with_text(text)))


PARTS = st.one_of(st.sampled_from(HOSTILE), st.sampled_from(list("<>\"'&`[]()!*_#|\n \\=/:-~{};")), st.text(max_size=5))


@trying(60)
@given(st.lists(PARTS, max_size=12).map("".join))
def test_any_text_stays_text(text: str) -> None:
    check_safe(page_of(with_text(text)))


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("<https://example.org/a?b=c&d>", "https://example.org/a?b=c&d"),
        ("[x](http://example.org)", "http://example.org"),
        ("[x](mailto:ida@example.org)", "mailto:ida@example.org"),
        ("[x](ftp://example.org)", None),
        ("[x](file:///etc/passwd)", None),
        ("[x](#e1)", None),
        ("![x](https://example.org/y.png)", "https://example.org/y.png"),
    ],
)
def test_reply_links_only_to_pages_and_mail(text: str, link: str | None) -> None:
    node = LexborHTMLParser(prose(text)).css_first("a")
    assert (None if node is None else node.attributes["href"]) == link


@pytest.mark.parametrize("text", ["> " * 30 + "deep", "x\n\n[deep]: http://example.org", "deep" + "a" * 100_000])
def test_reply_keeps_text_that_the_parser_would_drop(text: str) -> None:
    assert "deep" in prose(text)


@trying(60)
@given(st.sets(st.integers(0, 200), max_size=60))
def test_incomplete_journal_is_a_page(lost: set[int]) -> None:
    rows = eventful().journal.splitlines(keepends=True)
    check_safe(page_of(list(events_of_journal(Reading(row for n, row in enumerate(rows) if n not in lost)))))


def test_short_session_is_a_page() -> None:
    whole = [INIT, *eventful().events]
    for happened in ([], whole[:1], whole[:2], whole[:5], [events.RunStarted(id="L1", query=" ")]):
        check_safe(page_of(happened))


# --------------------------------------------------------------------------------------------------------------- parts


def test_header_has_the_facts_of_the_session() -> None:
    assert parsed().css_first("h1").text() == FIRST.splitlines()[0]
    facts = {node.css_first("dt").text(): node.css_first("dd").text() for node in parsed().css(".facts div")}
    assert (facts["Workspace"], facts["Model"]) == ("/home/me/here", "offline")
    assert (facts["Runs"], facts["Interruptions"], facts["Other agents"]) == ("3 (2 not done)", "5", "4")


def test_agents_are_inside_the_calls_that_started_them() -> None:
    assert "check the ledger of March" in parsed().css_first(".tool .agent-run .tool .agent-run").text()
    assert "look at the appendix as well" in parsed().css_first(".tool .agent-run .delivered").text()
    assert len(parsed().css(".delivered")) == 5


def test_long_results_and_inputs_are_folded() -> None:
    folded = [node.css_first("summary").text() for node in parsed().css(".tool > details:not(.agent-run)")]
    assert any(text.startswith("40 rows: reports/01.md") for text in folded)
    call = events.ToolCall(id="c", name="x", input={"a": "\x9b2J" * 100 + "the end"})
    assert "the end" in page_of([events.RunStarted(id="L1", query="x"), call])
