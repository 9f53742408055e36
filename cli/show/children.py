"""The agents that work below the main one, and the rows that show them while they do. Pure.

An event costs the same however many came before it: of what a child writes only the end is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from chain import events
from chain.events import Event
from chain.text.wording import MAIN, counted
from cli.show.text import Cleaner, columns, cut, cut_start, flat

STEP = 2
"""Columns that a child stands further in than its parent."""
MOST_ROWS = 8
"""Rows for all children together: they are drawn again at each change, and the prompt stands below them."""
KEPT = 400
"""Characters of what a child writes: its last row is shown."""
LONGEST_NAME, SHORTEST_NAME = 24, 8
"""Columns of a name: a third of a row, within these."""
LEAST_TASK = 8
"""Columns of a task that is cut; with fewer it says nothing."""

Sign = Callable[[str], str]
"""How a sign is written on this terminal."""


@dataclass(slots=True)
class Child:
    """An agent at work. ``tokens`` are with those of the agents that it started itself."""

    name: str
    parent: str
    task: str
    depth: int
    since: float
    iteration: int = 0
    max_iterations: int = 0
    tool_calls: int = 0
    tokens: int = 0
    step: str = "starting"
    question: str = ""
    _tools: dict[str, str] = field(default_factory=dict)
    _written: str = ""
    _cleaner: Cleaner = field(default_factory=Cleaner)

    def update(self, event: Event) -> None:
        """Update it for one of its own events."""
        match event:
            case events.IterationStarted():
                self.iteration, self.max_iterations = event.iteration, event.max_iterations
                self._think()
            case events.TextDelta():
                self._written = (self._written + self._cleaner.add(event.text))[-KEPT:]
            case events.Reply():
                self._think()
                self._written = event.text[-KEPT:]
            case events.ToolCall():
                self.tool_calls += 1
                self._tools[event.id] = event.name
            case events.ToolResult():
                self._tools.pop(event.id, None)
                if not self._tools:
                    self._think()
            case events.Retry():
                self._think("asks again")
            case events.Question():
                self.question = event.id
            case events.Answer() if event.id == self.question:
                self.question = ""
            case _:
                pass

    def _think(self, step: str = "thinking") -> None:
        self.step, self._written, self._cleaner = step, "", Cleaner()

    def doing(self, width: int, mark: str) -> str:
        """What it does now, in at most ``width`` columns: the end of the row that it writes, else a name."""
        if self.question:
            return cut(f"{flat(self.question)} waits", width, mark)
        if self._tools:
            *others, last = self._tools.values()
            return cut(flat(last) + (f" +{len(others)}" if others else ""), width, mark)
        written = next((row for row in reversed(self._written.split("\n")) if row.strip()), "")
        return cut_start(flat(written), width, mark) or cut(self.step, width, mark)

    def summary(self, ended: events.AgentEnded) -> str:
        """What it did, when it has ended."""
        parts = [] if ended.status == "done" else [ended.status.replace("_", " ")]
        parts += [counted(self.iteration, "iteration"), counted(self.tool_calls, "tool call")]
        return ", ".join([*parts, counted(self.tokens, "token")])


class Children:
    """Who is at work below the main agent, as the events tell."""

    def __init__(self) -> None:
        self._active: dict[str, Child] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._active

    def depth(self, name: str) -> int:
        """How far below the main agent one stands that is at work; one that is not is taken for its child."""
        if name == MAIN:
            return 0
        child = self._active.get(name)
        return 1 if child is None else child.depth

    def start(self, event: events.AgentStarted) -> Child:
        """An agent begins, or begins again."""
        parent = self._active.get(event.agent)
        # It comes last of those at work, also where one of its name was not told to have ended.
        self._active.pop(event.name, None)
        depth = 1 if parent is None else parent.depth + 1
        child = Child(event.name, event.agent, event.task, depth, event.time)
        self._active[event.name] = child
        return child

    def end(self, event: events.AgentEnded) -> Child:
        """An agent has ended; what it did."""
        child = self._active.pop(event.name, None)
        return Child(event.name, event.agent, event.task, 1, event.time) if child is None else child

    def clear(self) -> None:
        """No agent is at work below the main one."""
        self._active.clear()

    def update(self, event: Event) -> None:
        """Update the agent whose event this is."""
        child = self._active.get(event.agent)
        if child is None:
            return
        child.update(event)
        if isinstance(event, events.UsageReport):
            cached = event.cache_read_tokens + event.cache_write_tokens
            for one in self.with_parents(event.agent):
                one.tokens += event.input_tokens + event.output_tokens + cached

    def with_parents(self, name: str) -> Iterator[Child]:
        """One at work, the one that started it, and so on; without the main agent."""
        child = self._active.get(name)
        while child is not None:
            yield child
            parent = self._active.get(child.parent)
            # Only upwards: strange events could make a circle.
            child = parent if parent is not None and parent.depth < child.depth else None

    def in_order(self) -> list[Child]:
        """Those at work, each before those that it started."""
        below: dict[str, list[Child]] = {}
        for child in self._active.values():
            parent = self._active.get(child.parent)
            is_below = parent is not None and parent.depth < child.depth
            below.setdefault(child.parent if is_below else "", []).append(child)
        found: list[Child] = []
        left = below.get("", [])[::-1]
        while left:
            found.append(left.pop())
            left += below.get(found[-1].name, [])[::-1]
        return found

    def rows(self, width: int, sign: Sign) -> list[str]:
        """A row for each of those at work, at most ``MOST_ROWS`` of ``width`` columns; the others are counted."""
        working = self.in_order()
        shown = working if len(working) <= MOST_ROWS else working[: MOST_ROWS - 1]
        rows = [_row(child, width, sign) for child in shown]
        if left := len(working) - len(shown):
            rows.append(cut(f"{' ' * STEP}{sign('…')} and {counted(left, 'more agent')}", width, sign("…")))
        return rows


def indent(depth: int, width: int) -> str:
    """What stands before the rows of an agent so far below the main one; at most a quarter of a row."""
    return " " * min(STEP * depth, width // 4)


def short_name(name: str, width: int, mark: str) -> str:
    """An agent's name on a row of ``width`` columns; one that is cut keeps its number, which tells it from others."""
    name, room = flat(name) or "agent", min(max(width // 3, SHORTEST_NAME), LONGEST_NAME)
    kind, dash, number = name.rpartition("-")
    if columns(name) > room and kind and number.isdecimal() and len(number) < room // 2:
        return cut(kind, room - 1 - len(number), mark) + dash + number
    return cut(name, room, mark)


def _row(child: Child, width: int, sign: Sign) -> str:
    mark, dot = sign("…"), f" {sign('·')} "
    head = f"{indent(child.depth, width)}{sign('❓' if child.question else '●')} {short_name(child.name, width, mark)}"
    if child.iteration:
        head += f" {child.iteration}/{child.max_iterations}"
    room = width - columns(head) - 2 * len(dot)
    if room < LEAST_TASK:
        return cut(f"{head} {child.doing(width, mark)}", width, mark)
    task, doing = flat(child.task), child.doing(width, mark)
    # What it does now comes first, but leaves a third of the room to what it was asked for.
    for_task = min(columns(task), max(room - columns(doing), room // 3))
    if for_task < min(columns(task), LEAST_TASK) or not task:
        return head + dot + child.doing(room + len(dot), mark)
    return head + dot + child.doing(room - for_task, mark) + dot + cut(task, for_task, mark)
