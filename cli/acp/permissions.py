"""A question as a permission request, and what the editor answers as an answer to the question. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chain import events
from chain.text.wording import NOBODY_CHOOSES
from cli.acp.rpc import RpcError
from cli.acp.shown_calls import as_title, text_content
from cli.show.questions import visible

NONE = "none"
"""The option of a choice by which the user chooses nothing."""

_APPROVAL = (
    ("y", "Allow", "allow_once"),
    ("a", "Always allow such calls", "allow_always"),
    ("n", "Reject", "reject_once"),
)


def request(question: events.Question, shown: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters of the request but for the session; ``shown`` is the update that has announced the call."""
    names = ("title", "kind", "content", "locations")
    call: dict[str, Any] = {"toolCallId": question.tool_call_id, "status": "pending"}
    call |= {name: shown[name] for name in names if name in shown}
    call["title"] = as_title(question.text)
    if question.kind == "choice":
        call |= {"kind": "other", "content": [text_content(visible(question.text), is_markdown=True)]}
    about: dict[str, Any] = {"questionId": question.id, "agent": question.agent}
    if question.protections:
        about["protections"] = list(question.protections)
        fence = text_content(f"Fenced in: {', '.join(question.protections)}", is_markdown=True)
        call["content"] = [*call.get("content", ()), fence]
    return {"toolCall": call, "options": _options(question), "_meta": {"chain": about}}


def answer(question: events.Question, result: object) -> str:
    """The answer to the question. Whatever is not one of the options refuses."""
    outcome = result.get("outcome") if isinstance(result, dict) else None
    chosen = outcome.get("optionId") if isinstance(outcome, dict) and outcome.get("outcome") == "selected" else None
    known = [option["optionId"] for option in _options(question)]
    if chosen not in known or chosen == NONE:
        return _refusal(question)
    return str(chosen)


def answer_to_error(question: events.Question, error: RpcError) -> str:
    """The answer where the editor could not ask."""
    return _refusal(question) if question.kind == "choice" else f"the editor could not ask: {error.message:.500}"


def _refusal(question: events.Question) -> str:
    return NOBODY_CHOOSES if question.kind == "choice" else "n"


def _options(question: events.Question) -> Sequence[Mapping[str, str]]:
    if question.kind == "approval":
        return [{"optionId": id, "name": name, "kind": kind} for id, name, kind in _APPROVAL]
    # By its number, since the text of an option may be a stop phrase.
    numbered = [
        {"optionId": str(n), "name": as_title(option), "kind": "allow_once"}
        for n, option in enumerate(question.options, 1)
    ]
    return [*numbered, {"optionId": NONE, "name": "None of these", "kind": "reject_once"}]
