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
from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from chain import events
from chain.events import Event
from chain.wording import MAIN, counted
from cli.show import lines, questions, signs
from cli.show.progress import Progress
from cli.show.spans import Look, Span, lines_in, wrap_all
from cli.show.text import Flow, clean, cut, flat, in_rows, seconds

INDENT = "  "
"""Before the rows of one text that follow its first."""

_PREVIEW = {"added": "green", "removed": "red", "place": "cyan", "cut": "dim"}

_BOXES = {"PENDING": "[ ]", "DONE": "[✓]", "FAILED": "[✗]"}

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

    @property
    def drawn_tail(self) -> str:
        """The unfinished rows below the others, where they can be erased again."""
        return ""

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

    def resize(self, width: int) -> list[str]:
        """Adapt to another width. Returns the rows that no longer fit into the unfinished one."""
        self.width = max(width, 20)
        return []

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
                query = f"{self._sign('▶')} {lines.query(event.query)}"
                return self._spans([("bold", query)]) if event.query.strip() else []
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
                return self._spans(lines.queued(event, self._sign))
            case events.LineRefused():
                return [*self._note("⚠️", flat(event.reason), "yellow"), *self._indented(event.text)]
            case events.UserInterruption():
                return self._spans(lines.delivered(event, self._last_tool.get(event.agent, ""), self._sign))
            case events.Receipt():
                settled = lines.settled(event)
                return [] if settled is None else [self._signed(*settled)]
            case events.PlanChanged():
                return self._plan(event)
            case events.Question():
                return self._question(event)
            case events.Answer():
                sign, text = questions.outcome(event)
                return [self._line(sign, text, "green" if sign == "✓" else "yellow")]
            case events.AgentStarted():
                return [self._line("▶", f"{event.name}: {flat(event.task)}", "cyan")]
            case events.AgentEnded():
                return [self._line("◀", f"{event.name}: {event.status}", "cyan")]
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
        waiting = f"Asking again in {seconds(event.delay_s)} (attempt {event.attempt})"
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
        rows = in_rows(questions.hint(event).replace("·", self._sign("·")), self.width - 2)
        return [self._paint("dim", self._one_row(f"  {row}")) for row in rows]

    def preview(self, text: str, *, whole: bool = False) -> list[str]:
        """The rows of what a call would do; cut in the middle where it is long, unless it is to be ``whole``."""
        rows = questions.preview_rows(text, self.width, self._sign("…"), whole=whole)
        return [self._paint(_PREVIEW[style], row) if style in _PREVIEW else row for style, row in rows]

    def _tool_result(self, event: events.ToolResult) -> str:
        first = next((row for row in _rows_of(event.text) if row.strip()), "")
        took = f" ({seconds(event.seconds)})" if event.seconds > 0 else ""
        text = f"{event.name}{took}" + (f": {first}" if first else "")
        return self._line("✗", text, "red") if event.is_error else self._line("✓", text, "green")

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
            parts.append(seconds(event.time - self._started.pop(event.agent)))
        if event.status == "done":
            sign, style = "✓", "green"
        elif event.status.startswith("cancelled") or event.status == "interrupted":
            sign, style = "⏹", "yellow"
        else:
            sign, style = "✗", "red"
        return [*self._note(sign, ", ".join(parts), style), *self._trace(event)]

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
        return in_rows(text, self.width)

    def _spans(self, spans: Sequence[Span], width: int | None = None) -> list[str]:
        """A styled text that is shown whole; without a ``width`` the terminal wraps it."""
        rows = lines_in((signs.SGR.get(style, ""), text) for style, text in spans)
        if width is not None:
            rows = wrap_all(rows, width - len(INDENT))
        look = Look(color=self._color)
        shown = [look.painted(row).replace(lines.NO_BREAK, " ").rstrip() for row in rows]
        return [f"{INDENT}{row}" if n and row else row for n, row in enumerate(shown)]

    def _indented(self, text: str) -> list[str]:
        return [self._one_row(f"  {lines.one_row(text)}")] if text.strip() else []

    def _line(self, sign: str, text: str, style: str) -> str:
        """A sign and a text on one row that fits."""
        return self._signed(sign, flat(text), style)

    def _signed(self, sign: str, text: str, style: str) -> str:
        return self._paint(style, self._cut(f"{self._sign(sign)} {text}", self.width))

    def _one_row(self, row: str) -> str:
        """One row with its indentation, cut to fit."""
        return self._cut(clean(row).replace("\n", " ").expandtabs(4), self.width)

    def _cut(self, row: str, width: int) -> str:
        """At most ``width`` columns of a row, with a mark at the end if it was cut."""
        return cut(row, width, self._sign("…"))

    def _sign(self, sign: str) -> str:
        return signs.written(sign, ascii=self._ascii)

    def _paint(self, style: str, text: str) -> str:
        return f"\x1b[{signs.SGR[style]}m{text}\x1b[0m" if self._color and text else text


def _rows_of(text: str) -> list[str]:
    """The rows of a text, without the blank ones around it."""
    return clean(text).strip("\n").rstrip().split("\n") if text.strip() else []


def _with_place(event: events.Notice | events.Error) -> str:
    place = ":".join(str(part) for part in (event.file, event.line) if part is not None)
    return flat(f"{place}: {event.message}" if place else event.message)
