"""The user's own lines, as spans of a named style: what a row says of a line that is queued, is in, or came back. Pure.

A line is two rows, one when it is queued and one when the model has it. It is shown whole once, where it is queued,
with the line ends of a pasted text and with the space that makes it verbatim; where it is delivered a long one is
shortened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from chain import events
from chain.lines.parse import is_stop
from chain.text.wording import MAIN, STDIN_BEGIN, STDIN_END, STOPPED_BY_RULE, counted
from cli.show.spans import Span
from cli.show.text import clean, flat, seconds

MAX_ROWS = 20
"""Rows shown of what is delivered, which was shown whole when it was queued."""
MAX_CHARS = 2_000
"""Characters shown of each of these rows."""

_GUIDANCE = {
    "focus_query": "focus",
    "skip_source": "skip",
    "add_source": "also check",
    "drop_criterion": "ignore",
    "preference": "prefer",
}

NO_BREAK = "\xa0"
"""Stands between a sign and its text, which stay on one row."""

Sign = Callable[[str], str]
"""How a sign is written on this terminal."""


def query(text: str) -> str:
    """A query as it is shown: whole, but for what was piped in, which is counted."""
    asked, begin, piped = text.partition(STDIN_BEGIN)
    if not begin or not piped.endswith(STDIN_END):
        return as_typed(text)
    lines = piped.removesuffix(STDIN_END).count("\n") + 1
    return f"{as_typed(asked)} (and {counted(lines, 'line')} from standard input)"


def queued(event: events.LineQueued, sign: Sign) -> list[Span]:
    """The row of a line that waits."""
    target = "" if event.target_agent == MAIN else f" {sign('→')} {flat(event.target_agent)}"
    spans: list[Span] = [("bold", f"{sign('📤')} Interrupting{target}:"), ("", f" {as_typed(event.text)} ")]
    if (guidance := event.adjustment) is not None:
        kind = flat(_GUIDANCE.get(guidance.type, guidance.type))
        spans += [("cyan", f"{sign('↪')}{NO_BREAK}{kind}: {flat(guidance.value)}"), ("", " ")]
    if event.urgency == "now":
        return [*spans, ("yellow", f"{sign('⚡')}{NO_BREAK}Injecting now")]
    if event.urgency == "urgent":
        return [*spans, ("yellow", f"{sign('⚡')}{NO_BREAK}Will inject ASAP (may skip tools)")]
    if event.kind == "follow-up":
        return [*spans, ("dim", f"{sign('⏳')}{NO_BREAK}Will start when this run has ended")]
    return [*spans, ("dim", f"{sign('⏳')}{NO_BREAK}Will inject at next safe point")]


def moved(event: events.LineQueued, sign: Sign) -> list[Span]:
    """The row of a line that waits for another agent than before, when it was shown whole."""
    waits = f"{sign('⏳')}{NO_BREAK}Now waits for {flat(event.target_agent)}"
    return [("bold", f"{sign('📤')}"), ("", f" {_beginning(event.text, sign)} "), ("dim", waits)]


def delivered(event: events.UserInterruption, last_tool: str, sign: Sign) -> list[Span]:
    """The row of what one safe point delivered; ``last_tool`` ran before it in this iteration, if any did."""
    target = "" if event.target_agent == MAIN else f" of {flat(event.target_agent)}"
    when = f"at iteration {event.iteration}" if event.iteration else "before iteration 1"
    banner = f"[{sign('🔔')} INTERRUPTION{target} {when}]"
    where = {"start": "at the start", "A": "at the start", "B": "after the reply", "N": "at once"}.get(
        event.point, "before a tool"
    )
    if event.point in ("C", "D") and last_tool:
        where = f"after {flat(last_tool)}"
    spans: list[Span] = [("bold", banner), ("", f" {_beginning(event.message, sign)} ")]
    if event.tools_skipped:
        spans += [("yellow", f"{sign('⏭')}{NO_BREAK}Skipped: {flat(', '.join(event.tools_skipped))}"), ("", " ")]
    return [*spans, ("green", f"{sign('✓')}{NO_BREAK}Message injected ({where}, {seconds(event.waited_s)})")]


def settled(event: events.Receipt) -> tuple[str, str, str] | None:
    """A sign, a text and a style for a line that did not reach the model; others are shown by their own events."""
    why = f" ({flat(event.reason)})" if event.reason else ""
    text = one_row(event.text)
    match event.state:
        case "returned":
            return "↩", f"Returned{why}: {text}", "yellow"
        case "unsent":
            return "↩", f"Never sent{why}: {text}", "yellow"
        case "dropped":
            return "↩", f"Dropped{why}: {text}", "dim"
        case "handled" if is_stop_receipt(event):
            return "⏹", text, "yellow"
        case "handled" if event.reason:
            return "✗", f"Not done{why}: {text}", "yellow"
        case "handled":
            return "✓", f"Done{why}: {text}", "green"
        case "queued" | "delivered" | "refused":
            return None
        case _:
            assert_never(event.state)


def is_stop_receipt(event: events.Receipt) -> bool:
    """Whether the line was a stop. A receipt has no kind, and no other event describes a stop, so its text is read."""
    return event.state == "handled" and (event.reason == STOPPED_BY_RULE or is_stop(event.text))


def as_typed(text: str) -> str:
    """A text with its line ends and the spaces before it, and without blank rows around it."""
    return clean(text).strip("\n").rstrip()


def one_row(text: str) -> str:
    """A text on one row; the space that makes it verbatim stays."""
    return (" " if text.startswith(" ") else "") + flat(text)


def _beginning(text: str, sign: Sign) -> str:
    rows = [row.rstrip() for row in as_typed(text).split("\n") if row.strip()]
    shown = [row if len(row) <= MAX_CHARS else row[:MAX_CHARS] + sign("…") for row in rows[:MAX_ROWS]]
    left = len(rows) - MAX_ROWS
    return "\n".join([*shown, f"{sign('…')} {counted(left, 'more line')}"] if left > 0 else shown)
