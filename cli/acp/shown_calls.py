"""Tool calls as editors show them: kind, title, places, and what a question shows of one. Pure.

What a question shows is what the user approves, so nothing in it is left out silently: characters that nobody can see
are shown as escapes, as at a terminal, and texts are fenced, since editors render Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from cli.acp.content import text_block
from cli.show.questions import visible

Kind: TypeAlias = Literal["read", "edit", "search", "execute", "think", "fetch", "other"]
Content: TypeAlias = Mapping[str, Any]

LONGEST_TITLE = 200
"""Characters of a title; the input has all of it."""

_KINDS: Mapping[str, Kind] = {
    "read_file": "read",
    "list_files": "search",
    "search_files": "search",
    "write_file": "edit",
    "edit_file": "edit",
    "shell": "execute",
    "research": "fetch",
    "plan_add_task": "think",
    "plan_mark_done": "think",
    "plan_mark_failed": "think",
    "plan_set_tasks": "think",
    "plan_clear": "think",
    "plan_list": "think",
}
_EDITS = ("write_file", "edit_file")
_TITLED_BY = ("command", "path", "pattern", "topic", "question", "task")
"""The inputs of which the first that there is stands in the title."""

_HEAD = re.compile(r"(.*) \+\d+ −\d+", re.DOTALL)
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,\d+)? @@")
_TICKS = re.compile(r"`{3,}")


def kind_of(name: str, agents: Collection[str]) -> Kind:
    """The kind of a tool; ``agents`` are those that put an agent to work."""
    return "think" if name in agents else _KINDS.get(name, "other")


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


def preview_content(name: str, preview: str, workspace: Path) -> tuple[Content, ...]:
    """What a question shows of a call: the differences of an edit, else the text."""
    if name in _EDITS and (found := tuple(_differences(preview, workspace))):
        return found
    shown = visible(preview)
    return (text_content(shown),) if shown.strip() else ()


def preview_path(name: str, preview: str) -> str:
    """The path that an edit's preview names; empty for any other."""
    head = _HEAD.fullmatch(preview.split("\n", 1)[0]) if name in _EDITS else None
    return head[1] if head else ""


def _differences(preview: str, workspace: Path) -> Iterator[Content]:
    """Each place of a unified difference, as its text before and after."""
    path = preview_path("edit_file", preview)
    if not path:
        return
    old: list[str] = []
    new: list[str] = []
    last: list[list[str]] = []  # the sides that the row before is on
    place: re.Match[str] | None = None
    for row in preview.split("\n")[1:]:
        if (found := _HUNK.fullmatch(row)) is not None:
            if place is not None:
                yield _difference(path, workspace, place, old, new)
            place, old, new = found, [], []
        elif row.startswith("\\"):
            for side in last:
                side[-1] = side[-1].removesuffix("\n")  # "No newline at end of file"
        else:
            last = [side for side, signs in ((old, " -"), (new, " +")) if row[:1] in signs and row]
            for side in last:
                side.append(f"{row[1:]}\n")
    if place is not None:
        yield _difference(path, workspace, place, old, new)


def _difference(
    path: str, workspace: Path, place: re.Match[str], old: Sequence[str], new: Sequence[str]
) -> Mapping[str, Any]:
    is_new = place[1] == "0" and not old
    return {
        "type": "diff",
        "path": str(workspace / path),
        "oldText": None if is_new else visible("".join(old)),
        "newText": visible("".join(new)),
        "_meta": {"chain": {"line": int(place[3])}},
    }
