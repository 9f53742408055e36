"""A session as one HTML page that needs nothing else: no network, and no script to read it.

What a person sees first is the header and the timeline, which leads to the places in the record below it: what was said
and done, in order, children in their calls. All that is not of this module goes through ``escaping``; beside that, the
page's own policy lets the browser load nothing and run no script but the one that is in the page, by its digest.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from chain.export import outline
from chain.export.escaping import escaped, is_diff, painted, prose, shown
from chain.export.timeline import Bar, Lane, Pin, Timeline, draw
from chain.text import phrases
from chain.text.wording import beginning, counted, how_often
from chain.version import VERSION

FEW_ITERATIONS = 80
"""Up to so many in a session the work of children is unfolded."""
MAX_HTML_TITLE = 200
FEW_ROWS = 10
"""Rows of a result that are shown unfolded."""
FEW_CHARS = 1_200
FEW_TASKS = 12
"""Tasks of a plan that is shown whole at each change."""
MAX_PIN_CHARS = 400
"""Characters of what a pin says; its place in the record has all."""
MOST_NAMES = 4
"""Calls that one mark names."""

_BOXES = {"PENDING": "☐", "DONE": "☑", "FAILED": "☒"}

_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Crect x='1' y='6' width='14' height='7' rx='2' fill='%232f6690'/%3E"
    "%3Ccircle cx='8' cy='4' r='3' fill='%23e0a83c'/%3E%3C/svg%3E"
)

_KEY = (
    '<ul class="key"><li><i></i>iteration</li><li><i class="call"></i>tool call</li>'
    '<li><i class="call failed"></i>failed call</li><li><i class="dot"></i>the user\'s words, by safe point</li>'
    '<li><i class="dot asks"></i>question</li><li><i class="dot ends"></i>stopped or failed</li></ul>\n'
)


def html(session: outline.Outline) -> Iterator[str]:
    """The page, in pieces."""
    style, script = (Path(__file__).with_name(f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    title = beginning(session.title, MAX_HTML_TITLE)
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f'<title>{escaped(title)} · chain</title>\n<link rel="icon" href="{_ICON}">\n'
        f'<style>\n{style}</style>\n</head>\n<body>\n<a class="skip" href="#story">Skip the timeline</a>\n'
    )
    named = f' <span class="mono">{escaped(session.init.session)}</span>' if session.init is not None else ""
    yield f'<header>\n<p class="kind">chain session{named}</p>\n'
    yield f'<h1>{escaped(title)}</h1>\n<dl class="facts">\n'
    for name, value in _facts(session):
        yield f"<div><dt>{escaped(name)}</dt><dd>{value}</dd></div>\n"
    yield "</dl>\n</header>\n"
    yield from _timeline(session)
    yield '<main id="story">\n<div class="tools" hidden></div>\n'
    few = sum(agent.iterations for agent in session.agents()) <= FEW_ITERATIONS
    plans = (item for agent in session.agents() for item in agent.items() if isinstance(item, outline.PlanItem))
    record = _Record(is_unfolded=few, last_plan=max(plans, key=lambda plan: plan.at, default=None))
    yield from record.items(session.before)
    for run in session.runs:
        yield from record.run(run)
    yield "</main>\n"
    yield f"<footer><p>Made by chain {VERSION}. Times are those of the machine that made it.</p></footer>\n"
    yield f"<script>{script}</script>\n</body>\n</html>\n"


def _facts(session: outline.Outline) -> Iterator[tuple[str, str]]:
    """What a session is known by: names, and values as HTML."""
    init = session.init
    if began := session.times[0] if session.times else init.time if init else None:
        lasted = [run.seconds for run in session.runs if not run.is_lost]
        more_than = "" if len(lasted) == len(session.runs) else "more than "
        yield "Began", f'<time datetime="{phrases.iso(began)}">{phrases.when(began)}</time>'
        yield "At work for", f"{more_than}{phrases.duration(sum(lasted))}" if lasted else "an unknown time"
    if init is not None:
        yield "Workspace", f"<span class=mono>{escaped(init.workspace)}</span>"
        yield "Model", escaped(init.model)
    agents = list(session.agents())
    children = {agent.agent for agent in agents if agent.depth}
    bad = sum(run.status != "done" for run in session.runs)
    how = phrases.outcome(session.runs[0].status) if len(session.runs) == 1 else f"{counted(bad, 'run')} not done"
    aside = f' <span class="aside">({escaped(how)})</span>' if bad else ""
    yield "Runs", f"{len(session.runs):,}{aside}"
    yield "Iterations", f"{sum(agent.iterations for agent in agents):,}"
    yield "Interruptions", f"{sum(isinstance(item, outline.Delivered) for agent in agents for item in agent.items()):,}"
    if children:
        yield "Other agents", f"{len(children):,}"
    yield "Tokens", f"{session.tokens:,}"
    if session.cost_usd is not None:
        yield "Cost", phrases.cost(session.cost_usd)


# ------------------------------------------------------------------------------------------------------- the timeline


def _timeline(session: outline.Outline) -> Iterator[str]:
    """Lanes of bars, marks and pins, each of which leads to its place; nothing if there is nothing to draw."""
    drawn = draw(session)
    if not any(lane.bars for lane in drawn.lanes):
        return
    yield '<section class="timeline" aria-labelledby="timeline">\n<div>\n<h2 id="timeline">Timeline</h2>\n'
    yield _KEY
    for number, lane in enumerate(drawn.lanes):
        yield from _lane(lane, drawn, is_first=number == 0)
    if drawn.is_timed:
        first, last = (phrases.when(moment, "%H:%M:%S") for moment in (session.times[0], session.times[-1]))
        yield f'<div class="axis"><div><span>{first}</span><span>{last}</span></div></div>\n'
        if drawn.silences:
            yield '<p class="note">Long silences are drawn shorter than they were (dotted).</p>\n'
    if drawn.left_out:
        yield f'<p class="note">{counted(drawn.left_out, "more agent")} in the story below.</p>\n'
    yield "</div>\n</section>\n"


def _lane(lane: Lane, drawn: Timeline, *, is_first: bool) -> Iterator[str]:
    name = escaped(lane.first.agent)
    levels = max((pin.level + 1 for pin in lane.pins), default=0)
    yield (
        f'<div class="lane" style="--depth:{lane.first.depth};--levels:{levels}">\n'
        f'<div class="agent"><a href="#{lane.first.anchor}" title="{name}">{name}</a></div>\n<div class="track">\n'
    )
    for left, run in drawn.starts if len(drawn.starts) > 1 else ():
        titled = f' title="Run {run.number}"' if is_first else ""
        yield f'<span class="start" style="left:{left:.2f}%"{titled}></span>\n'
    for silence in drawn.silences if is_first else ():
        yield (
            f'<span class="silence" style="left:{silence.left:.2f}%;width:{silence.width:.2f}%" '
            f'title="{phrases.duration(silence.seconds)} without a word"></span>\n'
        )
    for bar in lane.bars:
        yield _link("bar", bar, _iterations(bar, lane.first.agent))
    yield from map(_mark, lane.marks)
    yield from map(_pin, lane.pins)
    yield "</div>\n</div>\n"
    if lane.left_out:
        yield f'<p class="note">{counted(lane.left_out, "more sign")} of {name} in the story below.</p>\n'


def _link(kind: str, bar: Bar[outline.Iteration] | Bar[outline.CallItem], about: str) -> str:
    return (
        f'<a class="{kind}" href="#{bar.parts[0].anchor}" style="left:{bar.left:.2f}%;width:{bar.width:.2f}%" '
        f'title="{escaped(about)}" aria-label="{escaped(about)}"></a>\n'
    )


def _iterations(bar: Bar[outline.Iteration], agent: str) -> str:
    steps = bar.parts
    if len(steps) == 1:
        return f"{agent}, iteration {steps[0].number}: {steps[0].took}"
    took = phrases.duration(sum(step.seconds for step in steps if not step.is_lost))
    took = f"more than {took}" if any(step.is_lost for step in steps) else took
    return f"{agent}, iterations {steps[0].number} to {steps[-1].number} ({len(steps)}): {took}"


def _mark(mark: Bar[outline.CallItem]) -> str:
    calls = mark.parts
    names = list(dict.fromkeys(call.name for call in calls))
    about = f"{len(calls)} calls: {', '.join(names[:MOST_NAMES])}{', …' if len(names) > MOST_NAMES else ''}"
    if len(calls) == 1:
        about = f"{names[0]}: {calls[0].state}"
    failed = " failed" if any(call.result is not None and call.result.is_error for call in calls) else ""
    return _link(f"call{' unstarted' if all(call.input is None for call in calls) else failed}", mark, about)


def _pin(pin: Pin) -> str:
    what, words = pin.what, ""
    anchor, kind, sign = what.anchor, "", ""
    match what:
        case outline.Delivered(event=event):
            sign, words = event.point, event.message
            title = phrases.delivered(event, what.urgency)
        case outline.QuestionItem(event=event):
            kind, sign, words = "asks", "?", event.text
            title = f"Question {event.id}: {phrases.answer_line(what.answer)}"
        case outline.AgentRun():
            kind, sign, anchor = "ends", "■" if phrases.was_stopped(what.status) else "!", f"{anchor}-end"
            title = f"{what.agent}: {phrases.outcome(what.status)}"
        case _:
            assert_never(what)
    words = beginning(words, MAX_PIN_CHARS)
    late = " late" if pin.left > 50 else ""
    return (
        f'<a class="pin {kind}{late}" href="#{anchor}" style="left:{pin.left:.2f}%;--level:{pin.level}" '
        f'aria-label="{escaped(f"{title}. {words}")}">{escaped(sign)}'
        f'<span class="tip"><b>{escaped(title)}</b>{escaped(words)}</span></a>\n'
    )


# --------------------------------------------------------------------------------------------------------- the record


@dataclass(frozen=True, slots=True)
class _Record:
    """With the work of children folded or not, and the plan as it became last shown whole."""

    is_unfolded: bool
    last_plan: outline.PlanItem | None

    def run(self, run: outline.SessionRun) -> Iterator[str]:
        facts = [counted(run.iterations, "iteration"), run.took]
        facts += [counted(run.tokens, "token")] if run.tokens else []
        yield (
            f'<section class="run">\n<h2 id="{run.anchor}"><a href="#{run.anchor}">Run {run.number}</a> '
            f"<small>{phrases.when(run.time)} · {' · '.join(facts)}</small></h2>\n"
        )
        if run.task.strip():
            words = shown(run.task.strip())
            yield f'<div class="query"><p class="by">The user</p><p class="words">{words}</p></div>\n'
        yield from self._steps(run)
        status = "good" if run.status == "done" else "bad"
        yield f'<div class="ending" id="{run.anchor}-end"><p><strong class="{status}">'
        yield f"{escaped(phrases.outcome(run.status).capitalize())}</strong></p>"
        text = "" if run.result is None else phrases.beyond_replies(run.result)
        # The result of most runs is what the main agent said last.
        said = [item.text.strip() for item in run.items() if isinstance(item, outline.ReplyItem)]
        if text and not (said and text in said[-1]):
            yield f'<p class="words">{shown(text)}</p>'
        yield "</div>\n</section>\n"

    def _steps(self, work: outline.AgentRun) -> Iterator[str]:
        answer, level = work.answer, min(3 + work.depth, 6)
        for step in work.steps:
            if not step.number:
                yield from self.items(step.items)
                continue
            tokens = f" · {counted(step.tokens, 'token')}" if step.tokens else ""
            yield (
                f'<section class="step" id="{step.anchor}">\n<h{level}>'
                f'<a href="#{step.anchor}">Iteration {step.number}</a> '
                f"<small>{step.took}{tokens}</small></h{level}>\n"
            )
            yield from self.items(step.items, answer)
            yield "</section>\n"

    def items(self, items: Iterable[outline.Item], answer: outline.ReplyItem | None = None) -> Iterator[str]:
        for item in items:
            match item:
                case outline.ReplyItem():
                    final = " final" if item is answer else ""
                    yield f'<div class="said{final}" id="{item.anchor}">{prose(item.text)}</div>\n'
                case outline.ThoughtItem():
                    if text := item.text.strip():
                        yield (
                            f'<details class="thought" id="{item.anchor}"><summary>Thought</summary>'
                            f'<p class="words">{shown(text)}</p></details>\n'
                        )
                case outline.Delivered():
                    yield _delivered(item)
                case outline.QuestionItem():
                    yield from _asked(item)
                case outline.PlanItem():
                    yield from _planned(item, is_whole=item is self.last_plan)
                case outline.Remark():
                    kind, text = phrases.remark(item.event)
                    yield f'<p class="told {kind}" id="{item.anchor}"><span class="words">{shown(text)}</span></p>\n'
                case outline.CallItem():
                    yield from self._call(item)
                case outline.AgentRun():
                    yield from self._agent(item)
                case _:
                    assert_never(item)

    def _call(self, call: outline.CallItem) -> Iterator[str]:
        is_bad = call.input is not None and (call.result is None or call.result.is_error)
        kind = " unstarted" if call.input is None else " failed" if is_bad else ""
        short = phrases.short_input(call.shown_input)
        yield (
            f'<div class="tool{kind}" id="{call.anchor}">\n<p class="mono">'
            f'<span class="name">{escaped(call.name)}</span> <span class="input">{escaped(short)}</span> '
            f'<span class="state">{call.state}</span></p>\n'
        )
        if short.endswith("…"):
            body = f'<pre class="text" tabindex="0">{shown(phrases.whole_input(call.shown_input))}</pre>'
            yield f'<details class="more"><summary>input</summary>{body}</details>\n'
        for agent in call.agents:
            yield from self._agent(agent)
        if call.result is not None and not call.repeats:
            yield _folded(call.result.text)
        yield "</div>\n"

    def _agent(self, agent: outline.AgentRun) -> Iterator[str]:
        facts = f"{counted(agent.iterations, 'iteration')} · {agent.took}"
        good = "good" if agent.status == "done" else "bad"
        yield (
            f'<details class="work" id="{agent.anchor}"{" open" if self.is_unfolded else ""}>\n'
            f"<summary><strong>{escaped(agent.agent)}</strong> {shown(agent.task)} "
            f'<small id="{agent.anchor}-end"><span class="{good}">{escaped(phrases.outcome(agent.status))}</span>'
            f" · {facts}</small></summary>\n"
        )
        yield from self._steps(agent)
        yield "</details>\n"


def _delivered(item: outline.Delivered) -> str:
    event = item.event
    skipped = f" · skipped: {escaped(how_often(event.tools_skipped))}" if event.tools_skipped else ""
    where = phrases.delivered(event, item.urgency)
    return (
        f'<div class="landed" id="{item.anchor}" role="note"><p class="by">{escaped(where)}'
        f'<span>{skipped}</span></p><p class="words">{shown(event.message)}</p></div>\n'
    )


def _asked(item: outline.QuestionItem) -> Iterator[str]:
    event = item.event
    yield f'<div class="asked" id="{item.anchor}"><p class="by">Question {escaped(event.id)}</p>'
    yield f'<p class="words">{shown(event.text)}</p>'
    if event.options:
        yield f"<ol>{''.join(f'<li>{shown(option)}</li>' for option in event.options)}</ol>"
    if event.preview.strip() and event.preview not in event.text:
        yield _folded(event.preview)
    if event.protections:
        yield f'<p class="aside">Fenced in: {escaped(", ".join(event.protections))}</p>'
    good = "good" if item.answer is not None and item.answer.decision in ("allowed", "answered") else "bad"
    answer = shown(phrases.answer_line(item.answer))
    yield f'<p class="answer words"><strong class="{good}">{answer}</strong></p></div>\n'


def _planned(item: outline.PlanItem, *, is_whole: bool) -> Iterator[str]:
    """The plan after a change; of a long one only what changed, or a page would grow with changes times tasks."""
    event = item.event
    done = sum(task.state == "DONE" for task in event.tasks)
    yield f'<div class="plan" id="{item.anchor}"><p class="by">Plan, changed by {escaped(event.by)}'
    yield f" · {done} of {len(event.tasks)} done</p>" if event.tasks else " · now empty</p>"
    before = {task.n: (task.text, task.state) for task in item.before}
    changed = {task.n for task in event.tasks if before.get(task.n) != (task.text, task.state)}
    is_whole = is_whole or len(event.tasks) <= FEW_TASKS
    yield "<ol>"
    for task in event.tasks:
        if task.n not in changed and not is_whole:
            continue
        new = " new" if task.n in changed else ""
        why = f' <small class="aside">({shown(task.reason)})</small>' if task.reason else ""
        box = f'<span title="{escaped(task.state.lower())}">{_BOXES[task.state]}</span>'
        yield f'<li class="{escaped(task.state)}{new}">{box} {shown(task.text)}{why}</li>'
    yield "</ol>"
    if left := 0 if is_whole else len(event.tasks) - len(changed):
        yield f'<p class="by">and {counted(left, "task")} as before</p>'
    yield "</div>\n"


def _folded(text: str) -> str:
    """A text as it came; folded where it is long."""
    text = text.strip("\n")
    if not text.strip():
        return ""
    body, kind = (painted(text), "") if is_diff(text) else (shown(text), ' class="text"')
    rows = text.split("\n")
    if len(rows) <= FEW_ROWS and len(text) <= FEW_CHARS:
        return f"<pre{kind}>{body}</pre>\n"
    first = next(row for row in rows if row.strip())[: FEW_CHARS // 10]
    return (
        f'<details class="more"><summary>{counted(len(rows), "row")}: {escaped(first)}</summary>'
        f'<pre{kind} tabindex="0">{body}</pre></details>\n'
    )
