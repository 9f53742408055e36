"""The plan: what its operations do, say and refuse."""

from typing import Literal

import pytest

from chain.errors import PlanError
from chain.journal.records import PlanChange, PlanReplaced
from chain.lines.parse import AddTask, ClearTasks, CompleteTask, FailTask, ListTasks
from chain.plan import MAX_TASKS, Plan, Task, tasks_after


def plan_of(*texts: str) -> Plan:
    plan = Plan()
    plan.carry_over(Task(text) for text in texts)
    return plan


def test_tasks_are_added_completed_and_failed() -> None:
    plan = Plan()
    assert plan.render() == "The plan is empty."
    plan.replace_all(["find", " a\n b "], "model")

    assert plan.add("  count\n it ", "user") == "task 3 added: count it"
    assert plan.close(1, "DONE", "model") == "task 1 completed: find"
    assert plan.close(2, "FAILED", "user", "no\nnetwork") == "task 2 failed: a b (no network)"

    assert plan.tasks == (Task("find", "DONE"), Task("a b", "FAILED", "no network"), Task("count it"))
    assert plan.counts == (2, 3)
    assert plan.render() == "[✓] 1. find\n[✗] 2. a b (no network)\n[ ] 3. count it\n1 done, 1 failed, 1 pending"


@pytest.mark.parametrize("state", ["DONE", "FAILED"])
@pytest.mark.parametrize("again", ["DONE", "FAILED"])
def test_done_and_failed_are_final(state: Literal["DONE", "FAILED"], again: Literal["DONE", "FAILED"]) -> None:
    plan = Plan()
    plan.carry_over([Task("find", state)])

    with pytest.raises(PlanError, match=f"task 1 is already {state}"):
        plan.close(1, again, "user")

    assert plan.tasks == (Task("find", state),)


@pytest.mark.parametrize(
    ("n", "words"), [(0, "there is no task 0; the plan has 2"), (3, "no task 3"), (-1, "no task -1")]
)
def test_unknown_numbers_are_refused(n: int, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        plan_of("find", "fetch").close(n, "DONE", "user")
    with pytest.raises(PlanError, match="the plan is empty"):
        Plan().close(n, "DONE", "user")


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_a_task_needs_a_text(text: str) -> None:
    plan = plan_of("find")

    with pytest.raises(PlanError, match="needs a text"):
        plan.add(text, "user")
    with pytest.raises(PlanError, match="needs a text"):
        plan.replace_all(["a", text], "model")

    assert plan.tasks == (Task("find"),)


def test_a_plan_has_a_bound() -> None:
    plan = plan_of(*["x"] * MAX_TASKS)

    with pytest.raises(PlanError, match="full"):
        plan.add("one more", "user")
    with pytest.raises(PlanError, match="too many"):
        plan.replace_all(["x"] * (MAX_TASKS + 1), "model")

    assert len(plan.tasks) == MAX_TASKS


def test_every_change_is_announced_with_its_author() -> None:
    authors: list[tuple[str, int]] = []
    changes: list[PlanChange] = []
    states: list[tuple[Task, ...]] = []

    def note(change: PlanChange) -> None:
        plan.apply(change)
        authors.append((change.by, len(plan.tasks)))
        changes.append(change)
        states.append(plan.tasks)

    plan = Plan(note)

    plan.apply(PlanReplaced(("a",), "user"))
    plan.render()
    plan.carry_out(ListTasks())
    with pytest.raises(PlanError):
        plan.close(5, "DONE", "user")
    assert authors == []

    plan.add("b", "user")
    plan.close(1, "DONE", "model")
    plan.replace_all(["c"], "model")
    plan.clear("user")
    assert authors == [("user", 2), ("model", 2), ("model", 1), ("user", 0)]

    tasks: tuple[Task, ...] = (Task("a"),)
    for change, after in zip(changes, states, strict=True):
        tasks = tasks_after(tasks, change)
        assert tasks == after, "the changes alone give the plan"


@pytest.mark.parametrize("size", [1_000, 1_001])
def test_a_task_and_a_reason_are_bounded(size: int) -> None:
    plan = Plan()
    plan.add("a", "user")
    for attempt in (
        lambda: plan.add("x" * size, "user"),
        lambda: plan.close(1, "FAILED", "user", "x" * size),
        lambda: plan.replace_all(["x" * size], "model"),
    ):
        if size <= 1_000:
            attempt()
            continue
        before = plan.tasks
        with pytest.raises(PlanError, match="has at most 1,000 characters, and this one has 1,001"):
            attempt()
        assert plan.tasks == before


def test_plan_commands() -> None:
    plan = Plan()

    assert plan.carry_out(ListTasks()) == "the plan is empty"
    assert plan.carry_out(AddTask("verify SKU data")) == "task 1 added: verify SKU data"
    assert plan.carry_out(AddTask("b")) == "task 2 added: b"
    assert plan.carry_out(CompleteTask(1)) == "task 1 completed: verify SKU data"
    assert plan.carry_out(FailTask(2, "why")) == "task 2 failed: b (why)"
    assert plan.carry_out(ListTasks()) == f"the plan:\n{plan.render()}"
    plan.carry_out(ClearTasks())
    assert plan.tasks == ()


def test_changes_made_by_a_listener_come_later() -> None:
    def add_another(change: PlanChange) -> None:
        plan.apply(change)
        if len(plan.tasks) == 1:
            plan.add("second", "user")

    plan = Plan(add_another)
    plan.add("first", "user")
    assert [task.text for task in plan.tasks] == ["first", "second"]
    assert plan.revision == 2
