"""The session as Markdown: its parts, and that no text breaks out of its place."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from support.eventful import eventful_session, with_text
from support.examples import max_examples, sample_in_short_run

from chain import events
from chain.export.markdown import escape_inline, escape_rows, fence_block, quote_model_text, render_markdown
from chain.export.outline import outline_of

# Definitions of links are disabled, because a quote may contain them as well.
PARSER = MarkdownIt("commonmark", {"html": True, "maxNesting": 100}).disable("reference")
PARSER_WITH_TABLES = MarkdownIt("commonmark", {"html": True, "maxNesting": 100}).disable("reference").enable("table")


def document(happened: list[events.Event]) -> str:
    return "".join(render_markdown(outline_of(happened)))


def test_document_has_a_heading_for_each_run() -> None:
    rows = document(list(eventful_session().events)).splitlines()
    title, *headings = [row.split(" (")[0] for row in rows if row.startswith("#")]
    assert title.startswith("# ")
    assert [heading for heading in headings if heading.startswith("## ")] == ["## Run 1", "## Run 2", "## Run 3"]
    assert headings[:3] == ["## Run 1", "### Iteration 1", "### Iteration 2"]


def test_document_has_the_parts_of_a_session() -> None:
    rows = document(list(eventful_session().events)).splitlines()
    assert {
        "> context: the office moved in May",
        "> !!shorter, and in a table",
        "> > look at the appendix as well",
        "> > > The ledger says 1,240.",
        "- [x] read the reports",
        "> Refused: n, April is signed by hand",
        "> ↩ The user stopped: stop",
        "[Skipped: user interrupted]",
        '  "seconds": 9',
    } <= {*rows}


HOSTILE = {
    "heading": "# A heading\n\nand text\n===\n\n",
    "open fence": "```\nunclosed",
    "open fence of tildes": "~~~~~~\n",
    "long fence": "`````````````\n```\n",
    "open comment": "<!-- unclosed",
    "script": "<script>hit()</script>\n\n",
    "quote, lists and rule": "> quote\n\n- item\n\n1. item\n\n---\n\n",
    "indented code": "    indented\n\n\tcode\n",
    "table": "| a |\n|---|\n",
    "control characters": "\x1b[31m\x9b2J\u2028next\u2029row\x0b\x0c\x85",
    "definition of a link": "[a]: http://example.org\n\n[a]",
    "emphasis and code": "**_bold_ `code",
    "backslash": "\\",
    "entities": "&lt;b&gt;",
    "escaped backslashes before a tag": "\\<b> \\\\<b> \\\\\\<b>",
    "tag in a deep quote": "> " * 30 + "<b>",
    "tag in a deep list": "- " * 12 + "`<b>`",
    "images after backslashes": "![x](https://example.org) \\![x](y) \\\\![x](y)",
    "tag after a tab": "\t<b>\n\n-\t```\n  <b>\n```\n",
    "backtick on another line": "a ` b\n`<b>` c",
    "code across cells": "| a | b |\n|---|---|\n| `x | <b>` |",
    "tag after a fence": "```\n<b>\n``` x\n<b>\n```\n<b>",
}


def blocks(text: str) -> list[str]:
    """Return the types of the blocks of the document itself."""
    return [token.type for token in PARSER.parse(text) if token.level == 0]


def live_parts(text: str) -> list[str]:
    """Return the parts that are neither text nor code for a program that shows the document."""
    tokens = [token for parser in (PARSER, PARSER_WITH_TABLES) for token in parser.parse(text)]
    parts = [part for token in tokens for part in (token, *(token.children or ()))]
    return [part.content for part in parts if part.type == "image" or part.type.startswith("html")]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", sample_in_short_run([*HOSTILE], every=5))
def test_hostile_text_changes_no_structure(name: str) -> None:
    exported = document(with_text(HOSTILE[name] + "\n"))
    assert blocks(exported) == blocks(document(with_text("x\n")))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", exported)
    assert not live_parts(exported)


@max_examples(60)
@given(st.lists(st.sampled_from([*"`~>|-\\\t\n !", "<b>", "![x](y)", "```", "\n\n", "  ", "|---|", "x"]), max_size=12))
def test_nothing_in_a_reply_is_live(pieces: list[str]) -> None:
    rows = list(quote_model_text("Reply", "".join(pieces)))
    assert not live_parts("\n".join(rows))
    assert not live_parts("\n".join(f"> {row}" for row in rows))


@pytest.mark.parametrize(
    "text",
    [
        "`a < b`",
        "``a ` <b>``",
        "```html\n<b>![x](y)\n```",
        "- ~~~\n  <b>\n  ~~~",
        "> ```\n> <b>\n> ```",
        "# *a*\n\n- [x](https://example.org), [y](a/b.py:1)\n- <mailto:a@b.c>",
    ],
)
def test_inert_reply_is_quoted_unchanged(text: str) -> None:
    _heading, _blank, *rows, _end = quote_model_text("Reply", text)
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
        pytest.param("a" * 100_000, id="long row"),
        "````\nx\n````\n<b>",
    ],
)
def test_other_reply_is_source_in_a_fence(text: str) -> None:
    (fence,) = [token for token in PARSER.parse("\n".join(quote_model_text("Reply", text))) if token.type == "fence"]
    assert (fence.info, fence.content) == ("markdown", f"{text}\n")


@max_examples(100)
@given(st.sampled_from([PARSER, PARSER_WITH_TABLES]), st.text(alphabet="`~x_*<>&;#[]()!\\\n1.:/|-+= \t", max_size=40))
def test_verbatim_quote_is_only_text(parser: MarkdownIt, text: str) -> None:
    rows = [f"> {row}" for row in escape_rows(text)]
    tokens = parser.parse("\n".join(rows))
    assert {token.type.rpartition("_")[0] for token in tokens} <= {"blockquote", "paragraph", ""}
    parts = [token.children or [] for token in tokens if token.type == "inline"]
    assert {child.type for part in parts for child in part} <= {"text", "text_special", "hardbreak"}
    shown = "\n".join("".join("\n" if c.type == "hardbreak" else c.content for c in part) for part in parts)
    assert [row.strip() for row in shown.split("\n") if row] == [
        row.strip() for row in text.expandtabs(4).split("\n") if row.strip()
    ]


def test_verbatim_quote_keeps_rows_and_indentation() -> None:
    assert list(escape_rows("1. do:\n\tx_y *z*\n\n- a")) == [
        "1\\. do:  ",
        "\xa0\xa0\xa0\xa0x_y \\*z\\*",
        "",
        "\\- a",
    ]


@max_examples(100)
@given(st.text(alphabet="`~x\n >#-\t", max_size=60))
def test_fence_contains_any_text(text: str) -> None:
    tokens = PARSER.parse("\n".join([*fence_block(text, "text"), "after"]))
    assert [token.type for token in tokens] == ["fence", "paragraph_open", "inline", "paragraph_close"]
    assert tokens[0].content.strip("\n") == text.strip("\n")


@max_examples(100)
@given(st.text(alphabet="`~x_* <>&;#[]()!\\\n1.:/", max_size=30).filter(lambda text: text.strip()))
def test_inline_text_is_only_text(text: str) -> None:
    (inline,) = [token for token in PARSER.parse(f"x {escape_inline(text)} x") if token.type == "inline"]
    children = inline.children or []
    assert {child.type for child in children} <= {"text", "text_special"}
    assert "".join(child.content for child in children) == f"x {' '.join(text.split())} x"
