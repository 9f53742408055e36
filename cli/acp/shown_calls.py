"""Tool calls and questions as editors show them, and the answers of editors to questions. Pure.

The user approves what a question shows. So invisible characters are escaped, and texts are put in fences, since editors
render Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from chain import events
from chain.lines.parse import MAX_LINE
from chain.text.escalations import ESCALATION_KEYS, ESCALATION_PHRASES
from chain.text.hunks import FileDiff, Hunk
from chain.text.wording import NO_USER_CHOOSES
from cli.acp.rpc import RpcError
from cli.show.question_rows import fence, visible

Content: TypeAlias = Mapping[str, Any]

LONGEST_TITLE = 200
"""The maximum number of characters of a title. Editors show the whole input elsewhere."""

WIRE_KINDS = {"plan": "think", "delegate": "think", "ask": "other"}
"""The protocol's names for kinds of tools, where they differ from the names in chain."""

_TITLED_BY = ("command", "path", "pattern", "topic", "question", "task")
"""The arguments that a title can show. A title shows the first of them that the call has."""

_TICKS = re.compile(r"`{3,}")

_NONE = "none"
"""The id of the option that chooses nothing."""

_APPROVAL = (
    ("y", "Allow", "allow_once"),
    ("a", "Always allow such calls", "allow_always"),
    ("n", "Reject", "reject_once"),
)


def title_of(name: str, input: Mapping[str, Any]) -> str:
    """Return the name of a tool and its most important argument, on one row."""
    about = next((value for key in _TITLED_BY if isinstance(value := input.get(key), str) and value.strip()), "")
    return as_title(f"{name}: {about}" if about else name)


def as_title(text: str) -> str:
    """Return a text as a title: on one row, with invisible characters escaped, and cut if it is too long."""
    row = " ".join(visible(text).split())
    return row if len(row) <= LONGEST_TITLE else f"{row[:LONGEST_TITLE]}…"


def locations_of(input: Mapping[str, Any], workspace: Path) -> Sequence[Mapping[str, Any]]:
    """Return a list with the location of the file that a call names; an empty list if the call names no file."""
    path = input.get("path")
    if not isinstance(path, str) or not path.strip() or "\0" in path:
        return []
    line = input.get("offset")
    has_line = isinstance(line, int) and not isinstance(line, bool) and line > 0
    return [{"path": str(workspace / path), **({"line": line} if has_line else {})}]


def text_block(text: str) -> Mapping[str, Any]:
    """Return a text as a content block."""
    return {"type": "text", "text": text}


def text_content(text: str, *, is_markdown: bool = False) -> Content:
    """Return a text as the content of a tool call. Fence the text unless it is Markdown."""
    return {"type": "content", "content": text_block(text if is_markdown else in_fence(text))}


def in_fence(text: str) -> str:
    """Return the text in a Markdown fence that is longer than any fence in the text."""
    ticks = "`" * max((len(found) + 1 for found in _TICKS.findall(text)), default=3)
    end = "" if text.endswith("\n") else "\n"
    return f"{ticks}\n{text}{end}{ticks}"


def preview_content(diff: FileDiff | None, preview: str, workspace: Path) -> tuple[Content, ...]:
    """Return what a question shows of its call: the hunks of ``diff``, or else ``preview``."""
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


def question_request(
    question: events.Question, announcement: Mapping[str, Any], *, has_forms: bool
) -> tuple[str, Mapping[str, Any]]:
    """Return the protocol's method for a question, and the parameters of the method without the session's id.

    ``announcement`` is the update that announced the call. If ``has_forms``, the editor shows a choice in a form.
    """
    about: dict[str, Any] = {"questionId": question.id, "agent": question.agent}
    if has_forms and question.kind == "choice":
        options = [{"const": id, "title": as_title(option)} for id, option in _numbered_options(question)]
        fields = {
            "choice": {"type": "string", "title": "Choose", "oneOf": options},
            "other": {"type": "string", "title": "Or answer something else", "maxLength": MAX_LINE},
        }
        return "elicitation/create", {
            "mode": "form",
            "toolCallId": question.tool_call_id,
            "message": visible(question.text),
            "requestedSchema": {"type": "object", "properties": fields},
            "_meta": {"chain": about},
        }
    call: dict[str, Any] = {"toolCallId": question.tool_call_id, "status": "pending", "title": as_title(question.text)}
    call |= {name: announcement[name] for name in ("kind", "content", "locations") if name in announcement}
    escalations = (
        (ESCALATION_KEYS[each], f"Allow once {ESCALATION_PHRASES[each]}", "allow_once") for each in question.escalations
    )
    offered: Sequence[tuple[str, str, str]] = (_APPROVAL[0], *escalations, *_APPROVAL[1:])
    if question.kind == "choice":
        call |= {"kind": "other", "content": [text_content(visible(question.text), is_markdown=True)]}
        numbered = ((id, as_title(option), "allow_once") for id, option in _numbered_options(question))
        offered = (*numbered, (_NONE, "None of these", "reject_once"))
    if question.protections:
        about["protections"] = list(question.protections)
        call["content"] = [*call.get("content", ()), text_content(fence(question), is_markdown=True)]
    options = [{"optionId": id, "name": name, "kind": kind} for id, name, kind in offered]
    return "session/request_permission", {"toolCall": call, "options": options, "_meta": {"chain": about}}


def question_answer(question: events.Question, result: object) -> str:
    """Return the answer in an editor's ``result``. Without a valid answer, deny the call or choose no option."""
    if question.kind == "approval":
        match result:
            case RpcError():
                return f"the editor could not ask: {result.message:.500}"
            case {"outcome": {"outcome": "selected", "optionId": str(chosen)}} if chosen in _consents(question):
                return chosen
            case _:
                return "n"
    ids = {id for id, _ in _numbered_options(question)}
    match result:
        case {"action": "accept", "content": {"other": str(text)}} if text.strip() and len(text) <= MAX_LINE:
            return text
        case {"action": "accept", "content": {"choice": str(chosen)}} if chosen in ids:
            return chosen
        case {"outcome": {"outcome": "selected", "optionId": str(chosen)}} if chosen in ids:
            return chosen
        case _:
            return NO_USER_CHOOSES


def _consents(question: events.Question) -> Sequence[str]:
    """Return the ids of the options that allow a call."""
    return ["y", "a", *(ESCALATION_KEYS[each] for each in question.escalations)]


def _numbered_options(question: events.Question) -> Sequence[tuple[str, str]]:
    """Return the options of a choice, each with its number as id, since an option's text could be a stop phrase."""
    return [(str(n), option) for n, option in enumerate(question.options, 1)]
