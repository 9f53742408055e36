"""The operations of the plan, their messages, and what they refuse."""

from collections.abc import Callable
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
    assert plan.counts == (2, 3), "closed tasks and all tasks"
    assert plan.render() == "[✓] 1. find\n[✗] 2. a b (no network)\n[ ] 3. count it\n1 done, 1 failed, 1 pending"


@pytest.mark.parametrize("state", ["DONE", "FAILED"])
@pytest.mark.parametrize("new_state", ["DONE", "FAILED"])
def test_done_and_failed_are_final(state: Literal["DONE", "FAILED"], new_state: Literal["DONE", "FAILED"]) -> None:
    plan = Plan()
    plan.carry_over([Task("find", state)])
    with pytest.raises(PlanError, match=f"task 1 is already {state}"):
        plan.close(1, new_state, "user")
    assert plan.tasks == (Task("find", state),)


@pytest.mark.parametrize("n", [0, 3, -1])
def test_unknown_numbers_are_refused(n: int) -> None:
    with pytest.raises(PlanError, match=f"there is no task {n}; the plan has 2"):
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


def test_the_number_of_tasks_is_limited() -> None:
    plan = plan_of(*["x"] * MAX_TASKS)
    with pytest.raises(PlanError, match="full"):
        plan.add("one more", "user")
    with pytest.raises(PlanError, match="too many"):
        plan.replace_all(["x"] * (MAX_TASKS + 1), "model")
    assert len(plan.tasks) == MAX_TASKS


def test_a_listener_receives_each_change_with_its_author() -> None:
    changes: list[PlanChange] = []
    plans: list[tuple[Task, ...]] = []

    def listen(change: PlanChange) -> None:
        plan.apply(change)
        changes.append(change)
        plans.append(plan.tasks)

    plan = Plan(listen)
    plan.apply(PlanReplaced(("a",), "user"))
    plan.carry_out(ListTasks())
    with pytest.raises(PlanError):
        plan.close(5, "DONE", "user")
    assert changes == []

    plan.add("b", "user")
    plan.close(1, "DONE", "model")
    plan.replace_all(["c"], "model")
    plan.clear("user")
    assert [change.by for change in changes] == ["user", "model", "model", "user"]
    assert plans == [(Task("a"), Task("b")), (Task("a", "DONE"), Task("b")), (Task("c"),), ()]

    tasks: tuple[Task, ...] = (Task("a"),)
    for change, plan_after in zip(changes, plans, strict=True):
        tasks = tasks_after(tasks, change)
        assert tasks == plan_after, "the changes alone determine the plan"


LONGEST = "x" * 1_000
OPERATIONS: dict[str, Callable[[Plan, str], object]] = {
    "add": lambda plan, text: plan.add(text, "user"),
    "fail with a reason": lambda plan, text: plan.close(1, "FAILED", "user", text),
    "replace": lambda plan, text: plan.replace_all([text], "model"),
}


@pytest.mark.parametrize("operate", OPERATIONS.values(), ids=OPERATIONS)
def test_the_length_of_a_text_is_limited(operate: Callable[[Plan, str], object]) -> None:
    plan = plan_of("a")
    with pytest.raises(PlanError, match="has at most 1,000 characters, and this one has 1,001"):
        operate(plan, LONGEST + "x")
    assert plan.tasks == (Task("a"),)
    operate(plan, LONGEST)
    assert plan.tasks != (Task("a"),)


def test_plan_commands_change_the_plan() -> None:
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
