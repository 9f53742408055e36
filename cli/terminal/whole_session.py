"""A whole session as rows for a pager: the content of a Markdown export in the terminal's style."""

from __future__ import annotations

from collections.abc import Iterator

from chain.app import sessions
from chain.text.plain import sanitize
from cli.show.markdown_flow import MarkdownFlow
from cli.show.spans import MarkdownStyle
from cli.terminal.invocation import TerminalStyle


def whole_session_rows(store: sessions.Store, id: str, style: TerminalStyle, width: int) -> Iterator[str]:
    """Yield the sanitized rows of a session, including its thinking and the complete inputs, results and pastes.

    Without colours the rows are Markdown source. Raise ``SessionError`` if the session cannot be read. Any thread may
    iterate over the rows.
    """
    pieces = sessions.export(store, id, "md")
    if not style.color:
        for piece in pieces:
            yield from sanitize(piece).splitlines()
        return
    flow = MarkdownFlow(width, MarkdownStyle(ascii=style.ascii))
    for piece in pieces:
        for rows in flow.add(piece):
            yield from rows
    yield from flow.end()
