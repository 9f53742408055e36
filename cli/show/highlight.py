"""Code as lines of styled text, coloured by Pygments, which is imported when first used. Pure.

Only languages whose lexers were tested with hostile text are coloured: some lexers of Pygments take seconds for a line
of brackets. Lexers cannot resume where they stopped, so each part of a long block is lexed together with some lines
before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING

from cli.show.spans import Line, Span
from cli.show.text_rows import TAB

if TYPE_CHECKING:
    from pygments.lexer import Lexer
    from pygments.token import _TokenType

LINES_BEFORE = 30
"""The number of lines before a part that are lexed with the part. Most strings and comments have fewer lines."""
MAX_LEXED = 2_000
"""The maximum number of characters that are lexed at once. Some lexers take quadratic time."""
MAX_COLOURED = 200
"""The maximum length of a line that is coloured, in characters. Some lexers take quadratic time."""

_LANGUAGES = frozenset(
    """
    bash c cpp csharp css dart diff docker elixir go graphql haskell html ini java javascript json jsx kotlin lua make
    nginx perl php powershell protobuf pycon python r ruby rust scala scss shell-session sql swift terraform toml
    typescript xml yaml
    """.split()  # noqa: SIM905 (a list would take forty lines)
)

_FIRST_LEXER = Lock()

# Those of the terminal's sixteen colours that are readable on dark and light backgrounds.
_STYLES = {
    **dict.fromkeys(("Name.Function", "Name.Class", "Generic.Heading"), "1"),
    "Comment": "2",
    "Generic.Deleted": "31",
    **dict.fromkeys(("Literal.String", "Generic.Inserted"), "32"),
    **dict.fromkeys(("Keyword", "Operator.Word", "Name.Decorator", "Generic.Prompt"), "35"),
    **dict.fromkeys(("Name.Builtin", "Name.Tag", "Name.Attribute", "Name.Variable"), "36"),
    **dict.fromkeys(("Literal.Number", "Generic.Subheading"), "36"),
    "Generic.Output": "",
}


def highlight(lines: Sequence[str], language: str) -> list[Line]:
    """Return each line of code as spans, with tabs expanded. The spans are coloured if the language is known."""
    lines = [line.expandtabs(TAB) for line in lines]
    lexer = _lexer(language.lower())
    if lexer is None:
        return [[("", line)] for line in lines]
    rows: list[Line] = []
    while (start := len(rows)) < len(lines):
        end = start + _count_fitting(lines[start : start + MAX_LEXED], MAX_LEXED // 2)
        before = lines[max(start - LINES_BEFORE, 0) : start]
        before = before[len(before) - _count_fitting(before[::-1], MAX_LEXED // 2) :]
        rows += _read(lexer, [*before, *lines[start:end]])[len(before) :]
    return rows


def _count_fitting(lines: Sequence[str], limit: int) -> int:
    """Return how many of the first lines fit into ``limit`` characters: at least one, or 0 if there are no lines."""
    total = 0
    for n, line in enumerate(lines):
        total += len(line) * (len(line) <= MAX_COLOURED) + 1
        if total > limit:
            return max(n, 1)
    return len(lines)


def _read(lexer: Lexer, lines: list[str]) -> list[Line]:
    rows: list[list[Span]] = [[]]
    for kind, value in lexer.get_tokens("".join(line * (len(line) <= MAX_COLOURED) + "\n" for line in lines)):
        sgr = _style(kind)
        first, *rest = value.split("\n")
        if first:
            rows[-1].append((sgr, first))
        rows += [[(sgr, text)] if text else [] for text in rest]
    # If a lexer omits characters, the code is shown without colours.
    return [
        row if "".join(text for _, text in row) == line else [("", line)]
        for row, line in zip(rows + [[]] * len(lines), lines, strict=False)
    ]


@cache
def _style(kind: _TokenType) -> str:
    while kind.parent is not None:
        if (name := str(kind).removeprefix("Token.")) in _STYLES:
            return _STYLES[name]
        kind = kind.parent
    return ""


@cache
def _lexer(language: str) -> Lexer | None:
    from pygments.lexers import get_all_lexers, get_lexer_by_name

    # A search by name would search the disk for plugins.
    known = (aliases for _, aliases, _, _ in get_all_lexers(plugins=False) if not _LANGUAGES.isdisjoint(aliases))
    name = next((aliases[0] for aliases in known if language in map(str.lower, aliases)), None)
    # A lexer class builds its rules in its first instance, which is not thread-safe.
    with _FIRST_LEXER:
        return None if name is None else get_lexer_by_name(name, stripnl=False, ensurenl=False)
