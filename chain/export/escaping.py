"""Safe forms of untrusted text: plain text as HTML, and replies of the model as rendered Markdown. Pure.

All text of a page passes through ``escape_text`` or ``render_reply``. The parser of the latter renders neither HTML nor
images, because a browser would fetch images. It links only to ``http``, ``https`` and ``mailto`` addresses, and shows
definitions of links as plain text. The Markdown export quotes a reply unchanged only if ``is_inert`` returns true for
the reply.
"""

from __future__ import annotations

import html
import re
from functools import cache
from typing import TYPE_CHECKING, Any

from chain.text.plain import sanitize

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

MAX_MARKDOWN = 60_000
"""The maximum length, in characters, of a reply that is parsed as Markdown. More could take minutes to parse."""
MAX_NESTING = 20
"""The nesting levels that the parser reads. It skips deeper content, so a reply with more levels is not rendered."""

_LINK = re.compile(r"(?:https?://|mailto:)[^\s\\]+\Z", re.IGNORECASE)
_INERT_LINK = re.compile(r"https?:|mailto:|[^:]*(?:[/?#]|\Z)", re.IGNORECASE)


def escape_text(text: str) -> str:
    """Return a text as HTML, without control characters. It is safe between tags and inside quotes."""
    return html.escape(sanitize(text))


def render_reply(text: str) -> str:
    """Return a reply as HTML: its Markdown rendered, or plain text if it is too long or nested too deeply."""
    text, parser = sanitize(text), _strict_parser()
    tokens = [] if len(text) > MAX_MARKDOWN else parser.parse(text)
    if not tokens or any(_is_deep(token) for token in tokens):
        return f"<pre>{html.escape(text)}</pre>"
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1]) + 3, 6)}"  # the headings of the page are above those of a reply
    return str(parser.renderer.render(tokens, parser.options, {}))


def is_inert(text: str) -> bool:
    """Return whether a program that renders CommonMark finds no HTML, image or script link in a reply.

    The caller must expand tabs first, because programs differ in the columns of tabs in lists and quotes. Programs also
    differ in support for tables, so parsers with and without tables are tried.
    """
    if len(text) > MAX_MARKDOWN:
        return False
    for parser in _lenient_parsers():
        env: dict[str, Any] = {}
        # Without the last line break the parser raises ``IndexError`` for some HTML in a list.
        tokens = parser.parse(f"{text}\n", env)
        every = [*tokens, *(child for token in tokens for child in token.children or ())]
        links = [str(token.attrGet("href")) for token in every if token.type == "link_open"]
        links += [str(reference["href"]) for reference in env.get("references", {}).values()]
        if any(_is_deep(token) or token.type in ("image", "html_block", "html_inline") for token in every):
            return False
        if not all(map(_INERT_LINK.match, links)):
            return False
    return True


def _is_deep(token: Token) -> bool:
    return token.level >= MAX_NESTING - 2


@cache
def _strict_parser() -> MarkdownIt:
    parser = _parser(_LINK, html=False)
    return parser.enable(["table", "strikethrough"]).disable(["image", "html_block", "html_inline", "reference"])


@cache
def _lenient_parsers() -> tuple[MarkdownIt, ...]:
    anything = re.compile("")
    return _parser(anything, html=True), _parser(anything, html=True).enable("table")


def _parser(links: re.Pattern[str], *, html: bool) -> MarkdownIt:
    from markdown_it import MarkdownIt

    class Parser(MarkdownIt):
        def validateLink(self, url: str) -> bool:
            return links.match(url) is not None

    return Parser("commonmark", {"html": html, "maxNesting": MAX_NESTING})
