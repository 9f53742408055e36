"""A session as one HTML page without scripts and external resources. Pure.

The page has a header, the timeline, and the full record in order. Agents are inside the calls that started them. All
text of users and models passes through ``escaping``. The content security policy of the page forbids the browser to run
or load anything. The style sheet is ``page.css``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import assert_never

from chain import events
from chain.export import outline
from chain.export.escaping import escape_text, render_reply
from chain.export.timeline import render_timeline
from chain.text import phrases
from chain.text.wording import count_names, pluralize, truncate
from chain.version import VERSION

MAX_HTML_TITLE = 200
FEW_ROWS = 10
"""The maximum number of rows of a text that is not folded."""
FEW_CHARS = 1_200

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_BOXES = {"PENDING": "☐", "DONE": "☑", "FAILED": "☒"}


def render_html(session: outline.Outline) -> Iterator[str]:
    """Yield the HTML page in pieces."""
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    title = escape_text(truncate(session.title, MAX_HTML_TITLE))
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f'<title>{title} · chain</title>\n<link rel="icon" href="data:,">\n<style>\n{style}</style>\n</head>\n'
        '<body>\n<a class="skip" href="#story">Skip the timeline</a>\n'
        f'<header>\n<h1>{title}</h1>\n<dl class="facts">\n'
    )
    for name, value in session.facts():
        yield f"<div><dt>{name}</dt><dd>{escape_text(value)}</dd></div>\n"
    yield "</dl>\n</header>\n"
    yield from render_timeline(session)
    yield '<main id="story">\n'
    yield from _items(session.preamble)
    for number, run in enumerate(session.runs, 1):
        yield f'<section class="run">\n<h2 id="{run.anchor}">Run {number} '
        iterations = pluralize(run.iterations, "iteration")
        yield f"<small>{phrases.local_time(run.time)} · {iterations} · {run.duration_text}</small></h2>\n"
        if run.task.strip():
            yield f'<div class="user">{_captioned_text(run.task.strip(), "The user")}</div>\n'
        yield from _steps(run)
        yield "</section>\n"
    if session.waiting:
        yield '<section class="run">\n<h2>Still waiting</h2>\n'
        yield from _items(session.waiting)
        yield "</section>\n"
    yield f"</main>\n<footer><p>Made by chain {VERSION}. Times are local to the machine that made it.</p></footer>\n"
    yield "</body>\n</html>\n"


def _steps(agent: outline.AgentRun) -> Iterator[str]:
    level = min(3 + agent.depth, 6)
    for step in agent.steps:
        if step.number:
            tokens = f" · {pluralize(step.tokens, 'token')}" if step.tokens else ""
            yield f'<h{level} class="step" id="{step.anchor}">Iteration {step.number} '
            yield f"<small>{step.duration_text}{tokens}</small></h{level}>\n"
        yield from _items(step.items)


def _items(items: Iterable[outline.Item]) -> Iterator[str]:
    for item in items:
        match item:
            case outline.CallItem():
                yield from _call(item)
            case outline.AgentRun():
                yield from _agent(item)
            case outline.Moment():
                kind, content = _content(item.event, item.urgency)
                yield f'<div class="{kind}" id="{item.anchor}">{content}</div>\n'
            case _:
                assert_never(item)


def _content(event: outline.ShownEvent, urgency: str) -> tuple[str, str]:
    """Return the CSS class and the content of the element for an event."""
    match event:
        case events.Reply():
            return "reply", render_reply(event.text)
        case events.ThinkingDelta():
            return "thought", f"<details><summary>Thought</summary>{_captioned_text(event.text.strip())}</details>"
        case events.UserInterruption():
            skipped = f" · skipped: {count_names(event.tools_skipped)}" if event.tools_skipped else ""
            delivery = phrases.describe_delivery(event, urgency)
            return "user delivered", _captioned_text(event.message, f"{delivery}{skipped}")
        case events.LineQueued():
            return "user", _captioned_text(event.text, f"Line {event.id} for {event.target_agent} ({urgency})")
        case events.Question():
            options = "".join(f"<li>{escape_text(option)}</li>" for option in event.options)
            sandbox = f"Sandbox: {', '.join(event.protections)}" if event.protections else ""
            content = _captioned_text(event.text, f"Question {event.id}") + (f"<ol>{options}</ol>" if options else "")
            return "question", content + _fold(event.preview) + _captioned_text("", sandbox)
        case events.Answer():
            return "question", _captioned_text(phrases.answer_sentence(event), f"Answer to {event.id}")
        case events.PlanChanged():
            done = sum(task.state == "DONE" for task in event.tasks)
            count = f"{done} of {len(event.tasks)} done" if event.tasks else "now empty"
            why = {task.n: f" ({task.reason})" if task.reason else "" for task in event.tasks}
            rows = [f"<li>{_BOXES[task.state]} {escape_text(f'{task.text}{why[task.n]}')}</li>" for task in event.tasks]
            return "plan", f"{_captioned_text('', f'Plan, changed by {event.by} · {count}')}<ol>{''.join(rows)}</ol>"
        case events.Result():
            status = escape_text(phrases.describe_status(event.status).capitalize())
            return "result", f'<p class="{_quality(event.status)}">{status}</p>{_captioned_text(event.result)}'
        case _:
            kind, text = phrases.describe_remark(event)
            summary = event.summary if isinstance(event, events.Compaction) else ""
            return f"remark {kind}", _captioned_text(text) + _fold(summary)


def _call(call: outline.CallItem) -> Iterator[str]:
    short, whole = phrases.short_input(call.input), phrases.full_input(call.input)
    yield (
        f'<div class="tool{" failed" if call.has_failed else ""}" id="{call.anchor}">\n'
        f'<p class="mono"><b>{escape_text(call.name)}</b> {escape_text(short)} <small>{call.state}</small></p>\n'
    )
    if len(whole) > phrases.MAX_INPUT:
        yield f"<details><summary>input</summary><pre>{escape_text(whole)}</pre></details>\n"
    yield from _items(call.agents)
    yield f"{_fold(call.result_text)}</div>\n"


def _agent(agent: outline.AgentRun) -> Iterator[str]:
    status = f'<span class="{_quality(agent.status)}">{phrases.describe_status(agent.status)}</span>'
    end = f' id="e{agent.last_index}"' if agent.status is not None else ""
    yield (
        f'<details class="agent-run" id="{agent.anchor}" open>\n'
        f"<summary><b>{escape_text(agent.agent)}</b> "
        f"<small{end}>{status} · {pluralize(agent.iterations, 'iteration')} · {agent.duration_text}</small></summary>\n"
        f"{_captioned_text(agent.task, 'Its task')}\n"
    )
    yield from _steps(agent)
    yield "</details>\n"


def _quality(status: events.Status | None) -> str:
    return "good" if status == "done" else "bad"


def _captioned_text(text: str, caption: str = "") -> str:
    """Return the HTML of a caption row and of a text below it. An empty caption or text is left out."""
    row = f'<p class="by">{escape_text(caption)}</p>' if caption else ""
    return row + (f'<p class="text">{escape_text(text)}</p>' if text else "")


def _fold(text: str) -> str:
    """Return the HTML of a text, folded if the text is long; empty if the text is blank."""
    text = text.strip("\n")
    if not text.strip():
        return ""
    rows, pre = text.count("\n") + 1, f"<pre>{escape_text(text)}</pre>"
    if rows <= FEW_ROWS and len(text) <= FEW_CHARS:
        return pre
    first = escape_text(text.strip().split("\n")[0][: FEW_CHARS // 10])
    return f"<details><summary>{pluralize(rows, 'row')}: {first}</summary>{pre}</details>"
