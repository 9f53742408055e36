"""The session as Markdown: what is in it, and that no text breaks out of its place."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from support import trying
from support.eventful import eventful, with_text
from support.examples import some

from chain import events
from chain.export.markdown import escape_inline, fence_block, markdown, quote_reply, quote_verbatim
from chain.export.outline import outline_of

# Without the definitions of links, which a quote may hold as well.
PARSER = MarkdownIt("commonmark", {"html": True, "maxNesting": 100}).disable("reference")
TABLES = MarkdownIt("commonmark", {"html": True, "maxNesting": 100}).disable("reference").enable("table")


def written(told: list[events.Event]) -> str:
    return "".join(markdown(outline_of(told)))


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
        "> Refused: n, April is signed by hand",
        "> ↩ The user stopped: stop",
        "[Skipped: user interrupted]",
        '  "seconds": 9',
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
    "\\<b> \\\\<b> \\\\\\<b>",
    "> " * 30 + "<b>",
    "- " * 12 + "`<b>`",
    "![x](https://example.org) \\![x](y) \\\\![x](y)",
    "\t<b>\n\n-\t```\n  <b>\n```\n",
    "a ` b\n`<b>` c",
    "| a | b |\n|---|---|\n| `x | <b>` |",
    "```\n<b>\n``` x\n<b>\n```\n<b>",
]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("text", some([*HOSTILE], every=5))
def test_no_text_is_a_part_of_the_document(text: str) -> None:
    plain, hostile = written(with_text("x\n")), written(with_text(text + "\n"))
    assert skeleton(hostile) == skeleton(plain)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", hostile)
    assert not live(hostile)


def live(text: str) -> list[str]:
    """What is neither text nor code to a program that shows the document."""
    found = [
        child
        for parser in (PARSER, TABLES)
        for token in parser.parse(text)
        for child in (token, *(token.children or ()))
    ]
    return [token.content for token in found if token.type == "image" or token.type.startswith("html")]


@trying(60)
@given(st.lists(st.sampled_from([*"`~>|-\\\t\n !", "<b>", "![x](y)", "```", "\n\n", "  ", "|---|", "x"]), max_size=12))
def test_nothing_in_a_reply_is_live_however_deep_it_stands(pieces: list[str]) -> None:
    rows = list(quote_reply("Reply", "".join(pieces)))
    assert not live("\n".join(rows))
    assert not live("\n".join(f"> {row}" for row in rows))


IN_CODE = [
    "`a < b`",
    "``a ` <b>``",
    "```html\n<b>![x](y)\n```",
    "- ~~~\n  <b>\n  ~~~",
    "> ```\n> <b>\n> ```",
    "a `<b>` c `<i>`",
]


@pytest.mark.parametrize("text", [*IN_CODE, "# *a*\n\n- [x](https://example.org), [y](a/b.py:1)\n- <mailto:a@b.c>"])
def test_an_inert_reply_is_quoted_as_the_markdown_that_it_is(text: str) -> None:
    _, _, *rows, _ = quote_reply("Reply", text)
    assert rows == [f"> {row}".rstrip() for row in text.split("\n")]


@pytest.mark.parametrize(
    "text",
    [
        "`<b>`\n\n<b>",
        "![x](https://example.org/y.png)",
        "[x](javascript:alert)",
        "[x](java&#115;cript&colon;alert)",
        "<javascript:alert>",
        "[x](data:text/html,y)",
        "[x](file:///etc/passwd)",
        "[x]: vbscript:y",
        "> " * 30 + "deep",
        "a" * 100_000,
        "````\nx\n````\n<b>",
    ],
)
def test_any_other_reply_is_source_in_a_fence(text: str) -> None:
    (fence,) = [token for token in PARSER.parse("\n".join(quote_reply("Reply", text))) if token.type == "fence"]
    assert (fence.info, fence.content) == ("markdown", f"{text}\n")


@trying(100)
@given(st.sampled_from([PARSER, TABLES]), st.text(alphabet="`~x_*<>&;#[]()!\\\n1.:/|-+= \t", max_size=40))
def test_words_of_the_user_are_only_text_on_their_rows(parser: MarkdownIt, text: str) -> None:
    rows = [f"> {row}" for row in quote_verbatim(text)]
    tokens = parser.parse("\n".join(rows))
    assert {token.type.rpartition("_")[0] for token in tokens} <= {"blockquote", "paragraph", ""}
    parts = [token.children or [] for token in tokens if token.type == "inline"]
    assert {child.type for part in parts for child in part} <= {"text", "text_special", "hardbreak"}
    shown = "\n".join("".join("\n" if c.type == "hardbreak" else c.content for c in part) for part in parts)
    assert [row.strip() for row in shown.split("\n") if row] == [
        row.strip() for row in text.expandtabs(4).split("\n") if row.strip()
    ]


def test_words_of_the_user_keep_their_rows_and_their_indentation() -> None:
    assert list(quote_verbatim("1. do:\n\tx_y *z*\n\n- a")) == [
        "1\\. do:  ",
        "\xa0\xa0\xa0\xa0x_y \\*z\\*",
        "",
        "\\- a",
    ]


@trying(100)
@given(st.text(alphabet="`~x\n >#-\t", max_size=60))
def test_a_fence_holds_whatever_is_in_it(text: str) -> None:
    tokens = PARSER.parse("\n".join([*fence_block(text, "text"), "after"]))
    assert [token.type for token in tokens] == ["fence", "paragraph_open", "inline", "paragraph_close"]
    assert tokens[0].content.strip("\n") == text.strip("\n")


@trying(100)
@given(st.text(alphabet="`~x_* <>&;#[]()!\\\n1.:/", max_size=30).filter(lambda text: text.strip()))
def test_inline_text_is_only_text(text: str) -> None:
    (inside,) = [token for token in PARSER.parse(f"x {escape_inline(text)} x") if token.type == "inline"]
    shown = "".join(child.content for child in inside.children or ())
    assert {child.type for child in inside.children or ()} <= {"text", "text_special"}
    assert shown == f"x {' '.join(text.split())} x"
