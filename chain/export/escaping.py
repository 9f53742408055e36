"""Text of others as HTML that cannot be anything but text, and replies as the Markdown that they are. Pure.

Everything that a page shows goes through ``escaped`` or ``prose``. The parser of Markdown passes no HTML on, makes no
pictures (a browser would fetch them), and makes links only of addresses that a browser opens as a page or a letter.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from chain.text.plain import sanitize

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.renderer import RendererHTML
    from markdown_it.token import Token

MAX_MARKDOWN = 60_000
"""Characters of a reply that is parsed: what is longer is no text for people, and is shown as it came."""
MAX_NESTING = 20
MAX_SHOWN_TEXT = 40_000
"""Characters of one text on a page; a tool's result is shorter unless the configuration says otherwise."""
FIRST_HEADING = 4
"""The level of a reply's own first heading: the page has those above it."""

_LINK = re.compile(r"(?:https?://|mailto:)[^\s\\]+\Z", re.IGNORECASE)
_PLACE = re.compile(r"@@ -\d")


def escaped(text: str) -> str:
    """A text, without control characters, as it may stand between tags and inside quotes."""
    return html.escape(sanitize(text), quote=True)


def shown(text: str) -> str:
    """The same of a text that may be long; of one that is too long the rest is counted."""
    if len(text) <= MAX_SHOWN_TEXT:
        return escaped(text)
    return (
        f"{escaped(text[:MAX_SHOWN_TEXT])}\n… {len(text) - MAX_SHOWN_TEXT:,} more characters; the JSON export has all"
    )


def prose(text: str) -> str:
    """A reply as HTML."""
    text = sanitize(text)
    if len(text) > MAX_MARKDOWN:
        return f'<pre class="text">{shown(text)}</pre>'
    return str(_parser().render(text))


def is_only_text(text: str) -> bool:
    """Whether a reply has neither HTML nor pictures to any program that shows it as Markdown, as far as can be known.

    It may stand in one quote or in two, which moves its tabs, and the program may know tables or not.
    """
    for depth in ("> ", "> > "):
        quoted = "\n".join(depth + row for row in text.split("\n"))
        for parser in _lenient_parsers():
            tokens = parser.parse(quoted)
            every = [*tokens, *(child for token in tokens for child in token.children or ())]
            # What is nested deeper than the parser goes, it has not seen.
            if any(t.type == "image" or t.type.startswith("html_") or t.level >= MAX_NESTING - 2 for t in every):
                return False
    return True


def is_diff(text: str) -> bool:
    """Whether a text has a unified difference in it."""
    return any(_PLACE.match(row) for row in text[:MAX_SHOWN_TEXT].splitlines())


def painted(text: str) -> str:
    """A text with a unified difference in it, its rows in colours; the signs stay, for those who see none."""
    rows, is_inside = shown(text).split("\n"), False
    for n, row in enumerate(rows):
        is_inside = is_inside or _PLACE.match(row) is not None
        if is_inside and (kind := {"+": "added", "-": "removed", "@": "place"}.get(row[:1])):
            rows[n] = f'<span class="{kind}">{row}</span>'
    return "\n".join(rows)


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    class Parser(MarkdownIt):
        def validateLink(self, url: str) -> bool:
            return _LINK.match(url) is not None

    parser = Parser("commonmark", {"html": False, "maxNesting": MAX_NESTING, "langPrefix": "language-"})
    parser.enable(["table", "strikethrough"]).disable(["image", "html_block", "html_inline"])
    parser.add_render_rule("link_open", _link_open)
    parser.add_render_rule("heading_open", _heading)
    parser.add_render_rule("heading_close", _heading)
    parser.add_render_rule("fence", _fence)
    return parser


@cache
def _lenient_parsers() -> tuple[MarkdownIt, ...]:
    from markdown_it import MarkdownIt

    options = {"html": True, "maxNesting": MAX_NESTING}
    return MarkdownIt("commonmark", options), MarkdownIt("commonmark", options).enable(["table", "strikethrough"])


def _link_open(self: RendererHTML, tokens: Sequence[Token], at: int, options: Any, env: Any) -> str:  # noqa: ANN401
    # Whoever the link leads to does not learn of the page, and cannot reach it.
    tokens[at].attrSet("rel", "noopener noreferrer nofollow")
    return self.renderToken(tokens, at, options, env)


def _heading(self: RendererHTML, tokens: Sequence[Token], at: int, options: Any, env: Any) -> str:  # noqa: ANN401
    token = tokens[at]
    level = min(int(token.tag[1:]) + FIRST_HEADING - 1, 6)
    return f"<h{level}>" if token.nesting == 1 else f"</h{level}>\n"


def _fence(self: RendererHTML, tokens: Sequence[Token], at: int, options: Any, env: Any) -> str:  # noqa: ANN401
    code = tokens[at].content.removesuffix("\n")
    return f'<pre class="code" tabindex="0"><code>{painted(code) if is_diff(code) else escaped(code)}</code></pre>\n'
