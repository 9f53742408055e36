"""The story below the timeline, as HTML: what was said and done, in order, children in their calls. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import assert_never

from chain import events
from chain.export import phrases
from chain.export.escaping import escaped, is_diff, painted, prose, shown
from chain.export.outline import (
    Asked,
    Call,
    Item,
    Landed,
    Planned,
    Run,
    Said,
    Step,
    Thought,
    Told,
    Work,
    repeats,
)
from chain.text.wording import counted

FEW_ROWS = 10
"""Rows of a result that are shown unfolded."""
FEW_CHARS = 1_200
FEW_TASKS = 12
"""Tasks of a plan that is shown whole at each change."""

_BOXES = {"PENDING": "☐", "DONE": "☑", "FAILED": "☒"}


@dataclass(frozen=True, slots=True)
class Body:
    """How the story is told: with the work of children folded or not, and the plan as it became last shown whole."""

    is_unfolded: bool
    last_plan: Planned | None

    def run(self, run: Run) -> Iterator[str]:
        """A run from its query to its result."""
        facts = [counted(run.work.iterations, "iteration"), phrases.duration(run.work.ended - run.time)]
        facts += [counted(run.tokens, "token")] if run.tokens else []
        yield (
            f'<section class="run">\n<h2 id="{run.work.anchor}"><a href="#{run.work.anchor}">Run {run.number}</a> '
            f"<small>{phrases.when(run.time)} · {' · '.join(facts)}</small></h2>\n"
        )
        if run.query.strip():
            words = shown(run.query.strip())
            yield f'<div class="query"><p class="by">The user</p><p class="words">{words}</p></div>\n'
        answer = run.work.answer
        for step in run.work.steps:
            yield from self._step(step, 0, answer)
        yield from _ending(run)
        yield "</section>\n"

    def _step(self, step: Step, depth: int, answer: Said | None) -> Iterator[str]:
        if not step.number:
            yield from self.items(step.items, depth)
            return
        level = min(3 + depth, 6)
        tokens = f" · {counted(step.tokens, 'token')}" if step.tokens else ""
        yield (
            f'<section class="step" id="{step.anchor}">\n<h{level}>'
            f'<a href="#{step.anchor}">Iteration {step.number}</a> '
            f"<small>{phrases.duration(step.ended - step.time)}{tokens}</small></h{level}>\n"
        )
        yield from self.items(step.items, depth, answer)
        yield "</section>\n"

    def items(self, items: Iterable[Item], depth: int, answer: Said | None = None) -> Iterator[str]:
        """What is in an iteration."""
        for item in items:
            match item:
                case Said():
                    final = " final" if item is answer else ""
                    yield f'<div class="said{final}" id="{item.anchor}">{prose(item.text)}</div>\n'
                case Thought():
                    yield from _thought(item)
                case Landed():
                    yield _landed(item)
                case Asked():
                    yield from _asked(item)
                case Planned():
                    yield from _planned(item, is_whole=item is self.last_plan)
                case Told():
                    kind, text = phrases.told(item.event)
                    yield f'<p class="told {kind}" id="{item.anchor}"><span class="words">{shown(text)}</span></p>\n'
                case Call():
                    yield from self._call(item, depth)
                case Work():
                    yield from self._work(item, depth)
                case _:
                    assert_never(item)

    def _call(self, call: Call, depth: int) -> Iterator[str]:
        is_bad = call.input is not None and (call.result is None or call.result.is_error)
        kind = " unstarted" if call.input is None else " failed" if is_bad else ""
        short = phrases.short_input(call.input or {})
        yield (
            f'<div class="tool{kind}" id="{call.anchor}">\n<p class="mono">'
            f'<span class="name">{escaped(call.name)}</span> <span class="input">{escaped(short)}</span> '
            f'<span class="state">{phrases.state(call)}</span></p>\n'
        )
        if short.endswith("…") and call.input is not None:
            whole = shown(phrases.whole_input(call.input))
            body = f'<pre class="text" tabindex="0">{whole}</pre>'
            yield f'<details class="more"><summary>input</summary>{body}</details>\n'
        for work in call.works:
            yield from self._work(work, depth)
        if call.result is not None and not repeats(call):
            yield _folded(call.result.text)
        yield "</div>\n"

    def _work(self, work: Work, depth: int) -> Iterator[str]:
        facts = f"{counted(work.iterations, 'iteration')} · {phrases.duration(work.ended - work.time)}"
        good = "good" if work.status == "done" else "bad"
        yield (
            f'<details class="work" id="{work.anchor}"{" open" if self.is_unfolded else ""}>\n'
            f"<summary><strong>{escaped(work.agent)}</strong> {shown(work.task)} "
            f'<small id="{work.anchor}-end"><span class="{good}">{escaped(phrases.outcome(work.status))}</span>'
            f" · {facts}</small></summary>\n"
        )
        answer = work.answer
        for step in work.steps:
            yield from self._step(step, depth + 1, answer)
        yield "</details>\n"


def _thought(item: Thought) -> Iterator[str]:
    text = item.text
    if text:
        yield (
            f'<details class="thought" id="{item.anchor}"><summary>Thought</summary>'
            f'<p class="words">{shown(text)}</p></details>\n'
        )


def _landed(item: Landed) -> str:
    event = item.event
    skipped = f" · skipped: {escaped(', '.join(event.tools_skipped))}" if event.tools_skipped else ""
    return (
        f'<div class="landed" id="{item.anchor}" role="note"><p class="by">{escaped(phrases.landed(item))}'
        f'<span>{skipped}</span></p><p class="words">{shown(event.message)}</p></div>\n'
    )


def _asked(item: Asked) -> Iterator[str]:
    event = item.event
    yield f'<div class="asked" id="{item.anchor}"><p class="by">Question {escaped(event.id)}</p>'
    yield f'<p class="words">{shown(event.text)}</p>'
    if event.options:
        yield f"<ol>{''.join(f'<li>{shown(option)}</li>' for option in event.options)}</ol>"
    if event.preview.strip() and event.preview not in event.text:
        yield _folded(event.preview)
    if event.protections:
        yield f'<p class="aside">Fenced in: {escaped(", ".join(event.protections))}</p>'
    answer = item.answer
    good = "good" if answer is not None and answer.decision in ("allowed", "answered") else "bad"
    yield f'<p class="answer words"><strong class="{good}">{shown(phrases.answered(answer))}</strong></p></div>\n'


def _planned(item: Planned, *, is_whole: bool) -> Iterator[str]:
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
        box = f'<span title="{escaped(task.state.lower())}">{_BOXES.get(task.state, "☐")}</span>'
        yield f'<li class="{escaped(task.state)}{new}">{box} {shown(task.text)}{why}</li>'
    left = 0 if is_whole else len(event.tasks) - len(changed)
    yield "</ol>"
    if left:
        yield f'<p class="by">and {counted(left, "task")} as before</p>'
    yield "</div>\n"


def _ending(run: Run) -> Iterator[str]:
    result: events.Result | None = run.result
    status = None if result is None else result.status
    good = "good" if status == "done" else "bad"
    yield f'<div class="ending" id="{run.work.anchor}-end"><p><strong class="{good}">'
    yield f"{escaped(phrases.outcome(status).capitalize())}</strong></p>"
    text = "" if result is None else phrases.result_text(result)
    if text and text not in _last_words(run):
        yield f'<p class="words">{shown(text)}</p>'
    yield "</div>\n"


def _last_words(run: Run) -> str:
    """What the main agent said last, which is the result of most runs."""
    texts = [item.text for _, item in run.work.items() if isinstance(item, Said)]
    return texts[-1].strip() if texts else ""


def _folded(text: str) -> str:
    """A text as it came; folded where it is long."""
    text = text.strip("\n")
    if not text.strip():
        return ""
    body = painted(text) if is_diff(text) else shown(text)
    kind = "" if is_diff(text) else ' class="text"'
    rows = text.split("\n")
    if len(rows) <= FEW_ROWS and len(text) <= FEW_CHARS:
        return f"<pre{kind}>{body}</pre>\n"
    first = next(row for row in rows if row.strip())[: FEW_CHARS // 10]
    return (
        f'<details class="more"><summary>{counted(len(rows), "row")}: {escaped(first)}</summary>'
        f'<pre{kind} tabindex="0">{body}</pre></details>\n'
    )
