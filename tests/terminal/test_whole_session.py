"""The whole session as rows for a pager."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.sessions import open_session

from chain.app.sessions import FileStore
from chain.errors import SessionError
from chain.tools.tool import ToolContext, tool
from cli.show.text_rows import strip_colours
from cli.terminal.invocation import TerminalStyle
from cli.terminal.whole_session import whole_session_rows

RULES = """
rules:
  - {when: {tool: count}, text: That is **all**.}
  - {thinking: I count first., tools: [{name: count, input: {}}]}
"""
QUERY = "\n".join(["count_them all", *(f"pasted {n}" for n in range(60))])  # a prompt would fold it


@tool(read_only=True)
async def count(ctx: ToolContext) -> str:
    """Count."""
    return "\n".join([*(f"result {n}" for n in range(300)), "the title \x1b]2;mine\x07 and \x1b[2Jred"])


async def session_rows(folder: Path, style: TerminalStyle) -> list[str]:
    """Run a session with long rows, and return all its rows."""
    store = FileStore(folder)
    async with open_session(RULES, tools=[count]) as session:
        await session.run(QUERY)
        store.check()
        (folder / "sessions/test.jsonl").write_bytes(bytes(session.file.data))
    return list(whole_session_rows(store, "test", style, width=60))


@pytest.mark.parametrize("color", [True, False], ids=["colours", "no colours"])
async def test_thinking_results_and_pastes_are_complete(tmp_path: Path, color: bool) -> None:
    rows = [strip_colours(row) for row in await session_rows(tmp_path, TerminalStyle(color=color, ascii=False))]
    assert not any("\x1b" in row or "\n" in row for row in rows)
    assert {"I count first.", "result 0", "result 299", "pasted 59"} <= {row.strip("│> ") for row in rows}
    assert ("That is all." in "".join(rows)) is color, "Markdown is rendered with colours"


def test_a_missing_session_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SessionError):
        next(whole_session_rows(FileStore(tmp_path), "test", TerminalStyle(color=True, ascii=False), width=60))
