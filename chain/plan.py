"""The plan of a session: a list of tasks that the user and the model both change.

A task is PENDING until it becomes DONE or FAILED, which is final. Tasks are numbered from 1, and a number never
changes: no single task can be removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from chain.errors import PlanError
from chain.events import Author, TaskState, TaskView
from chain.journal.records import PlanChange, PlanReplaced, PlanRestored, TaskAdded, TaskClosed
from chain.lines.parse import AddTask, ClearTasks, CompleteTask, FailTask, ListTasks, PlanCommand
from chain.text.phrases import BOXES, plan_progress
from chain.text.wording import pluralize

MAX_TASKS = 200
"""The maximum number of tasks. The number is limited, because the whole plan is sent to the model."""

MAX_TASK = 1_000
"""The maximum length of a task, and of the reason for a failure, in characters."""

DONE, NOT_DONE = "(Done: {})", "(Not done: {})"
"""Texts that tell the model whether a plan command was executed, and the outcome."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task of the plan. ``reason`` says why the task failed; it is empty otherwise."""

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
    """Return the form that tasks have in events."""
    return tuple(TaskView(n, task.text, task.state, task.reason) for n, task in enumerate(tasks, 1))


class Plan:
    """The task list of a session, with the operations that change it.

    Each operation returns a sentence about its effect, or raises ``PlanError``.

    ``record`` is called with each change. It applies the change, or raises ``JournalError`` and leaves the plan
    unchanged. ``revision`` is the number of changes, and ``last_by`` the author of the last one. The argument
    ``line_id`` is the id of the line that requests a change; empty if no line does.
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
        """The number of closed tasks (done or failed), and the number of all tasks."""
        return sum(t.state != "PENDING" for t in self._tasks), len(self._tasks)

    def carry_over(self, tasks: Iterable[Task]) -> None:
        """Replace the plan by ``tasks``, each in its state. Do nothing if there are no ``tasks``."""
        if views := views_of(tasks):
            self.record(PlanRestored(views, "user"))

    def add(self, text: str, by: Author, *, line_id: str = "") -> str:
        """Append a task."""
        task = _one_line(text, "a task")
        if len(self._tasks) >= MAX_TASKS:
            raise PlanError(f"the plan is full ({MAX_TASKS} tasks); clear it first")
        n = len(self._tasks) + 1  # read before the record: a listener of the change may add another task
        self.record(TaskAdded(task, by, line_id))
        return f"task {n} added: {task}"

    def close(
        self, n: int, state: Literal["DONE", "FAILED"], by: Author, reason: str = "", *, line_id: str = ""
    ) -> str:
        """Mark task ``n`` as done or failed."""
        if not 1 <= n <= len(self._tasks):
            size = f"the plan has {len(self._tasks)}" if self._tasks else "the plan is empty"
            raise PlanError(f"there is no task {n}; {size}")
        task = self._tasks[n - 1]
        if task.state != "PENDING":
            raise PlanError(f"task {n} is already {task.state}, which is final: {task.text}")
        why = _one_line(reason, "a reason") if reason.strip() else ""
        self.record(TaskClosed(n, state, why, by, line_id))
        verb = "completed" if state == "DONE" else "failed"
        return f"task {n} {verb}: {task.text}" + (f" ({why})" if why else "")

    def replace_all(self, texts: Iterable[str], by: Author) -> str:
        """Replace all tasks by new ones with these texts."""
        tasks = tuple(_one_line(text, "a task") for text in texts)
        if len(tasks) > MAX_TASKS:
            raise PlanError(f"{len(tasks)} tasks are too many; a plan has at most {MAX_TASKS}")
        self.record(PlanReplaced(tasks, by))
        return f"the plan now has {pluralize(len(tasks), 'task')}"

    def clear(self, by: Author, *, line_id: str = "") -> str:
        """Remove all tasks."""
        count = len(self._tasks)
        self.record(PlanReplaced((), by, line_id))
        return f"the plan is cleared, {pluralize(count, 'task')} removed"

    def carry_out(self, command: PlanCommand, *, line_id: str = "") -> str:
        """Execute a plan command of the user. Return a sentence about the effect."""
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
        return "\n".join([*rows, plan_progress([task.state for task in self._tasks])])

    def apply(self, change: PlanChange) -> None:
        """Apply a recorded change. Raise ``IndexError`` if the task to close does not exist."""
        self._tasks, self.revision, self.last_by = tasks_after(self._tasks, change), self.revision + 1, change.by


def outcome_of(command: PlanCommand, tasks: Iterable[Task]) -> str:
    """Return the text for the model if a plan command were executed on ``tasks``, which do not change."""
    plan = Plan()
    plan.carry_over(tasks)
    try:
        return DONE.format(plan.carry_out(command))
    except PlanError as error:
        return NOT_DONE.format(error)


@dataclass(slots=True)
class PlanNews:
    """A tracker of the plan revision that an agent's model has seen.

    A changed plan is added to every request until one of these requests gets a reply. ``known`` is the revision that
    the model has seen; ``None`` if the plan has tasks, and the conversation may no longer contain the plan, for example
    after a compaction. ``sent`` is the revision at the last request.
    """

    known: int | None = 0
    sent: int = 0

    def pending(self, plan: Plan, agent: str) -> str:
        """Return the text about the plan for the next request of an agent; empty if the model knows the plan."""
        is_own = plan.revision != self.sent and plan.last_by == agent
        return "" if is_own or self.known == plan.revision else plan.render()

    def record_request(self, plan: Plan, agent: str) -> None:
        """Record that a request is sent. A change by the agent itself counts as known to its model."""
        if plan.revision != self.sent and plan.last_by == agent:
            self.known = plan.revision
        self.sent = plan.revision

    def record_reply(self) -> None:
        """Record the reply to the last request. Later changes remain unknown to the model."""
        self.known = self.sent

    def mark_known(self, plan: Plan) -> None:
        """Record that the conversation starts with the current plan."""
        self.known = self.sent = plan.revision

    def mark_unknown(self, plan: Plan) -> None:
        """Record that the conversation may no longer contain the current plan, for example after a compaction."""
        self.known = None if plan.tasks else plan.revision
        self.sent = plan.revision


def _one_line(text: str, what: str) -> str:
    """Return a text on one row, with single spaces. Raise ``PlanError`` if the text is empty or too long.

    ``what`` names the text in the error.
    """
    folded = " ".join(text.split())
    if not folded:
        raise PlanError(f"{what} needs a text")
    if len(folded) > MAX_TASK:
        raise PlanError(f"{what} has at most {MAX_TASK:,} characters, and this one has {len(folded):,}")
    return folded
