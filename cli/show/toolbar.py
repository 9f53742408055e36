"""The row below the prompt: the activity of the chain, and the effect of Enter on the typed text. Pure.

The left side is about the run, the right end about the next line. On a narrow terminal the left side loses its parts
one by one, the least important first. The right end stays, since the user is about to act on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple, TypeAlias

from chain import events
from chain.events import Event, TaskState
from chain.lines.parse import MAX_LINE, Kind, Line, is_sent_first, is_stop, parse_line
from chain.text.modes import Mode
from chain.text.phrases import duration
from chain.text.wording import MAIN, pluralize
from cli.show.aliases import bare_command, interrupts_nothing
from cli.show.text_rows import columns, cut, cut_start, flat

LONGEST_PARSED = 2_000
"""The maximum length of a text that is parsed after each key. A longer text is probably a paste, and is not parsed."""
LONGEST_NAME = 24
"""The maximum number of columns of a name of a tool, agent, model, folder or branch. A longer name is cut."""
ToolbarPart: TypeAlias = tuple[str, str]
"""A style (``nearly-full``, or empty) and a text."""
NEARLY_FULL = 80
"""Percent of the context window above which its usage is highlighted."""
LESS_WHEN_IDLE = ("tokens", "folder", "branch", "model", "context", "plan", "jobs", "queue", "mode", "idle")
"""The parts of the left side while no run is active, in the order in which a narrow row omits them."""
SIDE_GAP = 2
"""The minimum gap between the two sides, in columns."""

_SHORT_MODES: Mapping[Mode, str] = {"ask": "", "accept edits": "edits", "read only": "read only"}

_NO_ANSWERS: frozenset[Kind] = frozenset({"stop", "todo", "follow-up", "context", "local"})


def answers_question(text: str) -> bool:
    """Return whether a text answers an open question. Some lines do not, such as a stop or a plan command."""
    return not (text.startswith("!") or parse_line(text).kind in _NO_ANSWERS)


def plan_progress(tasks: Iterable[TaskState]) -> str:
    """Return the progress of a plan as text: closed tasks, ``/``, all tasks, and the number of failed ones if any."""
    states = [*tasks]
    failed = states.count("FAILED")
    return f"{len(states) - states.count('PENDING')}/{len(states)}{f', {failed} failed' if failed else ''}"


class _Signs(NamedTuple):
    dot: str
    cut: str
    to: str
    wait: str
    urgent: str
    stop: str
    enter: str


_UNICODE = _Signs(" · ", "…", "→ ", "⏳ ", "⚡ ", "⏹ ", "⏎ ")
_ASCII = _Signs(" - ", "...", "-> ", "", "! ", "", "Enter ")


class _ToolbarStep(NamedTuple):
    """The model's current step and its start. ``until`` is the end of the pause before a retry."""

    name: str
    since: float
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Recipient:
    """The ``agent`` that a typed line is for; empty if the line names an agent that is not at work.

    ``text`` is the line without its address. ``waiting`` counts the lines that already wait for the agent.
    ``is_addressed``: the line names an agent.
    """

    agent: str
    text: str
    waiting: int = 0
    is_addressed: bool = False


class Toolbar:
    """The state of the row, updated by events. All times are wall-clock seconds, like those of events.

    A toolbar has no lock: a caller that draws in one thread and updates in another needs a lock.
    """

    def __init__(
        self, *, ascii: bool, inbox_size: int, has_esc: bool = True, plan: Sequence[TaskState] = (), folder: str = ""
    ) -> None:
        """Create the row. ``plan`` lists the states of the plan's tasks.

        ``has_esc``: the Esc key can interrupt a run. ``folder`` is the text for the workspace; empty to omit it.
        """
        self._ascii = ascii
        self._killing_key = "Esc" if has_esc else "Ctrl-C"
        self._signs = _ASCII if ascii else _UNICODE
        self._inbox_size = inbox_size
        self._folder = folder
        self.model = ""
        """The model of the next run."""
        self.branch = ""
        """The git branch of the folder; empty if there is none."""
        self.tokens = 0
        """The tokens that the session has used. The caller sets them for a resumed session."""
        self._window: int | None = None
        self._context = ""
        """The usage of the main agent's context window, as text."""
        self._is_nearly_full = False
        self._plan: Sequence[TaskState] = plan
        self.is_running = False
        """Whether a run has started and its result has not arrived yet."""
        self._is_stopping = False
        self._iteration = ""
        self._step = _ToolbarStep("starting", 0.0)
        self._tools: dict[tuple[str, str], events.ToolCall] = {}
        self._children: dict[str, tuple[str, str]] = {}
        """For each child agent, the key in ``_tools`` of the call that started it."""
        self.asked: events.Question | None = None
        """The open question."""

    def update(self, event: Event) -> None:
        """Update the row for an event."""
        match event:
            case events.UsageReport():
                cached = event.cache_read_tokens + event.cache_write_tokens
                self.tokens += event.input_tokens + event.output_tokens + cached
                if event.agent == MAIN:
                    self.set_context_usage(event.context_tokens, event.context_window)
            case events.PlanChanged():
                self._plan = [task.state for task in event.tasks]
            case events.Question():
                self.asked = event
            case events.Answer() if self.asked is not None and event.id == self.asked.id:
                self.asked = None
            case events.ToolCall():
                self._tools[event.agent, event.id] = event
            case events.ToolResult():
                self._tools.pop((event.agent, event.id), None)
                if event.agent == MAIN:
                    self._step = _ToolbarStep("thinking", event.time)
            case events.AgentStarted():
                self._children[event.name] = event.agent, event.parent_id
            case events.AgentEnded():
                self._children.pop(event.name, None)
                self._tools = {key: tool for key, tool in self._tools.items() if tool.agent != event.name}
                if self.asked is not None and self.asked.agent == event.name:
                    self.asked = None
            case _ if event.agent != MAIN:
                pass  # a child's steps are not shown, only its tools
            case events.Result():
                self.is_running = self._is_stopping = False
                self._iteration, self.asked = "", None
                self._tools.clear()
                self._children.clear()
            case events.Compaction(state="started"):
                self._step = _ToolbarStep("compacting", event.time)
            case events.Compaction():
                self._step = _ToolbarStep("thinking", event.time)
                if event.state == "ended":
                    self.set_context_usage(event.tokens_after, self._window)
            case events.RunStarted():
                self.is_running, self._is_stopping, self._iteration = True, False, ""
                self._step = _ToolbarStep("starting", event.time)
            case events.IterationStarted():
                self.is_running = True
                self._iteration = f"{event.iteration}/{event.max_iterations}"
                self._step = _ToolbarStep("thinking", event.time)
            case events.ThinkingDelta() if self._step.until is not None:
                self._step = _ToolbarStep("thinking", event.time)
            case events.TextDelta() if self._step.name != "answering":
                self._step = _ToolbarStep("answering", event.time)
            case events.Retry():
                self._step = _ToolbarStep("retry", event.time, event.time + event.delay_s)
            case events.Receipt(is_stop=True):
                self._is_stopping = self.is_running
            case _:
                pass

    def set_context_usage(self, tokens: int, window: int | None) -> None:
        """Set how many tokens of the main agent's context window are used."""
        self._window = window
        if window:
            percent = round(100 * tokens / window)
            self._context, self._is_nearly_full = f"ctx {percent}%", percent >= NEARLY_FULL
        elif tokens:
            self._context, self._is_nearly_full = f"ctx {tokens:,}", False

    def target(self, agent: str) -> str:
        """Return an agent's name as the prompt shows it. Return an empty text for the main agent or an empty name."""
        return "" if agent in ("", MAIN) else self._name(agent)

    def stopping(self, now: float, agent: str = MAIN) -> str:
        """Return the text that says that an agent is being stopped.

        Stopping the main agent stops the whole run. Its text names the running tool whose end the stop waits for.
        """
        tool = self._tool()
        if agent != MAIN or tool is None:
            return f"{self._signs.stop}Stopping{'' if agent == MAIN else f' {self._name(agent)}'}"
        tools_agent, name, since = tool
        whose = f" of {self._name(tools_agent)}" if tools_agent != MAIN else ""
        took = duration(now - since, whole=True)
        return f"{self._signs.stop}Stopping after {name}{whose} ({took}); {self._killing_key} kills it"

    def row(
        self,
        *,
        width: int,
        now: float,
        to: Recipient,
        waiting: int,
        question_id: str = "",
        lines_before: int = 0,
        holds_rows: bool = False,
        keys: str = "",
        mode: Mode | None = None,
        jobs: int = 0,
    ) -> list[ToolbarPart]:
        """Return the row, cut to ``width`` columns, at the time ``now``.

        ``to``: the recipient of the typed text. ``waiting``: the number of lines that wait for any agent.
        ``question_id``: the question that was open when the user began to type, or empty. ``lines_before``: how many
        lines in the editor Enter sends before the typed one. ``holds_rows``: rows of events wait for the end of a block
        of the reply. ``keys``: the keys that answer the question without Enter. ``mode``: shown if given; a run shows
        it in short form, and never shows the default mode. ``jobs``: the number of running background jobs.
        """
        typed = to.text
        if question_id and answers_question(typed):
            # As a sentence names them: "y, a or n".
            how = f"{', '.join(keys[:-1])} or {keys[-1]} " if keys and not typed else self._signs.enter
            asker = self.asked.agent if self.asked is not None and self.asked.id == question_id else ""
            right = f"{how}answers {question_id} ({self._name(asker)})" if asker else f"{question_id} is no longer open"
        elif to.is_addressed and not to.agent:
            right = "no such agent at work"
        elif to.is_addressed and to.agent != MAIN and is_stop(typed):
            right = f"{self._signs.stop}stops {self._name(to.agent)}"
        elif lines_before and not is_sent_first(typed):
            right = f"{self._signs.enter}sends {pluralize(lines_before + bool(typed.strip()), 'line')}"
        else:
            right = self._right(to)
        for texts in self._left_variants(now, self._queue(waiting, to.waiting), holds_rows, mode, jobs):
            left = self._join_texts(texts)
            room = width - sum(columns(text) for _, text in left) - columns(right)
            if room >= (SIDE_GAP if left and right else 0):
                return [*left, ("", f"{' ' * room}{right}")] if right else left
        return [("", cut(right, width, self._signs.cut))]

    def _join_texts(self, texts: Iterable[str]) -> list[ToolbarPart]:
        """Join the texts of a left side with dots, and return the result as parts with their styles."""
        parts: list[ToolbarPart] = []
        for text in filter(None, texts):
            dot = self._signs.dot if parts else ""
            is_fill = self._is_nearly_full and text is self._context
            parts += [("", dot), ("nearly-full", text)] if is_fill else [("", f"{dot}{text}")]
        return parts

    def _queue(self, waiting: int, own: int) -> str:
        """Return the number of waiting lines as text. ``own`` of them wait for the agent that gets a typed line."""
        others = f" +{waiting - own}" if waiting > own else ""
        return f"queue {own}/{self._inbox_size}{others}" if self.is_running or waiting else ""

    def _left_variants(
        self, now: float, queue: str, holds_rows: bool, mode: Mode | None, jobs: int
    ) -> Iterator[tuple[str, ...]]:
        """Yield the left side in every length, longest first."""
        tokens = pluralize(self.tokens, "token") if self.tokens else ""
        if holds_rows:
            queue = self._signs.dot.join(filter(None, [queue, "more after this block"]))
        plan = f"plan {plan_progress(self._plan)}" if self._plan else ""
        background = pluralize(jobs, "job") if jobs else ""
        if not self.is_running:
            parts = {
                "idle": "idle",
                "mode": mode or "",
                "queue": queue,
                "jobs": background,
                "plan": plan,
                "model": self._name(self.model),
                "folder": cut_start(self._clean(self._folder), LONGEST_NAME, self._signs.cut),
                "branch": self._name(self.branch),
                "context": self._context,
                "tokens": tokens,
            }
            for count in range(len(LESS_WHEN_IDLE) + 1):
                yield tuple(text for name, text in parts.items() if name not in LESS_WHEN_IDLE[:count])
            return
        step, short = self._current_step(now)
        agents = pluralize(len(self._children), "agent") if len(self._children) > 1 else ""
        where = self._signs.dot.join(filter(None, [_SHORT_MODES[mode] if mode else "", self._iteration]))
        full = (where, step, agents, queue, background, plan, self._context, tokens)
        yield from (full[:count] for count in (8, 7, 6, 5, 4))
        yield from ((where, step, queue), (where, short, queue), (where, short), (where,), ())

    def _current_step(self, now: float) -> tuple[str, str]:
        """Return the current step twice: with the seconds since its start, and without them."""
        step, tool = self._step, self._tool()
        if self._is_stopping:
            return self.stopping(now), f"{self._signs.stop}Stopping"
        if self.asked is not None:
            name, since = f"{self._whose(self.asked.agent)}{self.asked.id} waits", self.asked.time
        elif tool is not None:
            name, since = f"{self._whose(tool[0])}{tool[1]}", tool[2]
        elif step.until is not None and now < step.until:
            return f"retry in {duration(ceil(step.until - now), whole=True)}", "retry"
        else:
            name, since = (step.name, step.since) if step.until is None else ("thinking", step.until)
        return f"{name} {duration(now - since, whole=True)}", name

    def _tool(self) -> tuple[str, str, float] | None:
        """Return the agent, the name and the start of the latest running tool; ``None`` if no tool runs.

        The name ends with the number of the agent's other running tools, if any. A call that started a child agent
        counts only if no other tool runs.
        """
        if not self._tools:
            return None
        kept_busy = set(self._children.values())
        tools = [tool for key, tool in self._tools.items() if key not in kept_busy] or list(self._tools.values())
        last = tools[-1]
        others = sum(tool.agent == last.agent for tool in tools) - 1
        name = self._name(last.name) or "a tool"
        return last.agent, f"{name} +{others}" if others else name, last.time

    def _whose(self, agent: str) -> str:
        return "" if agent == MAIN else f"{self._name(agent)}: "

    def _right(self, to: Recipient) -> str:
        """Return the effect of Enter on the typed text. If nothing is typed, return the agent for the next line."""
        signs, typed = self._signs, to.text
        agent = self._name(to.agent) or MAIN
        if not typed.strip():
            starts = f"{signs.enter}starts a run with {pluralize(to.waiting, 'line')}" if to.waiting else ""
            return f"{signs.to}{agent}" if self.is_running else starts
        if len(typed) > MAX_LINE:
            return f"too long, at most {MAX_LINE:,} characters"
        line = parse_line(typed) if len(typed) < LONGEST_PARSED else Line(typed, "redirect", typed)
        if line.kind == "local" or bare_command(typed):
            return "command"
        if not self.is_running and interrupts_nothing(typed):
            return "nothing to interrupt"
        if line.kind == "stop":
            return f"{signs.stop}stops the run" if self.is_running else "nothing to stop"
        if line.problem:
            return line.problem
        if not self.is_running:
            at_once = line.kind == "todo" or (line.kind == "question" and line.message.casefold() == "status")
            return f"{signs.enter}answers at once" if at_once else f"{signs.enter}starts a run"
        if to.waiting >= self._inbox_size and line.urgency != "now":
            return "queue full"
        if self._is_stopping:
            return "is returned after the stop"
        if line.kind == "follow-up":
            return "after this run"
        goes_to = "plan" if line.kind == "todo" and to.agent == MAIN else agent
        if line.urgency == "now":
            return f"{signs.urgent}{goes_to}, at once"
        if line.urgency == "urgent":
            return f"{signs.urgent}{goes_to}, skips tools"
        return f"{'' if goes_to == 'plan' else signs.wait}{goes_to}, next safe point"

    def _name(self, name: str) -> str:
        return cut(self._clean(name), LONGEST_NAME, self._signs.cut)

    def _clean(self, name: str) -> str:
        # Terminals do not agree on the width of characters without a column.
        shown = "".join(char for char in flat(name) if char.isprintable() and columns(char))
        if self._ascii:
            shown = shown.encode("ascii", "replace").decode()
        return shown
