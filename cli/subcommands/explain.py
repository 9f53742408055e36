"""``chain explain LINE``: how a line would be handled during a run, and what the model would read."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from chain.app.explain import Explanation, explain_line
from chain.config.load import Settings
from chain.errors import UserError
from chain.text.wording import pluralize
from cli.arguments import read_settings
from cli.command_output import show
from cli.input.address import split_address
from cli.show.aliases import bare_command, interrupts_nothing
from cli.show.text_rows import cut_to_row, flat

MAX_SHOWN_LINE = 200
"""The maximum number of characters that are shown of a line: enough to recognise it."""

_STOP = (
    "ends the run: cancels the reply but keeps its text, lets a running tool finish, skips the other tools, and shows "
    "what was found"
)
_URGENCY = {
    "next": "the model reads it at the next safe point; nothing is cancelled or skipped",
    "urgent": "skips the tools that have not started, then the model reads it",
    "now": "cancels the reply or the running tools, and the model reads it at once",
}
_ADDRESSED = (
    "if it is active, else refused; a stop ends only this agent and those that it started, and the handler prompt of "
    "its kind may have other rules"
)
_LOCAL = "a command of the terminal, which the model never reads; in a pipe it is text"


def run(args: argparse.Namespace) -> int:
    """Explain a line. Return the exit code."""
    if not args.words:
        raise UserError("chain explain needs a line, for example: chain explain '!use the other file'")
    return show(args, explanation_rows(read_settings(args), " ".join(args.words)))


def explanation_rows(settings: Settings, text: str) -> list[str]:
    """Return the rows that explain a line. Raise ``ConfigError`` if the handler prompt is invalid."""
    to, line = split_address(text)
    found = explain_line(settings, line)
    return [
        f"line: {_shorten(text) or '(blank)'}",
        *([f"to: {flat(to)}, {_ADDRESSED}"] if to else []),
        f"kind: {_kind_text(found)}",
        f"while a run is active: {_active_effect(found)}",
        f"with no run active: {_idle_effect(found)}",
        *_prompt_rows(text),
        *_rule_rows(found),
        *_delivery_rows(found),
    ]


def _kind_text(found: Explanation) -> str:
    line = found.line
    name: str = "local command" if line.kind == "local" else line.kind
    if line.urgency != "next":
        name = f"{line.urgency} {name}"
    if found.problem:
        return f"{name}, but it would be refused"
    return name if line == found.typed else f"{name}, by a rule; without it a {found.typed.kind} line"


def _active_effect(found: Explanation) -> str:
    line = found.line
    if found.problem:
        return f"refused, and stays in the editor: {found.problem}"
    match line.kind:
        case "blank":
            return "nothing"
        case "local":
            return _LOCAL
        case "stop":
            return _STOP
        case "follow-up":
            return f"becomes the query of the next run: {_shorten(line.message)}"
        case _ if not found.situation.remaining:
            return "waits for the next run, since a run of one iteration has no model call left to answer it"
        case _:
            return "; ".join([_URGENCY[line.urgency], *_side_effects(found)])


def _side_effects(found: Explanation) -> Iterator[str]:
    """Yield the effects of a line besides being delivered to the model, and how the model treats it."""
    line = found.line
    if line.command is not None and found.todo_direct:
        yield "changes the plan without the model, which is informed"
    elif line.command is not None:
        yield "the model changes the plan with its tools, because the handler prompt has todo: model"
    if line.adjustment is not None:
        yield f"a running tool that accepts guidance gets {line.adjustment.type}: {_shorten(line.adjustment.value)}"
    if line.kind == "context":
        yield "it is information, not a new instruction"
    if line.kind == "verbatim":
        yield "the leading space makes it text"


def _idle_effect(found: Explanation) -> str:
    """Return the effect of a line when no run is active. Rules do not apply then."""
    line = found.typed
    if found.problem:
        return "the same"
    match line.kind:
        case "blank":
            return "nothing"
        case "stop":
            return "nothing: no run to stop"
        case "local":
            return "the same"
        case "todo":
            return "changes the plan at once, without the model"
        case "question" if line.message.casefold() == "status":
            return "answered at once, without the model"
        case _:
            return f"starts a run with this query: {_shorten(line.message)}"


def _prompt_rows(text: str) -> Iterator[str]:
    """Yield a row if the text means something else when it is typed at a prompt than in a pipe, script or editor."""
    if command := bare_command(text):
        yield f"at a prompt, instead: the command {command}"
    elif interrupts_nothing(text):
        yield "at a prompt with no run active, instead: stays in the editor, since there is nothing to interrupt"


def _rule_rows(found: Explanation) -> Iterator[str]:
    if found.mistake is not None:
        yield f"problem: {found.mistake}; the built-in handler prompt is used"
    where = found.file or "the built-in handler prompt"
    if not found.is_ruled:
        yield "rule: none, since rules apply only to lines that the model reads during a run"
    elif (rule := found.rule) is not None:
        place = f"{found.rules.index(rule) + 1} of {len(found.rules)} in {where}:{rule.line}"
        yield f"rule: {place}, action {rule.action}: {rule.pattern.pattern}"
    elif found.rules:
        yield f"rule: none of {pluralize(len(found.rules), 'rule')} in {where} matches"
    else:
        yield f"rule: none, since {where} has no rules"


def _delivery_rows(found: Explanation) -> Iterator[str]:
    """Yield rows with the messages and settings that the model would get, filled in with example values."""
    composed, at = found.composed, found.situation
    if composed is None:
        return
    skipped = f", {at.skipped[0]} skipped" if at.skipped else ""
    left = f"{pluralize(at.remaining, 'model call')} left"
    yield ""
    yield f"The model would read, for example in iteration {at.iteration} (point {at.point}, {left}{skipped}):"
    yield from _indent(composed.text)
    if composed.post_prompt:
        yield ""
        yield "Instructions for the call that answers, after the system prompt:"
        yield from _indent(composed.post_prompt)
    if set_here := ", ".join(f"{name} {value}" for name, value in composed.overrides.values.items()):
        yield ""
        yield f"Settings of the call that answers: {set_here}"
    yield ""
    if composed.resume is None:
        yield "A reply without tool calls may end the run."
    elif at.remaining < 2:
        yield "A reply without tool calls ends the run, since no model call is left."
    else:
        yield "After a reply without tool calls the task continues with the message:"
        yield from _indent(composed.resume)


def _indent(text: str) -> list[str]:
    return [f"  {row}".rstrip() for row in text.splitlines()]


def _shorten(text: str) -> str:
    """Return a text on one row, cut to ``MAX_SHOWN_LINE``.

    Leading spaces become one space, which is kept because it marks a verbatim line.
    """
    marker = " " if text[:1] == " " and text.strip() else ""
    return marker + cut_to_row(text, MAX_SHOWN_LINE)
