"""The exported page: its parts, and that no text of a session can run in it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser
from support.eventful import FIRST, eventful_session, with_text
from support.examples import max_examples

from chain import events
from chain.export.escaping import render_reply
from chain.export.html import render_html
from chain.export.outline import outline_of
from chain.journal.reading import Reading
from chain.session.restored_state import events_of_journal

INIT = events.Init(session="20261123-000849-a36c99", version="0.2.0", model="offline", workspace="/home/me/here")


def page_of(happened: list[events.Event]) -> str:
    return "".join(render_html(outline_of(happened)))


def parsed_page() -> LexborHTMLParser:
    return LexborHTMLParser(page_of([INIT, *eventful_session().events]))


# -------------------------------------------------------------------------------------------------------------- safety

TAGS = """
html head meta title link style body a header p h1 h2 h3 h4 h5 h6 dl div dt dd section ul ol li i span main details
summary small strong b em s pre code footer table thead tbody tr th td blockquote hr br
"""
ATTRIBUTES = "lang charset http-equiv content name rel href class id style title open start"

HOSTILE = {
    "script": "<script>window.hit = 1</script>",
    "end of an attribute": '"><img src=x onerror="window.hit = 1">',
    "end of an attribute in single quotes": "' onfocus='window.hit = 1' autofocus x='",
    "end of the style": "</style><style>body{display:none}</style>",
    "end of the head": "</title></head><body onload=window.hit=1>",
    "end of a comment": "--><svg/onload=window.hit=1>",
    "links that run code": "[a](javascript:window.hit=1) <javascript:window.hit=1> "
    "[b](data:text/html,<script>window.hit=1</script>)",
    "hidden schemes of links": "[c](JaVaScRiPt&colon;window.hit=1) [d](\x01javascript:window.hit=1) "
    "[e](//example.org) [f](vbscript:x)",
    "images": "![picture](http://127.0.0.1:9/x.png) ![p](https://127.0.0.1:9/'onerror=window.hit=1)",
    "links that end an attribute": '[g](https://example.org/"onmouseover="window.hit=1) '
    '[h](https://example.org "t\\" onclick=\\"window.hit=1")',
    "language of code": '```"><script>window.hit=1</script>\nx\n```\n<iframe src=http://127.0.0.1:9></iframe>\n\n',
    "refresh and base": "<meta http-equiv=refresh content='0;url=http://127.0.0.1:9'><base href=http://127.0.0.1:9/>",
    "escaped script": "&lt;script&gt;window.hit=1&lt;/script&gt; &#60;script&#62;",
    "control characters": "\x1b]0;title\x07\x1b[31m\x9b2J\u202etxet\x00<scr\x00ipt>window.hit=1</scr\x00ipt>",
    "surrogates": "\ud800<b onclick=window.hit=1>\udfff",
    "style": "url(http://127.0.0.1:9/x.png); background: url(http://127.0.0.1:9/y.png)",
}


def check_safe(page: str) -> None:
    """Check that only known elements and attributes are on a page, and that each link has a target."""
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", page)
    parser = LexborHTMLParser(page)
    ids = [node.attributes["id"] for node in parser.css("[id]")]
    assert len(set(ids)) == len(ids)
    policy = parser.css_first("meta[http-equiv]").attributes["content"]
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert len(parser.css("meta")) == 4, "charset, policy, viewport and referrer"
    for node in parser.css("*"):
        assert node.tag in TAGS.split(), node.html
        assert not set(node.attributes) - set(ATTRIBUTES.split()), node.html
        style, href = node.attributes.get("style"), node.attributes.get("href")
        assert style is None or re.fullmatch(r"(?:(?:left|width|--\w+):[\d.]+%?;?)+|text-align:\w+", style)
        if href is not None and node.tag == "a":
            assert re.match(r"#(?:story|e\d+)\Z|https?://|mailto:", href)
            assert not href.startswith("#") or href[1:] in ids


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_stays_text(text: str) -> None:
    check_safe(page_of(with_text(text)))


PARTS = st.one_of(
    st.sampled_from([*HOSTILE.values()]), st.sampled_from(list("<>\"'&`[]()!*_#|\n \\=/:-~{};")), st.text(max_size=5)
)


@max_examples(60)
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
    node = LexborHTMLParser(render_reply(text)).css_first("a")
    assert (None if node is None else node.attributes["href"]) == link


@pytest.mark.parametrize(
    "text",
    ["> " * 30 + "text", "x\n\n[text]: http://example.org", "text" + "a" * 100_000],
    ids=["deep quote", "definition of a link", "long row"],
)
def test_reply_keeps_text_that_the_parser_would_drop(text: str) -> None:
    assert "text" in render_reply(text)


@max_examples(60)
@given(st.sets(st.integers(0, 200), max_size=60))
def test_incomplete_journal_is_a_page(lost_rows: set[int]) -> None:
    rows = eventful_session().journal.splitlines(keepends=True)
    check_safe(page_of(list(events_of_journal(Reading(row for n, row in enumerate(rows) if n not in lost_rows)))))


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_first_events_of_a_session_are_a_page(count: int) -> None:
    first_events = [INIT, *eventful_session().events][:count]
    check_safe(page_of(first_events))


def test_blank_query_is_a_page() -> None:
    check_safe(page_of([events.RunStarted(id="L1", query=" ")]))


# --------------------------------------------------------------------------------------------------------------- parts


def test_header_has_the_facts_of_the_session() -> None:
    page = parsed_page()
    assert page.css_first("h1").text() == FIRST.splitlines()[0]
    facts = {node.css_first("dt").text(): node.css_first("dd").text() for node in page.css(".facts div")}
    assert (facts["Workspace"], facts["Model"]) == ("/home/me/here", "offline")
    assert (facts["Runs"], facts["Interruptions"], facts["Other agents"]) == ("3 (2 not done)", "5", "4")


def test_agents_are_inside_the_calls_that_started_them() -> None:
    assert "check the ledger of March" in parsed_page().css_first(".tool .agent-run .tool .agent-run").text()


def test_delivered_lines_are_inside_their_agents() -> None:
    page = parsed_page()
    assert "look at the appendix as well" in page.css_first(".tool .agent-run .delivered").text()
    assert len(page.css(".delivered")) == 5


def test_long_results_are_folded() -> None:
    summaries = [node.css_first("summary").text() for node in parsed_page().css(".tool > details:not(.agent-run)")]
    assert any(text.startswith("40 rows: reports/01.md") for text in summaries)


def test_long_inputs_are_whole() -> None:
    call = events.ToolCall(id="c", name="x", input={"a": "\x9b2J" * 100 + "the end"})
    assert "the end" in page_of([events.RunStarted(id="L1", query="x"), call])
