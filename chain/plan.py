"""The plan of a session: a list of tasks that the user and the model both work on.

A task is PENDING until it is DONE or FAILED, which is final. Numbers from 1 never move: no single task is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from chain.errors import PlanError
from chain.events import Author, TaskState, TaskView
from chain.journal.records import PlanChange, PlanReplaced, PlanRestored, TaskAdded, TaskClosed
from chain.lines.parse import AddTask, ClearTasks, CompleteTask, FailTask, ListTasks, PlanCommand
from chain.text.phrases import BOXES, how_far
from chain.text.wording import counted

MAX_TASKS = 200
"""Tasks in a plan: it is sent to the model whole, and a list that nobody can read helps nobody."""

MAX_TASK = 1_000
"""Characters of a task, or of the reason why one failed, for the same cause."""

DONE, NOT_DONE = "(Done: {})", "(Not done: {})"
"""What the model is told of a plan command that code has carried out."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task; ``reason`` says why it failed."""

    text: str
    state: TaskState = "PENDING"
    reason: str = ""


def tasks_after(tasks: tuple[Task, ...], change: PlanChange) -> tuple[Task, ...]:
    """Return the tasks after a change."""
    match change:
        case TaskAdded(text):
            return (*tasks, Task(text))
        case TaskClosed(n, state, reason):
            return (*tasks[: n - 1], replace(tasks[n - 1], state=state, reason=reason), *tasks[n:])
        case PlanReplaced(texts):
            return tuple(Task(text) for text in texts)
        case PlanRestored(views):
            return tuple(Task(view.text, view.state, view.reason) for view in views)


def views_of(tasks: Iterable[Task]) -> tuple[TaskView, ...]:
    """Return the tasks as events show them."""
    return tuple(TaskView(n, task.text, task.state, task.reason) for n, task in enumerate(tasks, 1))


class Plan:
    """The tasks, and the operations on them. Each operation raises ``PlanError`` or says what it did.

    ``record`` is called with each change. It applies the change, or raises ``JournalError`` and the plan stays as it
    was. ``revision`` counts the changes, and ``last_by`` made the last. ``line_id`` is the line that asks for a change,
    if one does.
    """

    def __init__(self, record: Callable[[PlanChange], None] | None = None) -> None:
        self.record = self.apply if record is None else record
        self.revision = 0
        self.last_by: Author | None = None
        self._tasks: tuple[Task, ...] = ()

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks in their order."""
        return self._tasks

    @property
    def counts(self) -> tuple[int, int]:
        """How many tasks are closed (done or failed), and how many there are."""
        return sum(t.state != "PENDING" for t in self._tasks), len(self._tasks)

    def carry_over(self, tasks: Iterable[Task]) -> None:
        """Begin with the tasks of an earlier plan, each in its state; without any nothing happens."""
        if views := views_of(tasks):
            self.record(PlanRestored(views, "user"))

    def add(self, text: str, by: Author, *, line_id: str = "") -> str:
        """Append a task."""
        task = _one_line(text, "a task")
        if len(self._tasks) >= MAX_TASKS:
            raise PlanError(f"the plan is full ({MAX_TASKS} tasks); clear it first")
        n = len(self._tasks) + 1  # who hears of the change may add another in the same step
        self.record(TaskAdded(task, by, line_id))
        return f"task {n} added: {task}"

    def close(
        self, n: int, state: Literal["DONE", "FAILED"], by: Author, reason: str = "", *, line_id: str = ""
    ) -> str:
        """Mark task ``n`` as done or failed."""
        if not 1 <= n <= len(self._tasks):
            held = f"the plan has {len(self._tasks)}" if self._tasks else "the plan is empty"
            raise PlanError(f"there is no task {n}; {held}")
        task = self._tasks[n - 1]
        if task.state != "PENDING":
            raise PlanError(f"task {n} is already {task.state}, which is final: {task.text}")
        why = _one_line(reason, "a reason") if reason.strip() else ""
        self.record(TaskClosed(n, state, why, by, line_id))
        verb = "completed" if state == "DONE" else "failed"
        return f"task {n} {verb}: {task.text}" + (f" ({why})" if why else "")

    def replace_all(self, texts: Iterable[str], by: Author) -> str:
        """Start over with these tasks."""
        tasks = tuple(_one_line(text, "a task") for text in texts)
        if len(tasks) > MAX_TASKS:
            raise PlanError(f"{len(tasks)} tasks are too many; a plan has at most {MAX_TASKS}")
        self.record(PlanReplaced(tasks, by))
        return f"the plan now has {counted(len(tasks), 'task')}"

    def clear(self, by: Author, *, line_id: str = "") -> str:
        """Take all tasks away."""
        count = len(self._tasks)
        self.record(PlanReplaced((), by, line_id))
        return f"the plan is cleared, {counted(count, 'task')} removed"

    def carry_out(self, command: PlanCommand, *, line_id: str = "") -> str:
        """Carry out a plan command of the user, that of a line if it has an id; returns what was done."""
        match command:
            case AddTask(text):
                return self.add(text, "user", line_id=line_id)
            case CompleteTask(n):
                return self.close(n, "DONE", "user", line_id=line_id)
            case FailTask(n, reason):
                return self.close(n, "FAILED", "user", reason, line_id=line_id)
            case ListTasks():
                return "the plan:\n" + self.render() if self._tasks else "the plan is empty"
            case ClearTasks():
                return self.clear("user", line_id=line_id)

    def render(self) -> str:
        """Return the plan as text for people and models: one row per task, then the counts."""
        if not self._tasks:
            return "The plan is empty."
        rows = [
            f"{BOXES[t.state]} {n}. {t.text}" + (f" ({t.reason})" if t.reason else "")
            for n, t in enumerate(self._tasks, 1)
        ]
        return "\n".join([*rows, how_far([task.state for task in self._tasks])])

    def apply(self, change: PlanChange) -> None:
        """Apply a change that is on record. Raise ``IndexError`` if its task is not there."""
        self._tasks, self.revision, self.last_by = tasks_after(self._tasks, change), self.revision + 1, change.by


def outcome_of(command: PlanCommand, tasks: Iterable[Task]) -> str:
    """Return what the model is told of a plan command that code carries out on these tasks."""
    plan = Plan()
    plan.carry_over(tasks)
    try:
        return DONE.format(plan.carry_out(command))
    except PlanError as error:
        return NOT_DONE.format(error)


@dataclass(slots=True)
class PlanNews:
    """What an agent's model knows of the plan, as its revisions. Requests tell it the news until one has a reply.

    ``known`` is ``None`` if its conversation says nothing of a plan that has tasks. ``sent`` is the revision of the
    last request.
    """

    known: int | None = 0
    sent: int = 0

    def pending(self, plan: Plan, agent: str) -> str:
        """Return what the next request of an agent has to say of the plan; empty if its model knows it."""
        is_own = plan.revision != self.sent and plan.last_by == agent
        return "" if is_own or self.known == plan.revision else plan.render()

    def send(self, plan: Plan, agent: str) -> None:
        """Note that a request is sent. What the agent changed itself, its model knows."""
        if plan.revision != self.sent and plan.last_by == agent:
            self.known = plan.revision
        self.sent = plan.revision

    def read(self) -> None:
        """Note a reply to the last request. A change that came meanwhile is still news."""
        self.known = self.sent

    def learn(self, plan: Plan) -> None:
        """Note that the conversation begins with the plan as it is now."""
        self.known = self.sent = plan.revision

    def forget(self, plan: Plan) -> None:
        """Note that what the model was told of the plan may have left its conversation."""
        self.known = None if plan.tasks else plan.revision
        self.sent = plan.revision


def _one_line(text: str, what: str) -> str:
    """Return the text of a task on one line, since the plan is shown as a list with one row per task."""
    folded = " ".join(text.split())
    if not folded:
        raise PlanError(f"{what} needs a text")
    if len(folded) > MAX_TASK:
        raise PlanError(f"{what} has at most {MAX_TASK:,} characters, and this one has {len(folded):,}")
    return folded
