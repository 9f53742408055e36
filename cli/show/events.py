"""Events as rows of text for people: the progress of a headless run, and what scrolls above a prompt. Pure.

What is shown here was written by models, tools, files and users. Every text that is not this module's own goes through
``text.clean``, which removes whatever a terminal would obey instead of showing it.

``Renderer`` shows progress beside an answer that the caller prints. It holds back a reply without tool calls, which is
probably the run's answer, until an event shows that it was not: another iteration, lines that were delivered after it,
a tool call, or a result with another text. Events that do not decide this (a receipt, token usage) leave it held back.

``live.LiveRenderer`` is for a terminal, where replies are shown as they stream and nothing else prints the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, assert_never

from chain import events
from chain.events import Event
from chain.lines.parse import is_stop
from chain.wording import MAIN, STOPPED_BY_RULE, counted
from cli.show import questions
from cli.show.progress import Progress
from cli.show.text import Flow, clean, cut, flat

MAX_ROWS = 20
"""Rows shown of an interruption or a progress report: a pasted file would push everything else off the screen."""
MAX_WRAP = 5
"""How many rows of the terminal one of these rows may fill, for the same reason."""

_ASCII = {
    "📤": ">",
    "⏳": "...",
    "⚡": "!",
    "🔔": "!",
    "⚠️": "!",
    "✓": "ok:",
    "✗": "failed:",
    "⏹": "stopped:",
    "▶": ">>",
    "→": "->",
    "↪": "->",
    "↩": "<-",
    "↻": "!",
    "⏭": ">>",
    "ℹ": "note:",
    "❓": "??",
    "[✓]": "[x]",
    "[✗]": "[-]",
    "[ ]": "[ ]",
    "…": "...",
    "·": "-",
    "│": "|",
}

_SGR = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}

_PREVIEW = {"added": "green", "removed": "red", "place": "cyan", "cut": "dim"}

_BOXES = {"PENDING": "[ ]", "DONE": "[✓]", "FAILED": "[✗]"}

_GUIDANCE = {
    "focus_query": "focus",
    "skip_source": "skip",
    "add_source": "also check",
    "drop_criterion": "ignore",
    "preference": "prefer",
}


_ENDS_THOUGHT = (
    events.TextDelta,
    events.Reply,
    events.Retry,
    events.ToolCall,
    events.UserInterruption,
    events.RunStarted,
    events.IterationStarted,
    events.Error,
    events.Result,
)


class Renderer:
    """Turns the events of a chain into rows, in order; keeps what later rows need of earlier events."""

    shows_answers = False
    """Whether the answers are among the rows, so that nobody else has to print them."""

    def __init__(self, *, color: bool, ascii: bool, width: int = 80) -> None:
        self._color = color
        self._ascii = ascii
        self.width = max(width, 20)
        self._thinking: dict[str, Flow] = {}
        self._held: dict[str, str] = {}
        self._last_tool: dict[str, str] = {}
        self._started: dict[str, float] = {}
        self._ended: set[str] = set()
        self._progress: dict[str, Progress] = {}

    def lines(self, event: Event) -> list[str]:
        """The rows to show for this event, without newlines; often none."""
        rows = [*self._finish_thinking(event), *self._release_held(event), *self._rows(event)]
        if event.agent == MAIN:
            return rows
        return [f"  {flat(event.agent)} {self._sign('│')} {row}" for row in rows]

    def ending(self, event: events.Result) -> tuple[list[str], list[str]]:
        """The rows of a result in two parts: the answer stands between them."""
        return [*self._finish_thinking(event), *self._release_held(event)], self._rows(event)

    def _rows(self, event: Event) -> list[str]:
        match event:
            case events.Init():
                named = f" {self._sign('·')} ".join((f"chain {event.version}", event.model, event.session))
                return [self._paint("dim", self._one_row(named))]
            case events.RunStarted():
                self._started[event.agent] = event.time
                self._ended.discard(event.agent)
                return [self._line("▶", event.query, "bold")] if event.query.strip() else []
            case events.IterationStarted():
                self._ended.discard(event.agent)
                self._last_tool.pop(event.agent, None)
                return [self._paint("cyan", f"[{event.iteration}/{event.max_iterations}]")]
            case events.ThinkingDelta():
                return self._think(event)
            case events.TextDelta():
                return self._delta(event)
            case events.UsageReport():
                return []
            case events.Reply():
                return self._reply(event)
            case events.ToolCall():
                self._last_tool[event.agent] = event.name
                return [self._line("→", f"{event.name}({self._input(event.input)})", "cyan")]
            case events.ToolProgress():
                return self._progressed(event)
            case events.ToolResult():
                return [*self._last_progress(event), self._tool_result(event)]
            case events.LineQueued():
                return self._queued(event)
            case events.LineRefused():
                return [*self._note("⚠️", flat(event.reason), "yellow"), *self._indented(event.text)]
            case events.UserInterruption():
                return self._interruption(event)
            case events.Receipt():
                return self._receipt(event)
            case events.PlanChanged():
                return self._plan(event)
            case events.Question():
                return self._question(event)
            case events.Answer():
                sign, text = questions.outcome(event)
                return [self._line(sign, text, "green" if sign == "✓" else "yellow")]
            case events.Retry():
                return self._retry(event)
            case events.Notice():
                return self._note("ℹ", _with_place(event), "yellow")
            case events.Error():
                return self._note("✗", _with_place(event), "red")
            case events.Result():
                return self._result(event)
            case _:
                assert_never(event)

    def _think(self, event: events.ThinkingDelta) -> list[str]:
        flow = self._thinking.setdefault(event.agent, Flow(self.width))
        return [self._paint("dim", row) for row in flow.add(event.text) if row]

    def _finish_thinking(self, event: Event) -> list[str]:
        # A queued line or a note does not end a thought.
        if not isinstance(event, _ENDS_THOUGHT) or event.agent not in self._thinking:
            return []
        rows = self._thinking.pop(event.agent).end()
        return [] if isinstance(event, events.Retry) else [self._paint("dim", row) for row in rows if row]

    def _delta(self, event: events.TextDelta) -> list[str]:
        """No rows: the whole reply is an event as well."""
        return []

    def _reply(self, event: events.Reply) -> list[str]:
        if event.tool_calls == 0:
            self._held[event.agent] = event.text
            return []
        return _rows_of(event.text)

    def _retry(self, event: events.Retry) -> list[str]:
        waiting = f"Asking again in {_seconds(event.delay_s)} (attempt {event.attempt})"
        return self._note("↻", f"{waiting}: {flat(event.reason)}", "yellow")

    def _note(self, sign: str, text: str, style: str) -> list[str]:
        """A text that is shown in full, however long it is."""
        return [self._paint(style, f"{self._sign(sign)} {text}")]

    def _release_held(self, event: Event) -> list[str]:
        """The reply that was held back, if this event shows that it was not the answer."""
        if event.agent not in self._held:
            return []
        match event:
            case events.Result():
                held = self._held.pop(event.agent)
                answer, text = event.result.strip(), held.strip()
                # The answer of a stopped run is the text that the stop cut, and after it what was found.
                has_it = answer.startswith(text) if event.status.startswith("cancelled") else answer == text
                return [] if has_it else _rows_of(held)
            case events.IterationStarted() | events.RunStarted() | events.UserInterruption() | events.ToolCall():
                return _rows_of(self._held.pop(event.agent))
            case _:
                return []

    def _progressed(self, event: events.ToolProgress) -> list[str]:
        # What writes over its own row, as progress bars do, has said something each time.
        said = [row for row in _rows_of(event.text.replace("\r", "\n")) if row.strip()]
        rows = self._progress.setdefault(event.id, Progress()).add(said)
        return [self._paint("dim", self._one_row(f"  {row}")) for row in rows]

    def _last_progress(self, event: events.ToolResult) -> list[str]:
        progress = self._progress.pop(event.id, None)
        rows = [] if progress is None else progress.end(self._sign("…"))
        return [self._paint("dim", self._one_row(f"  {row}")) for row in rows]

    def _question(self, event: events.Question) -> list[str]:
        rows = [self._paint("bold", row) for row in self._wrapped(f"{self._sign('❓')} {questions.title(event)}")]
        # One row that the title has already says nothing more.
        rows += [] if event.preview in event.text else self.preview(event.preview)
        return [*rows, *(row for option in questions.options(event) for row in self._wrapped(option))]

    def hint(self, event: events.Question) -> list[str]:
        """How to answer a question that is open."""
        flow = Flow(self.width - 2)
        rows = [*flow.add(questions.hint(event).replace("·", self._sign("·"))), *flow.end()]
        return [self._paint("dim", self._one_row(f"  {row}")) for row in rows]

    def preview(self, text: str, *, whole: bool = False) -> list[str]:
        """The rows of what a call would do; cut in the middle where it is long, unless it is to be ``whole``."""
        rows = questions.preview_rows(text, self.width, self._sign("…"), whole=whole)
        return [self._paint(_PREVIEW[style], row) if style in _PREVIEW else row for style, row in rows]

    def _tool_result(self, event: events.ToolResult) -> str:
        first = next((row for row in _rows_of(event.text) if row.strip()), "")
        took = f" ({_seconds(event.seconds)})" if event.seconds > 0 else ""
        text = f"{event.name}{took}" + (f": {first}" if first else "")
        return self._line("✗", text, "red") if event.is_error else self._line("✓", text, "green")

    def _queued(self, event: events.LineQueued) -> list[str]:
        target = "" if event.target_agent == MAIN else f" {event.target_agent}"
        rows = [self._line("📤", f"Interrupting{target}: {event.text}", "bold")]
        if (guidance := event.adjustment) is not None:
            rows.append(self._line("↪", f"{_GUIDANCE.get(guidance.type, guidance.type)}: {guidance.value}", "cyan"))
        if event.urgency == "now":
            rows.append(self._line("⚡", "Injecting now", "yellow"))
        elif event.urgency == "urgent":
            rows.append(self._line("⚡", "Will inject ASAP (may skip tools)", "yellow"))
        elif event.kind == "follow-up":
            rows.append(self._line("⏳", "Will start when this run has ended", "dim"))
        else:
            rows.append(self._line("⏳", "Will inject at next safe point", "dim"))
        return rows

    def _interruption(self, event: events.UserInterruption) -> list[str]:
        target = "" if event.target_agent == MAIN else f" of {flat(event.target_agent)}"
        when = f"at iteration {event.iteration}" if event.iteration else "before iteration 1"
        banner = f"[{self._sign('🔔')} INTERRUPTION{target} {when}]"
        where = {"start": "at the start", "A": "at the start", "B": "after the reply", "N": "at once"}.get(
            event.point, "before a tool"
        )
        if event.point in ("C", "D") and event.agent in self._last_tool:
            where = f"after {self._last_tool[event.agent]}"
        rows = [self._paint("bold", banner), *self._first_rows(event.message)]
        if event.tools_skipped:
            rows.append(self._line("⏭", f"Skipped: {', '.join(event.tools_skipped)}", "yellow"))
        return [*rows, self._line("✓", f"Message injected ({where}, {_seconds(event.waited_s)})", "green")]

    def _receipt(self, event: events.Receipt) -> list[str]:
        """Rows for lines that did not reach the model; the others are shown by their own events."""
        why = f" ({event.reason})" if event.reason else ""
        match event.state:
            case "returned":
                return [self._line("↩", f"Returned{why}: {event.text}", "yellow")]
            case "unsent":
                return [self._line("↩", f"Never sent{why}: {event.text}", "yellow")]
            case "dropped":
                return [self._line("↩", f"Dropped{why}: {event.text}", "dim")]
            case "handled" if is_stop_receipt(event):
                return [self._line("⏹", event.text, "yellow")]
            case "handled" if event.reason:
                return [self._line("✗", f"Not done{why}: {event.text}", "yellow")]
            case "handled":
                return [self._line("✓", f"Done{why}: {event.text}", "green")]
            case "queued" | "delivered" | "refused":
                return []
            case _:
                assert_never(event.state)

    def _plan(self, event: events.PlanChanged) -> list[str]:
        if not event.tasks:
            return [self._paint("bold", "Plan: empty")]
        states = [task.state for task in event.tasks]
        counts = f"{states.count('DONE')} done, {states.count('FAILED')} failed, {states.count('PENDING')} pending"
        rows = [self._paint("bold", f"Plan: {counts}")]
        for task in event.tasks:
            why = f" ({task.reason})" if task.reason else ""
            rows.append(self._one_row(f"  {self._sign(_BOXES.get(task.state, '[ ]'))} {task.n}. {task.text}{why}"))
        return rows

    def _result(self, event: events.Result) -> list[str]:
        # The last result may come twice, for its run and for the process: one summary is enough.
        if event.agent in self._ended:
            return []
        self._ended.add(event.agent)
        parts = [
            event.status.replace("_", " "),
            counted(event.iterations, "iteration"),
            counted(event.usage.total_tokens, "token"),
        ]
        if event.usage.cost_usd is not None:
            parts.append(f"${event.usage.cost_usd:.4f}")
        if event.agent in self._started:
            parts.append(_seconds(event.time - self._started.pop(event.agent)))
        if event.status == "done":
            sign, style = "✓", "green"
        elif event.status.startswith("cancelled") or event.status == "interrupted":
            sign, style = "⏹", "yellow"
        else:
            sign, style = "✗", "red"
        return [self._line(sign, ", ".join(parts), style), *self._trace(event)]

    def _trace(self, event: events.Result) -> list[str]:
        return [self._paint("dim", f"  trace: {flat(event.trace_path)}")] if event.trace_path else []

    def _input(self, input: Mapping[str, Any]) -> str:
        """The arguments of a call, each cut, since one may be a whole file."""
        limit = self.width // 2
        shown = []
        for name, value in input.items():
            text = value[: 4 * limit] if isinstance(value, str) else value
            shown.append(f"{name}={self._cut(json.dumps(text, ensure_ascii=False, default=str), limit)}")
        return ", ".join(shown)

    def _wrapped(self, text: str) -> list[str]:
        flow = Flow(self.width)
        return [*flow.add(text), *flow.end()]

    def _first_rows(self, text: str) -> list[str]:
        rows = [row for row in _rows_of(text) if row.strip()]
        shown = [self._cut(row, MAX_WRAP * self.width) for row in rows[:MAX_ROWS]]
        left = len(rows) - MAX_ROWS
        return [*shown, f"{self._sign('…')} {counted(left, 'more line')}"] if left > 0 else shown

    def _indented(self, text: str) -> list[str]:
        return [self._one_row(f"  {flat(text)}")] if text.strip() else []

    def _line(self, sign: str, text: str, style: str) -> str:
        """A sign and a text on one row that fits."""
        return self._paint(style, self._cut(f"{self._sign(sign)} {flat(text)}", self.width))

    def _one_row(self, row: str) -> str:
        """One row with its indentation, cut to fit."""
        return self._cut(clean(row).replace("\n", " ").expandtabs(4), self.width)

    def _cut(self, row: str, width: int) -> str:
        """At most ``width`` columns of a row, with a mark at the end if it was cut."""
        return cut(row, width, self._sign("…"))

    def _sign(self, sign: str) -> str:
        return _ASCII[sign] if self._ascii else sign

    def _paint(self, style: str, text: str) -> str:
        return f"\x1b[{_SGR[style]}m{text}\x1b[0m" if self._color and text else text


def _rows_of(text: str) -> list[str]:
    """The rows of a text, without the blank ones around it."""
    return clean(text).strip("\n").rstrip().split("\n") if text.strip() else []


def is_stop_receipt(event: events.Receipt) -> bool:
    """Whether the line was a stop. A receipt has no kind, and no other event describes a stop, so its text is read."""
    return event.state == "handled" and (event.reason == STOPPED_BY_RULE or is_stop(event.text))


def _seconds(seconds: float) -> str:
    seconds = max(seconds, 0.0)
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60)} s"


def _with_place(event: events.Notice | events.Error) -> str:
    place = ":".join(str(part) for part in (event.file, event.line) if part is not None)
    return flat(f"{place}: {event.message}" if place else event.message)
