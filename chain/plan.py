"""The plan of a session: a list of tasks that the user and the model both work on.

A task is PENDING until it is DONE or FAILED, and both of those are final. Numbers count from 1 and never move, since
nothing takes a single task away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from chain.errors import PlanError
from chain.lines import AddTask, ClearTasks, CompleteTask, FailTask, ListTasks, PlanCommand

TaskState: TypeAlias = Literal["PENDING", "DONE", "FAILED"]
Author: TypeAlias = Literal["user", "model"]

MARKS: dict[TaskState, str] = {"PENDING": "[ ]", "DONE": "[✓]", "FAILED": "[✗]"}

MAX_TASKS = 200
"""Tasks in a plan: it is sent to the model whole, and a list that nobody can read helps nobody."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task; ``reason`` says why it failed."""

    text: str
    state: TaskState = "PENDING"
    reason: str = ""


class Plan:
    """The tasks, and the operations on them. Each operation raises ``PlanError`` or says what it did.

    ``on_change(tasks, by)`` is called with the new tasks before each change; what it raises keeps the plan as it is.
    """

    def __init__(self, on_change: Callable[[tuple[Task, ...], Author], None] = lambda tasks, by: None) -> None:
        self._tasks: tuple[Task, ...] = ()
        self._on_change = on_change

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks in their order."""
        return self._tasks

    @property
    def counts(self) -> tuple[int, int]:
        """How many tasks are closed (done or failed), and how many there are."""
        return sum(t.state != "PENDING" for t in self._tasks), len(self._tasks)

    def restore(self, tasks: Iterable[Task]) -> None:
        """Put back a plan that was saved, without announcing it as a change."""
        self._tasks = tuple(tasks)

    def add(self, text: str, by: Author) -> str:
        """Append a task."""
        task = Task(_one_line(text))
        if len(self._tasks) >= MAX_TASKS:
            raise PlanError(f"the plan is full ({MAX_TASKS} tasks); clear it first")
        self._set((*self._tasks, task), by)
        return f"task {len(self._tasks)} added: {task.text}"

    def close(self, n: int, state: Literal["DONE", "FAILED"], by: Author, reason: str = "") -> str:
        """Mark task ``n`` as done or failed."""
        if not 1 <= n <= len(self._tasks):
            held = f"the plan has {len(self._tasks)}" if self._tasks else "the plan is empty"
            raise PlanError(f"there is no task {n}; {held}")
        task = self._tasks[n - 1]
        if task.state != "PENDING":
            raise PlanError(f"task {n} is already {task.state}, which is final: {task.text}")
        closed = replace(task, state=state, reason=_one_line(reason) if reason.strip() else "")
        self._set((*self._tasks[: n - 1], closed, *self._tasks[n:]), by)
        verb = "completed" if state == "DONE" else "failed"
        return f"task {n} {verb}: {task.text}" + (f" ({closed.reason})" if closed.reason else "")

    def replace_all(self, texts: Iterable[str], by: Author) -> str:
        """Start over with these tasks."""
        tasks = tuple(Task(_one_line(t)) for t in texts)
        if len(tasks) > MAX_TASKS:
            raise PlanError(f"{len(tasks)} tasks are too many; a plan has at most {MAX_TASKS}")
        self._set(tasks, by)
        return f"the plan now has {len(tasks)} tasks"

    def clear(self, by: Author) -> str:
        """Take all tasks away."""
        count = len(self._tasks)
        self._set((), by)
        return f"the plan is cleared, {count} tasks removed"

    def carry_out(self, command: PlanCommand, by: Author = "user") -> str:
        """Do what a plan command says, and tell what was done."""
        match command:
            case AddTask(text):
                return self.add(text, by)
            case CompleteTask(n):
                return self.close(n, "DONE", by)
            case FailTask(n, reason):
                return self.close(n, "FAILED", by, reason)
            case ListTasks():
                return "the plan:\n" + self.render() if self._tasks else "the plan is empty"
            case ClearTasks():
                return self.clear(by)

    def render(self) -> str:
        """The plan for people and models: a row a task, then the counts."""
        if not self._tasks:
            return "The plan is empty."
        rows = [
            f"{MARKS[t.state]} {n}. {t.text}" + (f" ({t.reason})" if t.reason else "")
            for n, t in enumerate(self._tasks, 1)
        ]
        of = {state: sum(t.state == state for t in self._tasks) for state in MARKS}
        return "\n".join([*rows, f"{of['DONE']} done, {of['FAILED']} failed, {of['PENDING']} pending"])

    def _set(self, tasks: tuple[Task, ...], by: Author) -> None:
        self._on_change(tasks, by)
        self._tasks = tasks


def _one_line(text: str) -> str:
    """A task is one line: more would tear the list that the plan is shown as."""
    folded = " ".join(text.split())
    if not folded:
        raise PlanError("a task needs a text")
    return folded
