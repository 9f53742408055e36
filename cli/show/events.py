"""Events as rows of text for people: the progress of a headless run, and what scrolls above a prompt. Pure.

What is shown here was written by models, tools, files and users. Every text that is not this module's own goes through
``text.clean``, which removes whatever a terminal would obey instead of showing it.

``Renderer`` shows progress beside an answer that the caller prints. It holds back a reply without tool calls, which is
probably the run's answer, until an event shows that it was not: another iteration, lines that were delivered after it,
a tool call, or a result with another text. Events that do not decide this (a receipt, token usage) leave it held back.

The rows of a child stand further in than those of its parent, below the call that started it, and name it, since
several may work at the same time. They are cut to the width, or else the terminal would wrap them out of their place.

``live.LiveRenderer`` is for a terminal, where replies are shown as they stream and nothing else prints the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from chain import events
from chain.events import Event
from chain.text.wording import MAIN, counted
from cli.show import lines, questions, signs
from cli.show.children import Child, Children, indent, short_name
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

    left_out: tuple[type[Event], ...] = (events.Init, events.RunStarted, events.Result, events.ThinkingDelta)
    """What is no row if it is a child's. Nobody could follow the thoughts of several; the others are main's alone."""

    @property
    def drawn_tail(self) -> str:
        """The unfinished rows below the others, where they can be erased again."""
        return ""

    def __init__(self, *, color: bool, ascii: bool, width: int = 80) -> None:
        self._color = color
        self._ascii = ascii
        self.width = max(width, 20)
        self._thinking: Flow | None = None
        self._held: str | None = None
        self._began: float | None = None
        self._has_ended = False
        self._last_tool: dict[str, str] = {}
        """The tool that each agent used last in its iteration."""
        self._progress: dict[tuple[str, str], Progress] = {}
        self._queued: dict[str, str] = {}
        """The agent that each waiting line waits for."""
        self._children = Children()
        self._indent, self._who = "", ""
        """What stands before the rows of the event in hand, and before the text of each."""

    def lines(self, event: Event) -> list[str]:
        """The rows to show for this event, without newlines; often none."""
        self._children.update(event)
        if isinstance(event, events.ToolCall):
            self._last_tool[event.agent] = event.name
        elif isinstance(event, events.IterationStarted):
            self._last_tool.pop(event.agent, None)
        if isinstance(event, events.AgentStarted | events.AgentEnded):
            return self._nested(event, self._children.depth(event.agent) + 1)
        if event.agent == MAIN:
            return [*self._finish_thinking(event), *self._release_held(event), *self._rows(event)]
        if self._is_left_out(event):
            return []
        return self._nested(event, self._children.depth(event.agent), f"{self._name(event.agent)}: ")

    def _is_left_out(self, event: Event) -> bool:
        """Whether an event of a child is no row."""
        return isinstance(event, self.left_out)

    def _nested(self, event: Event, depth: int, who: str = "") -> list[str]:
        """The rows of an event in the place of an agent so far below the main one."""
        self._indent, self._who = indent(depth, self.width), who
        rows = [f"{self._indent}{row}" if row else row for row in self._rows(event)]
        self._indent = self._who = ""
        return rows

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
                # Another session, which counts its lines and its agents from one again.
                self._queued.clear()
                self._children.clear()
                named = f" {self._sign('·')} ".join((f"chain {event.version}", event.model, event.session))
                return [self._paint("dim", self._one_row(named))]
            case events.RunStarted():
                self._began, self._has_ended = event.time, False
                self._children.clear()
                query = f"{self._sign('▶')} {lines.query(event.query)}"
                return self._spans([("bold", query)]) if event.query.strip() else []
            case events.IterationStarted():
                return [self._paint("cyan", self._iteration(event))]
            case events.ThinkingDelta():
                return self._think(event)
            case events.TextDelta():
                return self._delta(event)
            case events.UsageReport():
                return []
            case events.Reply():
                return self._reply(event)
            case events.ToolCall():
                return [self._line("→", f"{event.name}({self._input(event.input)})", "cyan")]
            case events.ToolProgress():
                return self._progressed(event)
            case events.ToolResult():
                return [*self._last_progress(event), self._tool_result(event)]
            case events.LineQueued():
                return self._line_queued(event)
            case events.LineRefused(origin="door" | "acp"):
                return []  # its sender was told, and nobody here can do anything about it
            case events.LineRefused():
                return [*self._note("⚠️", flat(event.reason), "yellow"), *self._indented(event.text)]
            case events.UserInterruption():
                for id in event.ids:
                    self._queued.pop(id, None)
                return self._spans(lines.delivered(event, self._last_tool.get(event.agent, ""), self._sign))
            case events.Receipt():
                if event.state != "queued":
                    self._queued.pop(event.id, None)
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
                return [self._started_agent(event)]
            case events.AgentEnded():
                return [self._ended_agent(event, self._children.end(event))]
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

    def _iteration(self, event: events.IterationStarted) -> str:
        count = f"{event.iteration}/{event.max_iterations}"
        if not self._who:
            self._has_ended = False
            return f"[{count}]"
        return self._cut(f"[{self._who.removesuffix(': ')} {count}]", self._room)

    def _line_queued(self, event: events.LineQueued) -> list[str]:
        before = self._queued.get(event.id, event.target_agent)
        self._queued[event.id] = event.target_agent
        describe = lines.queued if before == event.target_agent else lines.moved
        return self._spans(describe(event, self._sign))

    def _started_agent(self, event: events.AgentStarted) -> str:
        child = self._children.start(event)
        parent = "" if event.agent == MAIN else f" (of {self._name(event.agent)})"
        return self._line("▶", f"{self._name(child.name)}{parent}: {child.task}", "cyan")

    def _ended_agent(self, event: events.AgentEnded, child: Child) -> str:
        self._last_tool.pop(event.name, None)
        self._progress = {key: progress for key, progress in self._progress.items() if key[0] != event.name}
        sign, style = self._outcome(event.status)
        text = f"{self._name(event.name)}: {child.summary(event)}, {seconds(event.time - child.since)}"
        return self._line(sign, text, style)

    def _think(self, event: events.ThinkingDelta) -> list[str]:
        if self._thinking is None:
            self._thinking = Flow(self.width)
        return [self._paint("dim", row) for row in self._thinking.add(event.text) if row]

    def _finish_thinking(self, event: Event) -> list[str]:
        # A queued line or a note does not end a thought.
        if not isinstance(event, _ENDS_THOUGHT) or self._thinking is None:
            return []
        rows, self._thinking = self._thinking.end(), None
        return [] if isinstance(event, events.Retry) else [self._paint("dim", row) for row in rows if row]

    def _delta(self, event: events.TextDelta) -> list[str]:
        """No rows: the whole reply is an event as well."""
        return []

    def _reply(self, event: events.Reply) -> list[str]:
        if self._who:
            rows = in_rows(f"{self._who}{event.text.strip()}", self._room - len(INDENT)) if event.text.strip() else []
            return [f"{INDENT}{row}" if n and row else row for n, row in enumerate(rows)]
        if event.tool_calls == 0:
            self._held = event.text
            return []
        return _rows_of(event.text)

    def _retry(self, event: events.Retry) -> list[str]:
        waiting = f"Asking again in {seconds(event.delay_s)} (attempt {event.attempt})"
        return self._note("↻", f"{waiting}: {flat(event.reason)}", "yellow")

    def _note(self, sign: str, text: str, style: str) -> list[str]:
        """A text that is shown in full, however long it is."""
        text = f"{self._sign(sign)} {self._who}{text}"
        return [self._paint(style, row) for row in (self._wrapped(text) if self._indent else [text])]

    def _release_held(self, event: Event) -> list[str]:
        """The reply that was held back, if this event shows that it was not the answer."""
        if self._held is None:
            return []
        match event:
            case events.Result():
                held, self._held = self._held, None
                answer, text = event.result.strip(), held.strip()
                # The answer of a stopped run is the text that the stop cut, and after it what was found.
                has_it = answer.startswith(text) if event.status.startswith("cancelled") else answer == text
                return [] if has_it else _rows_of(held)
            case events.IterationStarted() | events.RunStarted() | events.UserInterruption() | events.ToolCall():
                held, self._held = self._held, None
                return _rows_of(held)
            case _:
                return []

    def _progressed(self, event: events.ToolProgress) -> list[str]:
        # What writes over its own row, as progress bars do, has said something each time.
        said = [row for row in _rows_of(event.text.replace("\r", "\n")) if row.strip()]
        rows = self._progress.setdefault((event.agent, event.id), Progress()).add(said)
        return [self._paint("dim", self._one_row(f"  {self._who}{row}")) for row in rows]

    def _last_progress(self, event: events.ToolResult) -> list[str]:
        progress = self._progress.pop((event.agent, event.id), None)
        rows = [] if progress is None else progress.end(self._sign("…"))
        return [self._paint("dim", self._one_row(f"  {self._who}{row}")) for row in rows]

    def _question(self, event: events.Question) -> list[str]:
        title = f"{self._sign('❓')} {self._who}{questions.title(event)}"
        rows = [self._paint("bold", row) for row in self._wrapped(title)]
        # One row that the title has already says nothing more.
        rows += [] if event.preview in event.text else self.preview(event.preview)
        return [*rows, *(row for option in questions.options(event) for row in self._wrapped(option))]

    def hint(self, event: events.Question) -> list[str]:
        """How to answer a question that is open."""
        before = indent(self._children.depth(event.agent), self.width)
        rows = in_rows(questions.hint(event).replace("·", self._sign("·")), self.width - len(before) - 2)
        return [f"{before}{self._paint('dim', self._one_row(f'  {row}'))}" for row in rows]

    def preview(self, text: str, *, whole: bool = False) -> list[str]:
        """The rows of what a call would do; cut in the middle where it is long, unless it is to be ``whole``."""
        rows = questions.preview_rows(text, self._room, self._sign("…"), self._sign("↪"), whole=whole)
        fitting = [(style, self._one_row(row) if style == "cut" else row) for style, row in rows]
        return [self._paint(_PREVIEW[style], row) if style in _PREVIEW else row for style, row in fitting]

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
        by = "" if event.by in ("user", MAIN) else f" (by {self._name(event.by)})"
        rows = [self._paint("bold", f"Plan: {counts}{by}")]
        for task in event.tasks:
            why = f" ({task.reason})" if task.reason else ""
            rows.append(self._one_row(f"  {self._sign(_BOXES.get(task.state, '[ ]'))} {task.n}. {task.text}{why}"))
        return rows

    def _result(self, event: events.Result) -> list[str]:
        # The last result may come twice, for its run and for the process: one summary is enough.
        if self._has_ended:
            return []
        self._has_ended = True
        parts = [
            event.status.replace("_", " "),
            counted(event.iterations, "iteration"),
            counted(event.usage.total_tokens, "token"),
        ]
        if event.usage.cost_usd is not None:
            parts.append(f"${event.usage.cost_usd:.4f}")
        if self._began is not None:
            parts.append(seconds(event.time - self._began))
            self._began = None
        sign, style = self._outcome(event.status)
        self._children.clear()
        return [*self._note(sign, ", ".join(parts), style), *self._trace(event)]

    def _outcome(self, status: events.Status) -> tuple[str, str]:
        """The sign and the style of an end."""
        if status == "done":
            return "✓", "green"
        if status.startswith("cancelled") or status == "interrupted":
            return "⏹", "yellow"
        return "✗", "red"

    def _trace(self, event: events.Result) -> list[str]:
        return [self._paint("dim", f"  trace: {flat(event.trace_path)}")] if event.trace_path else []

    def _input(self, input: Mapping[str, Any]) -> str:
        """The arguments of a call, each cut, since one may be a whole file."""
        limit = self._room // 2
        shown = []
        for name, value in input.items():
            text = value[: 4 * limit] if isinstance(value, str) else value
            shown.append(f"{name}={self._cut(json.dumps(text, ensure_ascii=False, default=str), limit)}")
        return ", ".join(shown)

    def _wrapped(self, text: str) -> list[str]:
        return in_rows(text, self._room)

    def _spans(self, spans: Sequence[Span], width: int | None = None) -> list[str]:
        """A styled text that is shown whole; without a ``width`` the terminal wraps it, but for a child's."""
        rows = lines_in((signs.SGR.get(style, ""), text) for style, text in spans)
        if self._indent:
            width = self._room
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
        return self._paint(style, self._cut(f"{self._sign(sign)} {self._who}{text}", self._room))

    def _one_row(self, row: str) -> str:
        """One row with its indentation, cut to fit."""
        return self._cut(clean(row).replace("\n", " ").expandtabs(4), self._room)

    def _cut(self, row: str, width: int) -> str:
        """At most ``width`` columns of a row, with a mark at the end if it was cut."""
        return cut(row, width, self._sign("…"))

    @property
    def _room(self) -> int:
        """The columns for the rows of the event in hand."""
        return self.width - len(self._indent)

    def _name(self, agent: str) -> str:
        return short_name(agent, self.width, self._sign("…"))

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
