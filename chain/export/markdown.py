"""A session as Markdown, which is also readable as plain text. Pure.

Text that chain did not write has one of four forms. In none of them can it change the structure of the document. Words
of the model are rendered Markdown in a quote, or source in a fence if they are not inert (``quote_model_text``). Words
of the user and messages are quoted with each row escaped (``escape_rows``). Names and options are escaped on one row
(``escape_inline``). Inputs and results are in fences that are longer than any fence inside them (``fence_block``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import assert_never

from chain import events
from chain.export import outline
from chain.export.escaping import is_inert
from chain.text import phrases
from chain.text.plain import sanitize
from chain.text.wording import count_names, pluralize, truncate

MAX_HEADING = 120

_BOXES = {"PENDING": "[ ]", "DONE": "[x]", "FAILED": "[-]"}
_SIGNS = {"note": "ℹ", "error": "✗", "back": "↩"}
_FENCE = re.compile(r"`{3,}")
_SPECIAL = re.compile(r"([\\`*\[\]<>#&~|]|(?<!\w)_|_(?!\w))")
_ROW_START = re.compile(r"^(\d*)([-+=:.)])")
_BREAK = re.compile(r"(?<=[^\n])\n(?=[^\n])")


def render_markdown(session: outline.Outline) -> Iterator[str]:
    """Yield the Markdown document in pieces."""
    return (f"{row}\n" for row in _rows(session))


def _rows(session: outline.Outline) -> Iterator[str]:
    yield from _paragraph(f"# {escape_inline(truncate(session.title, MAX_HEADING))}")
    for name, value in session.facts():
        yield f"- {name}: {escape_inline(value)}"
    yield ""
    yield from _items(session.preamble)
    for number, run in enumerate(session.runs, 1):
        facts = [phrases.describe_status(run.status), pluralize(run.iterations, "iteration"), run.duration_text]
        yield from _paragraph(f"## Run {number} ({', '.join(facts)})")
        if run.task.strip():
            yield from _quote("The user", escape_rows(run.task))
        yield from _steps(run, "###")
    if session.waiting:
        yield from _paragraph("## Still waiting")
        yield from _items(session.waiting)


def _steps(agent: outline.AgentRun, heading: str) -> Iterator[str]:
    for step in agent.steps:
        if step.number:
            yield from _paragraph(f"{heading} Iteration {step.number} ({step.duration_text})")
        yield from _items(step.items)


def _items(items: Iterable[outline.Item]) -> Iterator[str]:
    for item in items:
        match item:
            case outline.CallItem():
                yield from _call(item)
            case outline.AgentRun():
                iterations = pluralize(item.iterations, "iteration")
                facts = f"{phrases.describe_status(item.status)}, {iterations}, {item.duration_text}"
                yield from _paragraph(f"**Agent {escape_inline(item.agent)}** ({facts})")
                yield from _indent(quote_model_text("Its task", item.task))
                yield from _indent(_steps(item, "####"))
                yield ""
            case outline.Moment():
                yield from _moment(item.event, item.urgency)
            case _:
                assert_never(item)


def _moment(event: outline.ShownEvent, urgency: str) -> Iterator[str]:
    match event:
        case events.Reply():
            yield from quote_model_text("Reply", event.text)
        case events.ThinkingDelta():
            yield from quote_model_text("Thought", event.text)
        case events.UserInterruption():
            skipped = f"; skipped: {count_names(event.tools_skipped)}" if event.tools_skipped else ""
            yield from _quote(f"🔔 {phrases.describe_delivery(event, urgency)}{skipped}", escape_rows(event.message))
        case events.LineQueued():
            yield from _quote(f"Line {event.id} for {event.target_agent} ({urgency})", escape_rows(event.text))
        case events.Question():
            yield from quote_model_text(f"❓ Question {event.id}", event.text)
            if event.preview.strip():
                yield from fence_block(event.preview, "text" if event.diff is None else "diff")
            for number, option in enumerate(event.options, 1):
                yield f"{number}. {escape_inline(option)}"
            if event.options:
                yield ""
        case events.Answer():
            yield from _quote(f"Answer to {event.id}", escape_rows(phrases.answer_sentence(event)))
        case events.PlanChanged():
            yield from _paragraph(f"**Plan**, changed by {escape_inline(event.by)}{'' if event.tasks else ': empty'}")
            for task in event.tasks:
                text = f"{task.text} ({task.reason})" if task.reason else task.text
                yield f"- {_BOXES[task.state]} {escape_inline(text)}"
            yield ""
        case events.Result(result=""):
            yield from _paragraph(f"**Result:** {phrases.describe_status(event.status)}")
        case events.Result():
            yield from _quote(f"Result ({phrases.describe_status(event.status)})", escape_rows(event.result))
        case _:
            kind, text = phrases.describe_remark(event)
            yield from _indent(escape_rows(f"{_SIGNS[kind]} {text}"))
            yield ""
            if isinstance(event, events.Compaction):
                yield from quote_model_text("The summary", event.summary)


def _call(call: outline.CallItem) -> Iterator[str]:
    yield from _paragraph(f"**Tool {escape_inline(call.name)}** ({call.state})")
    if call.input:
        yield from fence_block(phrases.full_input(call.input), "json")
    yield from _items(call.agents)
    if text := call.result_text.strip():
        yield from _paragraph("Its result:")
        yield from fence_block(text, "text")


def _paragraph(row: str) -> tuple[str, str]:
    return row, ""


def _quote(title: str, rows: Iterable[str]) -> Iterator[str]:
    yield from _paragraph(f"**{escape_inline(title)}:**")
    yield from _indent(rows)
    yield ""


def _indent(rows: Iterable[str]) -> Iterator[str]:
    return (f"> {row}" if row else ">" for row in rows)


def quote_model_text(title: str, text: str) -> Iterator[str]:
    """Yield the rows of a quote with words of the model, under a ``title``. No text can end the quote early."""
    rows = sanitize(text).strip("\n").expandtabs(4).splitlines()
    return _quote(title, rows if is_inert("\n".join(rows)) else fence_block(text, "markdown"))


def fence_block(text: str, language: str) -> Iterator[str]:
    """Yield the rows of a code block. No text in it can end the block early."""
    text = sanitize(text).strip("\n")
    longest = max((len(found) for found in _FENCE.findall(text)), default=2)
    fence = "`" * (longest + 1)
    yield from (f"{fence}{language}", *text.splitlines(), fence, "")


def escape_rows(text: str) -> Iterator[str]:
    """Yield rows that show a text verbatim inside a quote, with its line breaks and indentation."""
    rows = []
    for row in sanitize(text).strip("\n").splitlines():
        words = row.expandtabs(4).rstrip()
        indent = len(words) - len(words.lstrip())
        rows.append("\N{NO-BREAK SPACE}" * indent + _ROW_START.sub(r"\1\\\2", _SPECIAL.sub(r"\\\1", words[indent:])))
    yield from _BREAK.sub("  \n", "\n".join(rows)).split("\n")


def escape_inline(text: str) -> str:
    """Return a text on one row with all Markdown escaped."""
    return _SPECIAL.sub(r"\\\1", " ".join(sanitize(text).split()))
