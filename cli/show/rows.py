"""An event and its context as rows of text for people. Pure and stateless.

Models, tools, files and users write the texts, so every text goes through ``sanitize``, which removes terminal control
sequences.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from chain import events
from chain.events import Event
from chain.text import phrases
from chain.text.phrases import BOXES, duration
from chain.text.wording import MAIN, pluralize
from cli.show import call_rows, question_rows, user_lines
from cli.show.event_context import Context
from cli.show.place import ROW_INDENT, RowPlace, indent_rest, rows_of
from cli.show.signs import MINUS
from cli.show.text_rows import flat, wrap_text

MOST_OF_REFUSAL = 4
"""The maximum number of rows for the reason of a failed call. The end of the reason says how to allow the call."""

_PREVIEW = {"added": "green", "removed": "red", "place": "cyan", "cut": "dim"}


def rows(event: Event, place: RowPlace, context: Context) -> list[str]:
    """Return the rows of an event, without the indentation of ``place``. Streaming text has none."""
    match event:
        case events.Init():
            named = f" {place.sign('·')} ".join((f"chain {event.version}", event.model, event.session))
            return [place.paint("dim", place.one_row(named))]
        case events.RunStarted():
            query = f"{place.sign('▶')} {user_lines.query(event.query)}"
            return place.spans([("bold", query)]) if event.query.strip() else []
        case events.IterationStarted():
            count = f"{event.iteration}/{event.max_iterations}"
            whose = f"{place.name(context.agent)} " if context.agent else ""
            return [place.paint("cyan", place.cut(f"[{whose}{count}]"))]
        case events.Reply():
            said = event.text.strip()
            return indent_rest(wrap_text(f"{place.who}{said}", place.room - len(ROW_INDENT))) if said else []
        case events.ToolCall():
            return [place.line("→", f"{event.name}({_input(event.input, place)})", "cyan")]
        case events.ToolResult():
            return _tool_result(event, place)
        case events.LineQueued(kind="job"):
            return (
                []
                if context.is_readdressed
                else [place.line("●", user_lines.job_end_text(event.text, place.sign), "cyan")]
            )
        case events.LineQueued():
            describe = user_lines.readdressed_spans if context.is_readdressed else user_lines.queued_spans
            return place.spans(describe(event, place.sign))
        case events.LineRefused(origin="door" | "acp"):
            return []  # only the sender can act on it, and has been informed
        case events.LineRefused():
            refused = [place.one_row(f"  {user_lines.one_row(event.text)}")] if event.text.strip() else []
            return [*place.note("⚠️", flat(event.reason), "yellow"), *refused]
        case events.UserInterruption(message=""):
            return [place.line("✓", f"{pluralize(len(event.ids), 'job end')} delivered", "dim")]
        case events.UserInterruption():
            return place.spans(user_lines.delivered_spans(event, context.last_tool, place.sign))
        case events.Receipt(state="delivered", reason=reason) if reason:
            return place.note("↪", flat(reason), "dim")
        case events.Receipt():
            if (settled := user_lines.settled_parts(event)) is None:
                return []
            sign, words, style = settled
            return [place.signed(sign, f"{words}{user_lines.one_row(event.text)}", style)]
        case events.PlanChanged():
            return _plan(event, place)
        case events.Question():
            title = f"{place.sign('❓')} {place.who}{question_rows.title(event)}"
            shown = [place.paint("bold", row) for row in wrap_text(title, place.room)]
            shown += painted_preview(event, place) if question_rows.shows_preview(event) else []
            shown += [place.paint("dim", f"  {row}") for row in wrap_text(question_rows.fence(event), place.room - 2)]
            return [*shown, *question_rows.option_rows(event, place.room)]
        case events.Answer():
            sign, text = question_rows.answer_parts(event)
            return [place.line(sign, text, "green" if sign == "✓" else "yellow")]
        case events.AgentStarted():
            parent = f" (of {place.name(context.parent)})" if context.parent else ""
            return [place.line("▶", f"{place.name(event.name)}{parent}: {event.task}", "cyan")]
        case events.AgentEnded():
            did = context.child
            sign, style = _outcome(event.status)
            took = "" if did is None else f"{did.summary(event)}, {duration(event.time - did.since)}"
            return place.note(sign, took, style) if took else []
        case events.Retry():
            waiting = f"Asking again in {duration(event.delay_s)} (attempt {event.attempt})"
            return place.note("↻", f"{waiting}: {flat(event.reason)}", "yellow")
        case events.Compaction(state="started"):
            return []
        case events.Compaction():
            return place.note("✂", phrases.describe_compaction(event), "cyan" if event.state == "ended" else "yellow")
        case events.Notice():
            return place.note("ℹ", flat(phrases.located_message(event)), "yellow")
        case events.Error():
            return place.note("✗", flat(phrases.located_message(event)), "red")
        case events.Result():
            return _result(event, place, context)
        case events.ThinkingDelta() | events.TextDelta() | events.ToolProgress() | events.UsageReport():
            return []
        case _:
            assert_never(event)


def painted_preview(question: events.Question, place: RowPlace, *, whole: bool = False) -> list[str]:
    """Return the rows of a call's preview, with colours. A long preview is cut in the middle, unless ``whole``."""
    found = question_rows.preview_rows(question, place.room, place.sign("…"), place.sign("↪"), whole=whole)
    found = [(style, row.replace(MINUS, place.sign(MINUS)) if style == "plain" else row) for style, row in found]
    fitting = [(style, place.one_row(row) if style == "cut" else row) for style, row in found]
    return [place.paint(_PREVIEW[style], row) if style in _PREVIEW else row for style, row in fitting]


def _input(input: Mapping[str, Any], place: RowPlace) -> str:
    """Return the arguments of a call as text. Each argument is cut, since it may be a whole file."""
    limit = place.room // 2
    shown = []
    for name, value in input.items():
        text = value[: 4 * limit] if isinstance(value, str) else value
        shown.append(f"{name}={place.cut(json.dumps(text, ensure_ascii=False, default=str), limit)}")
    return ", ".join(shown)


def _tool_result(event: events.ToolResult, place: RowPlace) -> list[str]:
    first = next((row for row in rows_of(event.text) if row.strip()), "")
    took = f" ({duration(event.seconds)})" if event.seconds > 0 else ""
    # A call that never started has no row of its own.
    name = call_rows.label(event.name, call_rows.main_argument(event.name, event.input)) if event.input else event.name
    text = f"{name}{took}" + (f": {first}" if first else "")
    if (
        event.name == call_rows.COMMAND_TOOL
        and not call_rows.is_refusal(event)
        and (said := call_rows.summary_parts(event))
    ):
        dot = f" {place.sign('·')} "
        text = f"{event.name}{took}: {dot.join(said)}"
        if call_rows.has_failed(event):
            return [place.line("✗", text, "red")]
    if not event.is_error:
        return [place.line("✓", text, "green")]
    # The reason of a refusal ends with what would allow the call.
    return place.failure_rows(f"{place.sign('✗')} {place.who}{flat(text)}", MOST_OF_REFUSAL)


def _plan(event: events.PlanChanged, place: RowPlace) -> list[str]:
    if not event.tasks:
        return [place.paint("bold", "Plan: empty")]
    counts = phrases.plan_progress([task.state for task in event.tasks])
    return [place.paint("bold", f"Plan: {counts}{plan_author(event, place)}"), *task_rows(event.tasks, place)]


def plan_author(event: events.PlanChanged, place: RowPlace) -> str:
    """Return a suffix with the name of the child agent that changed the plan; empty for the user and the main agent."""
    return "" if event.by in ("user", MAIN) else f" (by {place.name(event.by)})"


def task_rows(tasks: Sequence[events.TaskView], place: RowPlace) -> list[str]:
    """Return one row for each task."""
    found = []
    for task in tasks:
        why = f" ({task.reason})" if task.reason else ""
        found.append(place.one_row(f"  {place.sign(BOXES.get(task.state, '[ ]'))} {task.n}. {task.text}{why}"))
    return found


def limit_rows(event: events.Result, place: RowPlace, context: Context) -> list[str]:
    """Return the rows that say that a run has used all its iterations, and that Enter continues the run."""
    steps = f"{pluralize(event.iterations, 'step')} done; Enter continues"
    return place.note("⏸", f" {place.sign('·')} ".join([steps, *_used(event, context)]), "yellow")


def _result(event: events.Result, place: RowPlace, context: Context) -> list[str]:
    parts = [phrases.describe_status(event.status), pluralize(event.iterations, "iteration"), *_used(event, context)]
    sign, style = _outcome(event.status)
    return place.note(sign, ", ".join(parts), style)


def _used(event: events.Result, context: Context) -> list[str]:
    parts = [pluralize(event.usage.total_tokens, "token")]
    if event.usage.cost_usd is not None:
        parts.append(phrases.cost(event.usage.cost_usd))
    if context.began is not None and not event.program_ended:  # the price is unknown
        parts.append(duration(event.time - context.began))
    return parts


def _outcome(status: events.Status) -> tuple[str, str]:
    if status == "done":
        return "✓", "green"
    if phrases.was_stopped(status):
        return "⏹", "yellow"
    return "✗", "red"
