"""``chain help [TOPIC]``: shows the reference, which has one Markdown file for each topic in ``cli/help``."""

from __future__ import annotations

import argparse
from pathlib import Path

from chain.errors import UserError, did_you_mean
from cli.command_output import convert_for_terminal, show, show_pages, terminal_style

FOLDER = Path(__file__).parent.parent / "help"

TOPICS = (
    *("lines", "keys", "terminal", "moments", "tools", "sandbox", "mcp", "agents", "handler-prompts"),
    *("configuration", "models", "context", "sessions", "side-door", "machines", "editors", "events"),
    *("exit-codes", "files", "library", "benchmark"),
)
"""The topics, in the order in which a new user needs them."""

REFERENCE_COLUMNS = 100
"""The maximum width of the reference, in columns: longer rows are hard to read."""


def run(args: argparse.Namespace) -> int:
    """Show a topic, or the list of them. Return the exit code."""
    if not args.words:
        return show(args, index())
    source = convert_for_terminal(args, read_topic(" ".join(args.words)))
    color, ascii, width = terminal_style(args, fd=1)
    if not color:
        return show_pages(source.splitlines())
    from cli.show.markdown_flow import render

    return show_pages(render(source, min(width, REFERENCE_COLUMNS), ascii=ascii))


def index() -> list[str]:
    """Return the rows that list the topics, each with the first sentence of its page."""
    width = max(map(len, TOPICS))
    rows = [f"  {topic:<{width}}  {_sentence(_source(topic))}" for topic in TOPICS]
    return ["chain help TOPIC shows a topic; the start of its name is enough.", "", *rows]


def read_topic(typed: str) -> str:
    """Return the Markdown of a topic, given the start of its name or a heading. Raise ``UserError`` if none fits."""
    asked = "-".join(typed.casefold().replace("_", " ").split())
    found = [asked] if asked in TOPICS else [topic for topic in TOPICS if asked and topic.startswith(asked)]
    found = found or [topic for topic in TOPICS if asked in _headings(topic)][:1]
    if len(found) == 1:
        return _source(found[0])
    if found:
        raise UserError(f"{typed!r:.60} could be {' or '.join(found)}; write more of the name")
    hint = did_you_mean(asked, TOPICS, f"the topics are {', '.join(TOPICS)}")
    raise UserError(f"there is no topic {typed!r:.60}; {hint}")


def _source(topic: str) -> str:
    # Comments in the pages are only for the tests.
    lines = (FOLDER / f"{topic}.md").read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("<!-- "))


def _headings(topic: str) -> list[str]:
    """Return the headings in a topic's page and the words of these headings, as names that the user can type.

    Names are lower case, with ``-`` between words. Names of up to three characters are left out.
    """
    headings = [row.lstrip("#").casefold().split() for row in _source(topic).splitlines() if row.startswith("#")]
    return [name for words in headings for name in ("-".join(words), *words) if len(name) > 3]


def _sentence(source: str) -> str:
    return source.split("\n\n")[1].replace("`", "")
