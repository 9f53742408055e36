"""Tool calls as editors show them: kind, title, places, and what a question shows of one. Pure.

What a question shows is what the user approves, so nothing in it is left out silently: characters that nobody can see
are shown as escapes, as at a terminal, and texts are fenced, since editors render Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from chain.hunks import FileDiff, Hunk
from cli.acp.content import text_block
from cli.show.questions import visible

Content: TypeAlias = Mapping[str, Any]

LONGEST_TITLE = 200
"""Characters of a title; the input has all of it."""

WIRE_KINDS = {"plan": "think", "delegate": "think", "ask": "other"}
"""The protocol's names for kinds of tools, where they are not ours."""

_TITLED_BY = ("command", "path", "pattern", "topic", "question", "task")
"""The inputs of which the first that there is stands in the title."""

_TICKS = re.compile(r"`{3,}")


def title_of(name: str, input: Mapping[str, Any]) -> str:
    """The name of a tool and what it is about, on one row."""
    about = next((value for key in _TITLED_BY if isinstance(value := input.get(key), str) and value.strip()), "")
    return as_title(f"{name}: {about}" if about else name)


def as_title(text: str) -> str:
    """A text as a title."""
    row = " ".join(visible(text).split())
    return row if len(row) <= LONGEST_TITLE else f"{row[:LONGEST_TITLE]}…"


def locations_of(input: Mapping[str, Any], workspace: Path) -> Sequence[Mapping[str, Any]]:
    """The file that a call is about."""
    path = input.get("path")
    if not isinstance(path, str) or not path.strip() or "\0" in path:
        return []
    line = input.get("offset")
    has_line = isinstance(line, int) and not isinstance(line, bool) and line > 0
    return [{"path": str(workspace / path), **({"line": line} if has_line else {})}]


def text_content(text: str, *, is_markdown: bool = False) -> Content:
    """A text as content; unless it is Markdown it is shown as it is."""
    return {"type": "content", "content": text_block(text if is_markdown else in_fence(text))}


def in_fence(text: str, language: str = "") -> str:
    """The text in a fence that nothing in it ends."""
    ticks = "`" * max((len(found) + 1 for found in _TICKS.findall(text)), default=3)
    end = "" if text.endswith("\n") else "\n"
    return f"{ticks}{language}\n{text}{end}{ticks}"


def preview_content(diff: FileDiff | None, preview: str, workspace: Path) -> tuple[Content, ...]:
    """What a question shows of a call: the hunks of an edit, else the text."""
    if diff is not None and diff.hunks:
        return tuple(_content_of(hunk, str(workspace / diff.path)) for hunk in diff.hunks)
    shown = visible(preview)
    return (text_content(shown),) if shown.strip() else ()


def _content_of(hunk: Hunk, path: str) -> Content:
    old = hunk.side("-")
    return {
        "type": "diff",
        "path": path,
        "oldText": None if hunk.old == 0 and not old else visible(old),
        "newText": visible(hunk.side("+")),
        "_meta": {"chain": {"line": hunk.new}},
    }
