"""The session as Markdown: what is in it, and that no text breaks out of its place."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from support import trying
from support.eventful import eventful, with_text

from chain import events
from chain.session.export.markdown import fenced, inline, markdown
from chain.session.export.teller import tell

# Without the definitions of links, which a quote may hold as well.
PARSER = MarkdownIt("commonmark", {"html": True}).disable("reference")


def written(told: list[events.Event]) -> str:
    return "".join(markdown(tell(told)))


def headings(text: str) -> list[str]:
    """The headings that are not in a quote or a fence."""
    tokens = PARSER.parse(text)
    return [
        tokens[n + 1].content.split("(")[0].strip()
        for n, token in enumerate(tokens)
        if token.type == "heading_open" and token.level == 0
    ]


def skeleton(text: str) -> list[str]:
    """The blocks of the document itself."""
    return [token.type for token in PARSER.parse(text) if token.level == 0]


def test_a_heading_a_run_and_an_iteration() -> None:
    found = headings(written(list(eventful().events)))
    assert [each for each in found if each.startswith("Run")] == ["Run 1", "Run 2", "Run 3"]
    assert found[1:6] == ["Run 1", "Iteration 1", "Iteration 2", "Iteration 3", "Iteration 4"]


@pytest.mark.parametrize(
    "row",
    [
        "> context: the office moved in May",
        "> !!shorter, and in a table",
        "> > look at the appendix as well",
        "> > > The ledger says 1,240.",
        "- [x] read the reports",
        "Refused: n, April is signed by hand",
        "↩ The user stopped: stop",
        "[Skipped: user interrupted]",
    ],
)
def test_what_happened_is_in_it(row: str) -> None:
    assert row in written(list(eventful().events)).splitlines()


HOSTILE = [
    "# A heading\n\nand text\n===\n\n",
    "```\nunclosed",
    "~~~~~~\n",
    "`````````````\n```\n",
    "<!-- unclosed",
    "<script>hit()</script>\n\n",
    "> quote\n\n- item\n\n1. item\n\n---\n\n",
    "    indented\n\n\tcode\n",
    "| a |\n|---|\n",
    "\x1b[31m\x9b2J\u2028next\u2029row\x0b\x0c\x85",
    "[a]: http://example.org\n\n[a]",
    "**_bold_ `code",
    "\\",
    "&lt;b&gt;",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_is_a_part_of_the_document(text: str) -> None:
    plain, hostile = written(with_text("x\n")), written(with_text(text + "\n"))
    assert skeleton(hostile) == skeleton(plain)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", hostile)
    tokens = [child for token in PARSER.parse(hostile) for child in (token, *(token.children or ()))]
    assert not [token for token in tokens if token.type.startswith("html")]


@trying(100)
@given(st.text(alphabet="`~x\n >#-\t", max_size=60))
def test_a_fence_holds_whatever_is_in_it(text: str) -> None:
    tokens = PARSER.parse("\n".join([*fenced(text, "text"), "after"]))
    assert [token.type for token in tokens] == ["fence", "paragraph_open", "inline", "paragraph_close"]
    assert tokens[0].content.strip("\n") == text.strip("\n")


@trying(100)
@given(st.text(alphabet="`~x_* <>&;#[]()!\\\n1.:/", max_size=30).filter(lambda text: text.strip()))
def test_inline_text_is_only_text(text: str) -> None:
    (inside,) = [token for token in PARSER.parse(f"x {inline(text)} x") if token.type == "inline"]
    shown = "".join(child.content for child in inside.children or ())
    assert {child.type for child in inside.children or ()} <= {"text", "text_special"}
    assert shown == f"x {' '.join(text.split())} x"
