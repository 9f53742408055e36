"""The agents below the main one: their state, and the rows that show them. Pure.

Only the end of a child's text is stored, so that the time to process an event does not grow with the text.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from chain import events
from chain.events import Event
from chain.text import phrases
from chain.text.wording import MAIN, pluralize
from cli.show.signs import Sign
from cli.show.text_rows import Cleaner, columns, cut, cut_start, flat

STEP = 2
"""The number of columns by which a child is indented further than its parent."""
MOST_ROWS = 8
"""The maximum number of rows for all children together. These rows are redrawn above the prompt at each change."""
KEPT_TEXT = 400
"""The number of characters at the end of a child's text that are stored. The last row of this end is shown."""
LONGEST_CHILD_NAME, SHORTEST_NAME = 24, 8
"""The maximum and the minimum columns of a name. Within these limits, a name gets a third of its row."""
LEAST_TASK = 8
"""The minimum number of columns of a task. A task that would get fewer columns is omitted."""


@dataclass(slots=True)
class Child:
    """The state of a running child agent. ``tokens`` include the tokens of the agents that the child started."""

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
        """Update the state from an event of this agent."""
        match event:
            case events.IterationStarted():
                self.iteration, self.max_iterations = event.iteration, event.max_iterations
                self._think()
            case events.TextDelta():
                self._written = (self._written + self._cleaner.add(event.text))[-KEPT_TEXT:]
            case events.Reply():
                self._think()
                self._written = event.text[-KEPT_TEXT:]
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

    def activity(self, width: int, mark: str) -> str:
        """Return the open question, else the latest running tool, else the end of the streaming text, else the step."""
        if self.question:
            return cut(f"{flat(self.question)} waits", width, mark)
        if self._tools:
            *others, last = self._tools.values()
            return cut(flat(last) + (f" +{len(others)}" if others else ""), width, mark)
        written = next((row for row in reversed(self._written.split("\n")) if row.strip()), "")
        return cut_start(flat(written), width, mark) or cut(self.step, width, mark)

    def summary(self, ended: events.AgentEnded) -> str:
        """Return a summary of this agent after its end: a status other than done, iterations, tool calls and tokens."""
        parts = [] if ended.status == "done" else [phrases.describe_status(ended.status)]
        parts += [pluralize(self.iteration, "iteration"), pluralize(self.tool_calls, "tool call")]
        return ", ".join([*parts, pluralize(self.tokens, "token")])


Working: TypeAlias = dict[str, Child]
"""The agents at work below the main one, by their names."""


def depth_of(working: Working, name: str) -> int:
    """Return how many levels an agent is below the main agent; 1 for a child that is not at work."""
    child = working.get(name)
    return int(name != MAIN) if child is None else child.depth


def self_and_ancestors(working: Working, name: str) -> Iterator[Child]:
    """Yield an agent at work, then the agent that started it, and so on up to the main agent, which is left out."""
    child, depth = working.get(name), sys.maxsize
    # Stop at a name seen before: malformed events could contain a cycle.
    while child is not None and child.depth < depth:
        yield child
        depth = child.depth
        child = working.get(child.parent)


def child_rows(working: Working, width: int, sign: Sign, most: int = MOST_ROWS) -> list[str]:
    """Return at most ``most`` rows, one for each agent at work. If there are more, the last row counts the others."""
    parents = {name: next((one.name for one in list(self_and_ancestors(working, name))[1:]), "") for name in working}
    ordered = [working[name] for _, name in tree_order(parents)]
    shown = ordered if len(ordered) <= most else ordered[: most - 1]
    rows = [_row(child, width, sign) for child in shown]
    if left := len(ordered) - len(shown):
        rows.append(cut(f"{' ' * STEP}{sign('…')} and {pluralize(left, 'more agent')}", width, sign("…")))
    return rows


def tree_order(parents: Mapping[str, str]) -> list[tuple[int, str]]:
    """Return each agent's depth and name in tree order, where children follow their parent.

    ``parents`` maps each name to the name of its parent. A name whose parent is no key has depth 0.
    """
    below: dict[str, list[str]] = {}
    for name, parent in parents.items():
        below.setdefault(parent if parent in parents else "", []).append(name)
    found: list[tuple[int, str]] = []
    left = [(0, name) for name in reversed(below.pop("", []))]
    while left:
        depth, name = left.pop()
        found.append((depth, name))
        left += [(depth + 1, child) for child in reversed(below.pop(name, []))]
    return found


def indent(depth: int, width: int) -> str:
    """Return the spaces before the rows of an agent at this depth: at most a quarter of a row."""
    return " " * min(STEP * depth, width // 4)


def short_name(name: str, width: int, mark: str) -> str:
    """Return an agent's name, cut for a row of ``width`` columns, with ``mark`` at the cut. A final number stays."""
    name, room = flat(name) or "agent", min(max(width // 3, SHORTEST_NAME), LONGEST_CHILD_NAME)
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
        return cut(f"{head} {child.activity(width, mark)}", width, mark)
    task, doing = flat(child.task), child.activity(width, mark)
    # The activity comes first, but leaves a third of the room to the task.
    for_task = min(columns(task), max(room - columns(doing), room // 3))
    if for_task < min(columns(task), LEAST_TASK) or not task:
        return head + dot + child.activity(room + len(dot), mark)
    return head + dot + child.activity(room - for_task, mark) + dot + cut(task, for_task, mark)
