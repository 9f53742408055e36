"""A session as Markdown that reads well as it stands. Pure.

All that others wrote stands in quotes or in fences, each of which ends where we end it: a fence is longer than any row
of its marks inside, and whatever a reply leaves open, a quote closes. So no text can pass for a part of the document.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import assert_never

from chain import events
from chain.export import outline
from chain.export.escaping import MAX_MARKDOWN, is_only_text
from chain.text import phrases
from chain.text.plain import sanitize
from chain.text.wording import beginning, counted, how_often

MAX_HEADING = 120

_BOXES = {"PENDING": "[ ]", "DONE": "[x]", "FAILED": "[-]"}
_SIGNS = {"note": "ℹ", "error": "✗", "back": "↩"}
_MARKS = re.compile(r"`{3,}")
_CODE = re.compile(
    # A fence up to its end, or to that of the text; a row or more between equal numbers of backticks.
    r"^[ >]*(?:(?:[-*+]|\d{1,9}[.)])[ ][ >]*)*(?:(?P<fence>`{3,})[^`\n]*|(?P<tildes>~{3,})[^\n]*)$"
    r"(?:.*?^[ >]*(?:(?P=fence)`*|(?P=tildes)~*)[ ]*$|.*)"
    r"|(?<!`)(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)",
    re.MULTILINE | re.DOTALL,
)
_LIVE = re.compile(r"(?P<before>\\*)<|!\[")
_SPECIAL = re.compile(r"([\\`*\[\]<>#&~]|(?<!\w)_|_(?!\w))")


def markdown(session: outline.Outline) -> Iterator[str]:
    """The document, in pieces."""
    return (f"{row}\n" for row in _rows(session))


def _rows(session: outline.Outline) -> Iterator[str]:
    title, init = session.title, session.init
    yield from _paragraph(f"# {inline(beginning(title, MAX_HEADING))}")
    if init is not None:
        yield f"- Session: {inline(init.session)}"
        yield f"- Workspace: {inline(init.workspace)}"
        yield f"- Model: {inline(init.model)}"
    if session.times:
        yield f"- Began: {phrases.when(session.times[0])}"
    yield f"- Runs: {len(session.runs):,}"
    yield f"- Tokens: {session.tokens:,}"
    if session.cost_usd is not None:
        yield f"- Cost: {phrases.cost(session.cost_usd)}"
    yield ""
    yield from _items(session.before)
    for run in session.runs:
        yield from _run(run)


def _run(run: outline.SessionRun) -> Iterator[str]:
    facts = [phrases.outcome(run.status), counted(run.iterations, "iteration"), run.took]
    yield from _paragraph(f"## Run {run.number} ({', '.join(facts)})")
    if run.task.strip():
        yield from quoted("The user", run.task)
    yield from _steps(run.steps, "###")
    text = "" if run.result is None else phrases.beyond_replies(run.result)
    words = [item.text.strip() for item in run.items() if isinstance(item, outline.ReplyItem)]
    if text and text not in words[-1:]:
        yield from quoted(f"Result ({phrases.outcome(run.status)})", text)


def _steps(steps: Iterable[outline.Iteration], heading: str) -> Iterator[str]:
    for step in steps:
        if step.number:
            yield from _paragraph(f"{heading} Iteration {step.number} ({step.took})")
        yield from _items(step.items)


def _items(items: Iterable[outline.Item]) -> Iterator[str]:
    for item in items:
        match item:
            case outline.ReplyItem():
                yield from quoted("Reply", item.text)
            case outline.ThoughtItem():
                yield from quoted("Thought", item.text.strip())
            case outline.Delivered(event=event):
                skipped = f"; skipped: {how_often(event.tools_skipped)}" if event.tools_skipped else ""
                where = phrases.delivered(event, item.urgency)
                yield from quoted(f"🔔 {where}{skipped}", event.message)
            case outline.QuestionItem():
                yield from _asked(item)
            case outline.PlanItem():
                yield from _plan(item.event)
            case outline.Remark():
                kind, text = phrases.remark(item.event)
                yield from _sentence(f"{_SIGNS[kind]} ", text)
            case outline.CallItem():
                yield from _call(item)
            case outline.AgentRun():
                yield from _agent(item)
            case _:
                assert_never(item)


def _call(call: outline.CallItem) -> Iterator[str]:
    yield from _paragraph(f"**Tool {inline(call.name)}** ({call.state})")
    if call.shown_input:
        yield from fenced(phrases.whole_input(call.shown_input), "json")
    for agent in call.agents:
        yield from _agent(agent)
    if call.result is not None and call.result.text.strip() and not call.repeats:
        yield from _paragraph("Its result:")
        yield from fenced(call.result.text, "text")


def _agent(agent: outline.AgentRun) -> Iterator[str]:
    facts = f"{phrases.outcome(agent.status)}, {counted(agent.iterations, 'iteration')}"
    yield from _paragraph(f"**Agent {inline(agent.agent)}** ({facts})")
    yield from _nested(quoted("Its task", agent.task))
    yield from _nested(_steps(agent.steps, "####"))
    yield ""


def _asked(item: outline.QuestionItem) -> Iterator[str]:
    event = item.event
    yield from quoted(f"❓ Question {event.id}", event.text)
    if event.preview.strip() and event.preview not in event.text:
        yield from fenced(event.preview, "diff" if event.diff is not None and event.diff.hunks else "text")
    for number, option in enumerate(event.options, 1):
        yield f"{number}. {inline(option)}"
    if event.options:
        yield ""
    yield from _sentence("", phrases.answer_line(item.answer))


def _plan(event: events.PlanChanged) -> Iterator[str]:
    yield from _paragraph(f"**Plan**, changed by {inline(event.by)}{'' if event.tasks else ': empty'}")
    for task in event.tasks:
        why = f" ({task.reason})" if task.reason else ""
        yield f"- {_BOXES[task.state]} {inline(f'{task.text}{why}')}"
    yield ""


def _paragraph(row: str) -> tuple[str, str]:
    return row, ""


def _sentence(sign: str, text: str) -> Iterator[str]:
    """A sentence of ours with words of others in it; in a quote if these are on several rows."""
    first, *others = text.strip("\n").split("\n")
    yield from _paragraph(f"{sign}{inline(first)}")
    if others:
        yield from quoted("The rest", "\n".join(others))


def quoted(who: str, text: str) -> Iterator[str]:
    """What somebody wrote, in a quote that no text in it can leave."""
    yield from _paragraph(f"**{inline(who)}:**")
    yield from _nested(_only_text("\n".join(sanitize(text).strip("\n").splitlines())).split("\n"))
    yield ""


def _only_text(text: str) -> str:
    """A text whose HTML stays text, and whose pictures stay words, to whoever shows the document.

    In code a sign before them would be seen. So code is left alone, if a parser of Markdown then finds it to be code.
    """
    everywhere = _LIVE.sub(_defused, text)
    if everywhere == text or len(text) > MAX_MARKDOWN:
        return everywhere
    pieces, end = [], 0
    for code in _CODE.finditer(text):
        pieces += [_LIVE.sub(_defused, text[end : code.start()]), code[0]]
        end = code.end()
    but_in_code = "".join([*pieces, _LIVE.sub(_defused, text[end:])])
    return but_in_code if but_in_code == everywhere or is_only_text(but_in_code) else everywhere


def _defused(found: re.Match[str]) -> str:
    if found["before"] is None:
        return "!\\["
    is_escaped = len(found["before"]) % 2  # another backslash would be that of the one before it
    return found[0] if is_escaped else f"{found['before']}\\<"


def _nested(rows: Iterable[str]) -> Iterator[str]:
    return (f"> {row}".rstrip() for row in rows)


def fenced(text: str, language: str) -> Iterator[str]:
    """Rows of a code block that no text in it can end."""
    text = sanitize(text).strip("\n")
    longest = max((len(found) for found in _MARKS.findall(text)), default=2)
    fence = "`" * (longest + 1)
    yield f"{fence}{language}"
    yield from text.split("\n")
    yield fence
    yield ""


def inline(text: str) -> str:
    """A text on one row, in which nothing is Markdown."""
    return _SPECIAL.sub(r"\\\1", " ".join(sanitize(text).split()))
