"""``chain explain LINE``: what a line would be while a run is active, and what the model would be told."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from chain.app.explain import Explanation, explain_line
from chain.config.load import Settings
from chain.errors import UserError
from chain.text.wording import counted
from cli.arguments import read_settings
from cli.command_output import show
from cli.input.address import split_address
from cli.show.aliases import bare_command, interrupts_nothing
from cli.show.text_rows import cut_to_row, flat

MAX_SHOWN_LINE = 200
"""Characters of a line that are repeated in a row: enough to know it by."""

_STOP = (
    "the run ends: a reply that streams is cut and what there is of it kept, a running tool finishes, the others are "
    "skipped, and what was found so far is shown"
)
_URGENCY = {
    "next": "the model gets it at the next safe point, and nothing is cut or skipped",
    "urgent": "the running tool finishes, the tools that have not started are skipped, then the model gets it",
    "now": "the reply that streams is cut, or the tools that run are, and the model gets it at once",
}
_ADDRESSED = (
    "if it is at work, else refused; a stop ends it alone, with the agents that it started, and a handler prompt of "
    "its kind may rule otherwise"
)
_LOCAL = "a command: answered at once, if there is one of that name, and never seen by the model; in a pipe it is text"


def run(args: argparse.Namespace) -> int:
    """Show what a line would be. Return the exit code."""
    if not args.words:
        raise UserError("chain explain needs a line, for example: chain explain '!use the other file'")
    return show(args, explanation_rows(read_settings(args), " ".join(args.words)))


def explanation_rows(settings: Settings, text: str) -> list[str]:
    """The rows that explain a line. Raises ``ConfigError``."""
    to, line = split_address(text)
    found = explain_line(settings, line)
    return [
        f"line: {_shortened(text) or '(blank)'}",
        *([f"to: {flat(to)}, {_ADDRESSED}"] if to else []),
        f"kind: {_kind(found)}",
        f"while a run is active: {_while_active(found)}",
        f"with no run active: {_while_idle(found)}",
        *_at_a_prompt(text),
        *_rule(found),
        *_told(found),
    ]


def _kind(found: Explanation) -> str:
    line = found.line
    name: str = "local command" if line.kind == "local" else line.kind
    if line.urgency != "next":
        name = f"{line.urgency} {name}"
    if found.problem:
        return f"{name}, but it would be refused"
    return name if line == found.typed else f"{name}, by a rule; by itself it is a {found.typed.kind} line"


def _while_active(found: Explanation) -> str:
    line = found.line
    if found.problem:
        return f"refused, and it stays in the editor: {found.problem}"
    match line.kind:
        case "blank":
            return "nothing happens"
        case "local":
            return _LOCAL
        case "stop":
            return _STOP
        case "follow-up":
            return f"it waits for the run to end, and is the query of the next one: {_shortened(line.message)}"
        case _ if not found.situation.remaining:
            return "it waits for the next run, as one of a single iteration has no call left that could answer it"
        case _:
            return "; ".join([_URGENCY[line.urgency], *_besides(found)])


def _besides(found: Explanation) -> Iterator[str]:
    """What else happens with a line that the model gets."""
    line = found.line
    if line.command is not None and found.todo_direct:
        yield "code does it on the plan, and the model is told so"
    elif line.command is not None:
        yield "the model is to do it with its plan tools, since the handler prompt says todo: model"
    if line.adjustment is not None:
        yield f"a running tool that asks for guidance gets {line.adjustment.type}: {_shortened(line.adjustment.value)}"
    if line.kind == "context":
        yield "it is something to know, not a change of course"
    if line.kind == "verbatim":
        yield "the space before it makes it text, whatever it looks like"


def _while_idle(found: Explanation) -> str:
    """Rules have no say here: they are for interruptions."""
    line = found.typed
    if found.problem:
        return "likewise"
    match line.kind:
        case "blank":
            return "nothing happens"
        case "stop":
            return "nothing happens: there is nothing to stop"
        case "local":
            return "likewise"
        case "todo":
            return "done on the plan at once, without the model"
        case "question" if line.message.casefold() == "status":
            return "answered at once, without the model"
        case _:
            return f"it starts a run, and is its query: {_shortened(line.message)}"


def _at_a_prompt(text: str) -> Iterator[str]:
    """How a prompt treats the text, if not as a line like pipes, scripts and editors."""
    if command := bare_command(text):
        yield f"at a prompt, instead: the command {command}"
    elif interrupts_nothing(text):
        yield "at a prompt with no run active, instead: it stays in the editor, since there is nothing to interrupt"


def _rule(found: Explanation) -> Iterator[str]:
    if found.mistake is not None:
        yield f"problem: {found.mistake}; the built-in handler prompt is used"
    where = found.file or "the built-in handler prompt"
    if not found.is_ruled:
        yield "rule: none, as rules see only what the model could get in mid-task"
    elif (rule := found.rule) is not None:
        place = f"{found.rules.index(rule) + 1} of {len(found.rules)} in {where}:{rule.line}"
        yield f"rule: {place}, action {rule.action}: {rule.pattern.pattern}"
    elif found.rules:
        yield f"rule: none of {counted(len(found.rules), 'rule')} in {where} matches"
    else:
        yield f"rule: none, as {where} has no rules"


def _told(found: Explanation) -> Iterator[str]:
    """The rows of what the model would get; the values filled in are those of the example."""
    composed, at = found.composed, found.situation
    if composed is None:
        return
    skipped = f", {at.skipped[0]} skipped" if at.skipped else ""
    left = f"{counted(at.remaining, 'model call')} left"
    yield ""
    yield f"The model would get, for example in iteration {at.iteration} (point {at.point}, {left}{skipped}):"
    yield from _indented(composed.text)
    if composed.post_prompt:
        yield ""
        yield "Its instructions for the one call that answers, beside the system prompt:"
        yield from _indented(composed.post_prompt)
    if set_here := ", ".join(f"{name} {value}" for name, value in composed.overrides.given.items()):
        yield ""
        yield f"Settings of that call: {set_here}"
    yield ""
    if composed.resume is None:
        yield "A reply without tool calls may end the run."
    elif at.remaining < 2:
        yield "A reply without tool calls ends the run, since no call is left after it."
    else:
        yield "A reply without tool calls does not end the run: the task goes on after it, with the message"
        yield from _indented(composed.resume)


def _indented(text: str) -> list[str]:
    return [f"  {row}".rstrip() for row in text.splitlines()]


def _shortened(text: str) -> str:
    """A text on one row, cut; the spaces that a line begins with are a marker, and stay."""
    marker = " " if text[:1] == " " and text.strip() else ""
    return marker + cut_to_row(text, MAX_SHOWN_LINE)
