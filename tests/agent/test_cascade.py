"""How a stop, an interrupt, a now line and a limit of one agent reach the other agents of the tree. L1 is the query."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
from support.agents import WAIT, AgentSession, Call, ObedientModel, open_agents, start, task_of
from support.sessions import INTERRUPTED, SKIPPED, call_at_event, make_settings

from chain import events
from chain.errors import ModelError
from chain.model import Request


def count_starts(agents: AgentSession) -> tuple[int, int]:
    """Return the number of model calls and of started tools."""
    started = sum(r["type"] == "tool_started" for r in agents.session.records)
    return len(agents.session.model.requests), started


async def check_ends_run(agents: AgentSession, act: Callable[[], object]) -> events.Result:
    """Check that no model call and no tool starts after ``act``, and return the result of the run."""
    before = count_starts(agents)
    act()
    result = await agents.finish_run()
    assert count_starts(agents) == before
    assert agents.active == []
    return result


async def check_next_run(agents: AgentSession) -> None:
    """Check that a next run, with a child, ends well."""
    await agents.start_run([start("explore", answer="Again.")], answer="Fine.")
    await agents.session.chain.wait_idle()
    assert (agents.session.result.status, agents.session.result.result) == ("done", "Fine.")
    assert agents.results("main")[-1] == ("Again.", False)


def statuses(agents: AgentSession) -> dict[str, str]:
    """Return the status of each child that has ended."""
    return {e.name: e.status for e in agents.session.of(events.AgentEnded)}


TREES: dict[str, list[Call]] = {
    "main": [WAIT],
    "main and child": [start("explore", [WAIT])],
    "main, child and grandchild": [start("agent", [start("agent", [start("explore", [WAIT])])])],
    "several children": [start("explore", [WAIT]), start("plan", [WAIT]), start("agent", [WAIT, WAIT])],
}


@pytest.mark.parametrize("calls", TREES.values(), ids=TREES)
async def test_an_interrupt_ends_all_running_tools(calls: list[Call]) -> None:
    async with open_agents() as agents:
        await agents.start_run(calls, answer="Not this.")
        result = await check_ends_run(agents, agents.session.interrupt)
        assert (result.status, result.termination_reason) == ("interrupted", "user_interrupted")
        assert set(statuses(agents).values()) <= {"interrupted"}, "none if there is no child"
        for parent in ("main", "agent-1", "agent-2"):
            assert all(is_error for _, is_error in agents.results(parent)), "an interrupted child has no answer"
        assert {text for text, _ in agents.results("main")} == {INTERRUPTED}
        await check_next_run(agents)


@pytest.mark.parametrize("calls", TREES.values(), ids=TREES)
async def test_a_stop_lets_running_tools_finish(calls: list[Call]) -> None:
    async with open_agents() as agents:
        await agents.start_run([["plan_list", {}]], calls, answer="Not this.")
        result = await check_ends_run(agents, lambda: agents.session.chain.submit("stop"))
        assert result.status == "cancelled_with_partial"
        assert all(status.startswith("cancelled") for status in statuses(agents).values())
        _, *after_the_plan = agents.results("main")
        for text, is_error in after_the_plan:
            assert is_error == ("[Skipped" in text or "ended: cancelled" in text), "a tool that ran has a result"
        await check_next_run(agents)


BETWEEN_CALLS: dict[str, tuple[type[events.Event], dict[str, Any]]] = {
    "at a tool's result": (events.ToolResult, {"name": "wait"}),
    "at the next iteration": (events.IterationStarted, {"iteration": 2}),
}


@pytest.mark.parametrize("agent", ["main", "agent-1", "explore-1"])
@pytest.mark.parametrize(("event", "fields"), BETWEEN_CALLS.values(), ids=BETWEEN_CALLS)
async def test_nothing_starts_after_an_interrupt(event: type[events.Event], fields: dict[str, Any], agent: str) -> None:
    async with open_agents() as agents:
        call_at_event(agents.session, event, agents.session.interrupt, agent=agent, **fields)
        await agents.start_run([WAIT, start("agent", [WAIT, start("explore", [WAIT])])])
        await agents.finish_run()
        marks = [mark.what for mark in agents.session.marks]
        after_interrupt = marks[marks.index(None) :]  # ``None`` is the mark of an interrupt
        assert not any(isinstance(mark, Request | events.ToolCall) for mark in after_interrupt)
        assert agents.session.result.status == "interrupted"


async def test_an_interrupted_answer_ends_all_parents() -> None:
    async with open_agents() as agents:
        session, half = agents.session, "Half an answer"
        call_at_event(session, events.TextDelta, session.interrupt, agent="explore-1", text=half)
        await agents.start_run([start("agent", [start("explore", answer=half)], answer="Not this.")])
        await agents.finish_run()
        assert agents.session.result.status == "interrupted"
        assert agents.results("agent-1") == [(INTERRUPTED, True)]
        assert agents.results("main") == [(INTERRUPTED, True)]
        assert agents.texts("explore-1")[-1] == "[The user interrupted the run here]"
        assert agents.texts("agent-1")[-1] == "[The user interrupted the run here]"


async def test_a_childs_stop_reaches_its_parents() -> None:
    async with open_agents() as agents:
        await agents.start_run([start("agent", [start("explore", [WAIT], [WAIT])], answer="Not this.")])
        result = await check_ends_run(agents, lambda: agents.session.chain.submit("stop"))
        ((text, is_error),) = agents.results("agent-1")
        assert is_error
        assert "explore-1 ended: cancelled_with_partial" in text
        assert "wait: explore-1 waited" in text
        assert result.partial_results == ("explore-1 waited",), "the main agent counts results of all descendants"
        assert result.status == "cancelled_with_partial"
        assert "• wait: explore-1 waited" in result.result


async def test_partial_results_keep_the_order_of_the_calls() -> None:
    async with open_agents() as agents:
        await agents.start_run([WAIT, start("plan", [WAIT]), start("explore", [WAIT]), start("agent", answer="Done.")])
        agents.session.chain.submit("stop")
        for agent in ("explore-1", "plan-1", "main"):
            agents.waiters.release(agent)
            await agents.wait_blocked()
        await agents.session.chain.wait_idle()
        partial_results = agents.session.result.partial_results
        assert partial_results == ("main waited", "plan-1 waited", "explore-1 waited", "Done.")


async def test_a_stop_for_one_agent_spares_others() -> None:
    async with open_agents() as agents:
        await agents.start_run([start("agent", [start("explore", [WAIT])]), start("plan", [WAIT], answer="Planned.")])
        assert agents.session.chain.submit("stop", to="agent-1").what == "stopping"
        assert agents.send("use B", to="plan-1") == "plan-1"
        result = await agents.finish_run()
        assert (result.status, result.result) == ("done", "The answer.")
        cancelled = dict.fromkeys(["explore-1", "agent-1"], "cancelled_with_partial")
        assert statuses(agents) == {**cancelled, "plan-1": "done"}
        (_, is_error), plan_result = agents.results("main")
        assert is_error
        assert plan_result == ("Planned.", False)


async def test_an_urgent_line_skips_only_in_its_target() -> None:
    async with open_agents() as agents:
        add = ["plan_add_task", {"task": "x"}]
        await agents.start_run([start("plan", [WAIT, add]), start("agent", [WAIT, add])])
        agents.send("!use B", to="plan-1")
        await agents.finish_run()
        assert agents.results("plan-1") == [("plan-1 waited", False), (SKIPPED, True)]
        assert [is_error for _, is_error in agents.results("agent-1")] == [False, False]
        assert [t.text for t in agents.session.chain.plan.tasks] == ["x"]


async def test_a_now_line_cuts_its_target_and_below() -> None:
    async with open_agents() as agents:
        parent = start("agent", [WAIT, start("explore", [WAIT])], answer="Continued.")
        await agents.start_run([parent, start("plan", [WAIT], answer="Planned.")])
        agents.send("!!use B", to="agent-1")
        await agents.wait_blocked()
        # After the line, agent-1 only answers, so it may have ended.
        assert agents.active == ["main", "agent-1", "plan-1"] or agents.active == ["main", "plan-1"]
        result = await agents.finish_run()
        assert result.status == "done"
        assert statuses(agents) == {"explore-1": "interrupted", "agent-1": "done", "plan-1": "done"}
        assert agents.results("agent-1") == [(INTERRUPTED, True), (INTERRUPTED, True)]
        (interruption,) = agents.interruptions("agent-1")
        assert interruption.point == "N", "the point after a cut"
        assert not any("interrupted the run" in text for text in agents.texts("agent-1"))
        assert agents.results("main") == [("Continued.", False), ("Planned.", False)]


async def test_a_stop_as_a_child_starts_ends_both() -> None:
    async with open_agents() as agents:
        call_at_event(agents.session, events.AgentStarted, lambda: agents.session.chain.submit("stop"))
        await agents.start_run([start("explore", [WAIT])])
        await agents.session.chain.wait_idle()
        assert agents.session.result.status == "cancelled"
        assert len(agents.session.model.requests) == 1
        await check_next_run(agents)


async def test_no_child_begins_after_a_stop() -> None:
    async with open_agents() as agents:
        call_at_event(agents.session, events.ToolCall, lambda: agents.session.chain.submit("stop"), name="explore")
        await agents.start_run([start("explore", [WAIT])])
        await agents.session.chain.wait_idle()
        assert agents.session.of(events.AgentStarted) == []
        assert agents.results("main") == [("explore-1 was not started: the user stopped the run.", True)]


@pytest.mark.parametrize("end", ["stop", "interrupt"])
async def test_stopping_the_tree_returns_all_waiting_lines(end: str) -> None:
    async with open_agents() as agents:
        await agents.start_run([start("agent", [start("explore", [WAIT])])])
        agents.send("first line, for the child")
        agents.send("second line, for its parent", to="main")
        agents.session.interrupt() if end == "interrupt" else agents.session.chain.submit("stop")
        await agents.finish_run()
        assert [agents.session.state(id) for id in ("L2", "L3")] == ["returned"] * 2
        assert agents.session.chain.lines.waiting == ()


async def test_a_time_limit_reaches_the_whole_tree(autojump_clock: trio.testing.MockClock) -> None:
    async with open_agents(settings=make_settings(agents=True, timeout_s=5)) as agents:
        assert agents.session.chain.submit(task_of([start("agent", [start("explore", [WAIT])])])).what == "started"
        await agents.session.chain.wait_idle()
        assert agents.session.result.status == "limit_reached"
        assert [e.status for e in agents.session.of(events.AgentEnded)] == ["limit_reached"] * 2
        assert agents.results("agent-1") == [(INTERRUPTED, True)]


CALL_TOKENS = ObedientModel().usage.total_tokens
BUDGET = 3 * CALL_TOKENS - 1
"""A budget that the third model call exceeds, whichever agent makes it."""


async def test_a_budget_is_of_the_whole_tree() -> None:
    async with open_agents(settings=make_settings(agents=True, budget_tokens=BUDGET)) as agents:
        await agents.start_run([start("explore", [WAIT], [WAIT])])
        await agents.finish_run()
        assert agents.session.result.status == "limit_reached"
        assert agents.session.result.usage.total_tokens == 3 * CALL_TOKENS
        ((text, is_error),) = agents.results("main")
        assert is_error
        assert "explore-1 ended: limit_reached" in text
        assert statuses(agents) == {"explore-1": "limit_reached"}


async def test_no_retry_starts_beyond_the_budget(autojump_clock: trio.testing.MockClock) -> None:
    """While one agent pauses before its next attempt, another one uses up the budget."""
    failing_task, has_failed = task_of(answer="Not this."), False

    async def fail_once(request: Request) -> None:
        nonlocal has_failed
        if request.messages[0].text == failing_task and not has_failed:
            has_failed = True
            raise ModelError("the service is unwell", retryable=True, retry_after=5)

    settings = make_settings(agents=True, budget_tokens=BUDGET)
    async with open_agents(model=ObedientModel(on_reply=fail_once), settings=settings) as agents:
        calls = [["explore", {"task": failing_task}], start("plan", [["plan_list", {}]])]
        assert agents.session.chain.submit(task_of(calls)).what == "started"
        await agents.session.chain.wait_idle()
        assert agents.session.result.usage.total_tokens == 3 * CALL_TOKENS
        assert statuses(agents) == {"explore-1": "limit_reached", "plan-1": "done"}
        assert agents.session.result.status == "limit_reached"


async def test_calls_skipped_by_children_are_counted() -> None:
    async with open_agents() as agents:
        await agents.start_run([start("agent", [WAIT, ["plan_add_task", {"task": "x"}]])])
        agents.session.chain.submit("stop")
        result = await agents.finish_run()
        assert "[1 done, 1 skipped]" in result.result, "the child's calls of wait and of plan_add_task"
