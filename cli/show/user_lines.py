"""The user's lines as styled spans: queued, delivered or returned. Pure.

If rows can be updated, a line is one row, which is shown whole when it is settled. Otherwise a line has two rows. The
first reports its arrival: whole, with the line ends of a pasted text and the space that makes it verbatim. The second
reports its delivery, and is shortened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chain import events
from chain.text import phrases
from chain.text.plain import sanitize
from chain.text.wording import MAIN, STDIN_BEGIN, STDIN_END, count_names, pluralize
from cli.show.signs import Sign
from cli.show.spans import Span
from cli.show.text_rows import LONGEST_SHOWN, amount, cut_to_row, flat, row_count

MAX_ROW_CHARS = 2_000
"""The maximum number of characters of each row of a delivered text. The whole text was shown when it was queued."""

_GUIDANCE = {
    "focus_query": "focus",
    "skip_source": "skip",
    "add_source": "also check",
    "drop_criterion": "ignore",
    "preference": "prefer",
}

NO_BREAK = "\xa0"
"""The space between a sign and its text, which keeps the sign and the start of the text on one row."""


def query(text: str) -> str:
    """Return a query in full, but with the number of lines of piped input instead of these lines."""
    asked, begin, piped = text.partition(STDIN_BEGIN)
    if not begin or not piped.endswith(STDIN_END):
        return as_typed(text)
    lines = piped.removesuffix(STDIN_END).count("\n") + 1
    return f"{as_typed(asked)} (and {pluralize(lines, 'line')} from standard input)"


def job_end_text(text: str, sign: Sign) -> str:
    """Shorten ``text``, which reports the end of a job, to the job's status and the first row of its command."""
    return f" {sign('·')} ".join(text.split("\n")[:2])


def strip_texts(message: str, texts: Iterable[str]) -> str:
    """Remove the lines with these ``texts`` from a message of several lines, and return the rest."""
    for text in texts:
        message = message.replace(text, "", 1)
    return message.strip("\n")


def queued_spans(event: events.LineQueued, sign: Sign) -> list[Span]:
    """Return the row of a waiting line: its text, and when it will be delivered."""
    spans: list[Span] = [("bold", _beginning_of_row(event, sign)), ("", f" {as_typed(event.text)} ")]
    if guidance := _guidance(event, sign):
        spans += [("cyan", guidance.rstrip()), ("", " ")]
    waits = {"now": "Injecting now", "urgent": "Will inject ASAP (may skip tools)"}.get(event.urgency, "")
    if waits:
        return [*spans, ("yellow", f"{sign('⚡')}{NO_BREAK}{waits}")]
    when = "start when this run has ended" if event.kind == "follow-up" else "inject at next safe point"
    return [*spans, ("dim", f"{sign('⏳')}{NO_BREAK}Will {when}")]


def readdressed_spans(event: events.LineQueued, sign: Sign) -> list[Span]:
    """Return the row of a waiting line whose agent has changed. Its text is cut, since it was shown in full before."""
    waits = f"{sign('⏳')}{NO_BREAK}Now waits for {flat(event.target_agent)}"
    return [("bold", f"{sign('📤')}"), ("", f" {_beginning(event.text, sign)} "), ("dim", waits)]


def delivered_spans(event: events.UserInterruption, last_tool: str, sign: Sign) -> list[Span]:
    """Return the row of a delivery. ``last_tool`` is the last tool called in this iteration; empty if none was."""
    where = phrases.delivery_in_row(event.point, flat(last_tool))
    spans: list[Span] = [("bold", f"[{_banner(event, sign)}]"), ("", f" {_beginning(event.message, sign)} ")]
    if event.tools_skipped:
        spans += [("yellow", f"{sign('⏭')}{NO_BREAK}Skipped: {flat(count_names(event.tools_skipped))}"), ("", " ")]
    return [*spans, ("green", f"{sign('✓')}{NO_BREAK}Message injected ({where}, {phrases.duration(event.waited_s)})")]


def waiting_row(event: events.LineQueued, sign: Sign) -> tuple[str, str, str]:
    """Return the start, the text and the end of a waiting line's row, which is redrawn while the line waits."""
    state = {"now": f"{sign('⚡')} now", "urgent": f"{sign('⚡')} ASAP, may skip tools"}.get(event.urgency, "")
    if not state:
        state = f"{sign('⏳')} {'after this run' if event.kind == 'follow-up' else 'next safe point'}"
    # Only the beginning is processed: a pasted text may be long, and the row is redrawn each second.
    text, guidance = one_row(event.text[:MAX_ROW_CHARS]), _guidance(event, sign, MAX_ROW_CHARS)
    return f"{_beginning_of_row(event, sign)} ", text, f" {guidance}{state}"


def whole_delivery_spans(event: events.UserInterruption, lines: Sequence[events.LineQueued], sign: Sign) -> list[Span]:
    """Return the final row of lines that one safe point delivered, with their text in full."""
    text = "\n".join(row for row in as_typed(event.message).split("\n") if row.strip())
    spans: list[Span] = [("dim", f"{_banner(event, sign)}: {text} ")]
    spans += [("dim", guidance) for line in lines if (guidance := _guidance(line, sign))]
    if event.tools_skipped:
        spans += [("yellow", f"{sign('⏭')}{NO_BREAK}skipped: {flat(count_names(event.tools_skipped))}"), ("", " ")]
    took = phrases.duration(event.waited_s, whole=True).replace(" ", NO_BREAK)
    return [*spans, ("dim", f"{sign('✓')}{NO_BREAK}injected ({took})")]


def _beginning_of_row(event: events.LineQueued, sign: Sign) -> str:
    target = "" if event.target_agent == MAIN else f" {sign('→')} {flat(event.target_agent)}"
    return f"{sign('📤')} Interrupting{target}:"


def _banner(event: events.UserInterruption, sign: Sign) -> str:
    target = "" if event.target_agent == MAIN else f" of {flat(event.target_agent)}"
    when = f"at iteration {event.iteration}" if event.iteration else "before iteration 1"
    return f"{sign('🔔')} INTERRUPTION{target} {when}"


def _guidance(event: events.LineQueued, sign: Sign, most: int | None = None) -> str:
    if (guidance := event.adjustment) is None:
        return ""
    return f"{sign('↪')}{NO_BREAK}{flat(_GUIDANCE.get(guidance.type, guidance.type))}: {flat(guidance.value[:most])} "


def settled_parts(event: events.Receipt) -> tuple[str, str, str] | None:
    """Return the sign, the words before the text, and the style for a line that did not reach the model.

    Return ``None`` for a receipt whose outcome other events already show, such as a delivery.
    """
    words = flat(phrases.describe_receipt(event))
    if not words:
        return None
    if event.is_stop:
        return "⏹", "", "yellow"
    sign, style = "↩", "dim" if event.state == "dropped" else "yellow"
    if event.state == "handled":
        sign, style = ("✗", "yellow") if event.reason else ("✓", "green")
    return sign, f"{words}: ", style


def as_typed(text: str) -> str:
    """Return a text without blank rows at its start and end. Its line ends and leading spaces stay."""
    return sanitize(text).strip("\n").rstrip()


def fold(text: str, width: int) -> str:
    """Shorten a long text to one row, as the editor does with a long paste. Piped input at the end is not changed."""
    typed, *piped = text.partition(STDIN_BEGIN)
    typed = as_typed(typed)
    if row_count(typed, width) > LONGEST_SHOWN:
        typed = f"{cut_to_row(typed.splitlines()[0], width // 3)} [{amount(typed)} pasted]"
    return "".join([typed, *piped])


def one_row(text: str) -> str:
    """Return a text on one row. A leading space, which makes a line verbatim, stays."""
    return (" " if text.startswith(" ") else "") + flat(text)


def _beginning(text: str, sign: Sign) -> str:
    rows = [row.rstrip() for row in as_typed(text).split("\n") if row.strip()]
    shown = [row if len(row) <= MAX_ROW_CHARS else row[:MAX_ROW_CHARS] + sign("…") for row in rows[:LONGEST_SHOWN]]
    left = len(rows) - LONGEST_SHOWN
    return "\n".join([*shown, f"{sign('…')} {pluralize(left, 'more line')}"] if left > 0 else shown)
