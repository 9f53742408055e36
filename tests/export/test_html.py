"""The exported page: what is on it, and that nothing of a session can run in it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser
from support import trying
from support.eventful import FIRST, eventful, with_text
from support.house import ROOT

from chain import events
from chain.export.escaping import prose
from chain.export.html import html
from chain.export.outline import outline_of
from chain.journal.reading import Reading
from chain.session.restored_state import events_of_journal

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
    "</script><script>window.hit = 1</script>",
    "</title></head><body onload=window.hit=1>",
    "--><svg/onload=window.hit=1>",
    "[a](javascript:window.hit=1) <javascript:window.hit=1> [b](data:text/html,<script>window.hit=1</script>)",
    "[c](JaVaScRiPt&colon;window.hit=1) [d](\x01javascript:window.hit=1) [e](//example.org) [f](vbscript:x)",
    "![picture](http://127.0.0.1:9/x.png) ![p](https://127.0.0.1:9/'onerror=window.hit=1)",
    '[g](https://example.org/"onmouseover="window.hit=1) [h](https://example.org "t\\" onclick=\\"window.hit=1")',
    '```"><script>window.hit=1</script>\nx\n```\n<iframe src=http://127.0.0.1:9></iframe>\n\n',
    "<meta http-equiv=refresh content='0;url=http://127.0.0.1:9'><base href=http://127.0.0.1:9/>",
    "<link rel=stylesheet href=http://127.0.0.1:9/x.css><object data=x></object>",
    "&lt;script&gt;window.hit=1&lt;/script&gt; &#60;script&#62;",
    "\x1b]0;title\x07\x1b[31m\x9b2J\u202etxet\x00<scr\x00ipt>window.hit=1</scr\x00ipt>",
    "\ud800<b onclick=window.hit=1>\udfff",
    "url(http://127.0.0.1:9/x.png); background: url(http://127.0.0.1:9/y.png)",
    "{{constructor.constructor('window.hit=1')()}} ${window.hit=1} <%= 1 %>",
]


def html_of(told: list[events.Event]) -> str:
    return "".join(html(outline_of(told)))


def whole() -> list[events.Event]:
    """The session with everything, as a journal tells it."""
    init = events.Init(session="20261123-000849-a36c99", version="0.2.0", model="offline", workspace="/home/me/here")
    return [init, *eventful().events]


def check_safe(html: str) -> None:
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", html)
    parser = LexborHTMLParser(html)
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
            assert not href.startswith("#") or href[1:] in ids, "a link leads nowhere"


def test_the_header_says_what_the_session_was() -> None:
    parser = LexborHTMLParser(html_of(whole()))
    assert parser.css_first("h1").text() == FIRST.splitlines()[0]
    assert parser.css_first("html").attributes["lang"] == "en"
    facts = {node.css_first("dt").text(): node.css_first("dd").text() for node in parser.css(".facts div")}
    assert facts["Workspace"] == "/home/me/here"
    assert facts["Model"] == "offline"
    assert facts["Runs"] == "3 (2 not done)"
    assert (facts["Interruptions"], facts["Other agents"]) == ("5", "4")


def test_the_timeline_has_a_lane_an_agent_and_a_pin_for_each_thing_between_it_and_the_user() -> None:
    parser = LexborHTMLParser(html_of(whole()))
    lanes = {}
    for lane in parser.css(".lane"):
        pins = [pin.text(deep=False) for pin in lane.css(".pin")]
        style = lane.attributes["style"] or ""
        lanes[lane.css_first(".agent").text().strip()] = (style.split(";")[0], len(lane.css(".bar")), pins)
    assert lanes == {
        "main": ("--depth:0", 12, ["A", "C", "?", "D", "?", "?", "N", "■", "■"]),
        "explore-1": ("--depth:1", 3, ["D"]),
        "agent-1": ("--depth:1", 3, []),
        "explore-2": ("--depth:2", 2, []),
        "agent-2": ("--depth:1", 1, ["■"]),
    }
    titles = [pin.attributes["title"] or "" for pin in parser.css(".track .pin")]
    assert any("<b>please</b> & thank you" in title for title in titles)


def test_what_happened_in_a_child_is_inside_its_call() -> None:
    parser = LexborHTMLParser(html_of(whole()))
    nested = parser.css_first(".tool .work .tool .work")
    assert "check the ledger of March" in nested.text()
    inside = parser.css_first(".tool .work .landed")
    assert "look at the appendix as well" in inside.text()
    assert len(parser.css(".landed")) == 5


def test_a_long_result_is_folded() -> None:
    parser = LexborHTMLParser(html_of(whole()))
    folded = [node.css_first("summary").text() for node in parser.css(".tool > details:not(.work)")]
    assert any(text.startswith("40 rows: reports/01.md") for text in folded)


def test_an_input_that_does_not_fit_its_row_is_shown_whole_below_it() -> None:
    call = events.ToolCall(id="c", name="x", input={"a": "\x9b2J" * 100 + "the end"})
    assert "the end" in html_of([events.RunStarted(id="L1", query="x"), call])


PAPERS = ("paper", "card", "sunk")
ON = {
    "ink": (*PAPERS, "user-soft", "ask-soft"),
    "soft": (*PAPERS, "ask-soft"),
    "work": PAPERS,
    "good": (*PAPERS, "ask-soft"),
    "bad": (*PAPERS, "ask-soft", "bad-soft"),
    "user": (*PAPERS, "user-soft"),
    "ask": (*PAPERS, "ask-soft"),
}
"""The colours of texts, and those that they stand on."""


def luminance(color: str) -> float:
    parts = [int(color[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_every_text_has_enough_contrast() -> None:
    """4.5 to 1, as the guidelines for accessibility of the W3C want it."""
    style = (ROOT / "chain/export/page.css").read_text(encoding="utf-8")
    light, dark = (dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block)) for block in style.split(":root {")[1:3])
    for colors in (light, dark):
        for text, papers in ON.items():
            for paper in papers:
                darker, lighter = sorted([luminance(colors[text]), luminance(colors[paper])])
                assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (text, paper, colors[text], colors[paper])


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_of_a_session_is_more_than_text(text: str) -> None:
    check_safe(html_of(with_text(text)))


parts = st.one_of(st.sampled_from(HOSTILE), st.sampled_from(list("<>\"'&`[]()!*_#|\n \\=/:-~{};")), st.text(max_size=5))


@trying(60)
@given(st.lists(parts, max_size=12).map("".join))
def test_no_text_is_more_than_text(text: str) -> None:
    check_safe(html_of(with_text(text)))


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("<https://example.org/a?b=c&d>", "https://example.org/a?b=c&d"),
        ("[x](http://example.org)", "http://example.org"),
        ("[x](mailto:ida@example.org)", "mailto:ida@example.org"),
        ("[x](ftp://example.org)", None),
        ("[x](file:///etc/passwd)", None),
        ("[x](#e1)", None),
        ("[x](javascript:alert)", None),
        ("![x](https://example.org/y.png)", "https://example.org/y.png"),
    ],
)
def test_a_reply_links_to_pages_and_letters_only(text: str, link: str | None) -> None:
    node = LexborHTMLParser(prose(text)).css_first("a")
    assert (None if node is None else node.attributes["href"]) == link


def test_a_session_is_a_page_also_while_it_is_empty() -> None:
    for told in ([], whole()[:1], whole()[:2], whole()[:5], whole()):
        check_safe(html_of(told))


@trying(60)
@given(st.sets(st.integers(0, 200), max_size=60))
def test_a_journal_that_has_lost_records_is_a_page(lost: set[int]) -> None:
    rows = eventful().journal.splitlines(keepends=True)
    check_safe(html_of(list(events_of_journal(Reading(row for n, row in enumerate(rows) if n not in lost)))))
