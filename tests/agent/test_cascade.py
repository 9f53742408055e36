"""How a stop and an interrupt reach the whole tree: each path of the design document on interrupts, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from support.agents import WAIT, Call, Family, Obedient, family, starts, work
from support.sessions import INTERRUPTED, SKIPPED, at, settings

from chain import events
from chain.errors import ModelError
from chain.model import Request


def so_far(agents: Family) -> tuple[int, int]:
    """How many model calls were made and how many tools started."""
    started = sum(r["type"] == "tool_started" for r in agents.session.records)
    return len(agents.session.model.requests), started


async def silent(agents: Family, act: Callable[[], object]) -> events.Result:
    """Do something that ends the run, and hold that nothing starts anywhere after it."""
    before = so_far(agents)
    act()
    assert so_far(agents) == before
    agents.waiters.open.default_factory = trio.Event
    for gate in agents.waiters.open.values():
        gate.set()
    await agents.session.chain.wait_idle()
    assert so_far(agents) == before, "no model call and no tool starts after it"
    assert agents.at_work == []
    return agents.session.result


async def works_again(agents: Family) -> None:
    """The next run works as if nothing had happened."""
    assert agents.session.chain.submit(work([starts("explore", answer="Again.")], answer="Fine.")).what == "started"
    await agents.session.chain.wait_idle()
    assert (agents.session.result.status, agents.session.result.result) == ("done", "Fine.")
    assert agents.results("main")[-1] == ("Again.", False)


PATHS: dict[str, list[Call]] = {
    "main": [WAIT],
    "main and child": [starts("explore", [WAIT])],
    "main, child and grandchild": [starts("agent", [starts("agent", [starts("explore", [WAIT])])])],
    "several children": [starts("explore", [WAIT]), starts("plan", [WAIT]), starts("agent", [WAIT, WAIT])],
}


@pytest.mark.parametrize("calls", PATHS.values(), ids=PATHS)
async def test_an_interrupt_while_tools_run(calls: list[Call]) -> None:
    async with family() as agents:
        await agents.begin(calls, answer="Not this.")
        result = await silent(agents, agents.session.interrupt)
        assert (result.status, result.termination_reason) == ("interrupted", "user_interrupted")
        assert {e.status for e in agents.session.of(events.AgentEnded)} <= {"interrupted"}
        # No parent takes its child's interrupt for an answer.
        for name in ("main", "agent-1", "agent-2"):
            assert all(is_error for _, is_error in agents.results(name))
        assert {text for text, _ in agents.results("main")} == {INTERRUPTED}
        await works_again(agents)


@pytest.mark.parametrize("calls", PATHS.values(), ids=PATHS)
async def test_a_stop_while_tools_run(calls: list[Call]) -> None:
    async with family() as agents:
        await agents.begin([["plan_list", {}]], calls, answer="Not this.")
        result = await silent(agents, lambda: agents.session.chain.submit("stop"))
        assert result.status == "cancelled_with_partial"
        for ended in agents.session.of(events.AgentEnded):
            assert ended.status.startswith("cancelled")
        for text, is_error in agents.results("main")[1:]:
            assert is_error == ("[Skipped" in text or "ended: cancelled" in text)
        await works_again(agents)


@pytest.mark.parametrize("name", ["main", "agent-1", "explore-1"])
@pytest.mark.parametrize("kind", [events.ToolResult, events.IterationStarted])
async def test_an_interrupt_between_two_model_calls(kind: type[events.Event], name: str) -> None:
    fields: dict[str, Any] = {"name": "wait"} if kind is events.ToolResult else {"iteration": 2}
    async with family() as agents:
        at(agents.session, kind, agents.session.interrupt, agent=name, **fields)
        await agents.begin([WAIT, starts("agent", [WAIT, starts("explore", [WAIT])])])
        await agents.finish()
        marks = [mark.what for mark in agents.session.marks]
        assert not any(isinstance(what, Request | events.ToolCall) for what in marks[marks.index(None) :])
        assert agents.session.result.status == "interrupted"


async def test_a_childs_interrupt_ends_its_parents() -> None:
    """A child that is cut while it answers has no answer, and its parents do not go on."""
    async with family() as agents:
        at(agents.session, events.TextDelta, agents.session.interrupt, agent="explore-1", text="Half an answer")
        await agents.begin([starts("agent", [starts("explore", answer="Half an answer")], answer="Not this.")])
        await agents.finish()
        assert agents.session.result.status == "interrupted"
        assert agents.results("agent-1") == [(INTERRUPTED, True)]
        assert agents.results("main") == [(INTERRUPTED, True)]
        assert agents.texts("explore-1")[-1] == "[The user interrupted the run here]"
        assert agents.texts("agent-1")[-1] == "[The user interrupted the run here]"


async def test_a_childs_stop_reaches_its_parents() -> None:
    async with family() as agents:
        await agents.begin([starts("agent", [starts("explore", [WAIT], [WAIT])], answer="Not this.")])
        result = await silent(agents, lambda: agents.session.chain.submit("stop"))
        ((text, is_error),) = agents.results("agent-1")
        assert is_error
        assert "explore-1 ended: cancelled_with_partial" in text
        assert "wait: explore-1 waited" in text, "what it had found"
        # The grandchild's result counts among those of all above it.
        assert result.partial_results == ("explore-1 waited",)
        assert result.status == "cancelled_with_partial"
        assert "• wait: explore-1 waited" in result.result


async def test_partial_results_keep_the_order_of_the_calls() -> None:
    async with family() as agents:
        await agents.begin([WAIT, starts("plan", [WAIT]), starts("explore", [WAIT]), starts("agent", answer="Done.")])
        agents.session.chain.submit("stop")
        agents.waiters.let_go("explore-1")
        await agents.quiet()
        agents.waiters.let_go("plan-1")
        await agents.quiet()
        agents.waiters.let_go("main")
        await agents.session.chain.wait_idle()
        found = agents.session.result.partial_results
        assert found == ("main waited", "plan-1 waited", "explore-1 waited", "Done.")


async def test_a_stop_for_one_agent_spares_others() -> None:
    async with family() as agents:
        await agents.begin([starts("agent", [starts("explore", [WAIT])]), starts("plan", [WAIT], answer="Planned.")])
        assert agents.session.chain.submit("stop", to="agent-1").what == "stopping"
        assert agents.send("use B", to="plan-1") == "plan-1"
        result = await agents.finish()
        assert (result.status, result.result) == ("done", "The answer.")
        ended = {e.name: e.status for e in agents.session.of(events.AgentEnded)}
        assert ended == {"explore-1": "cancelled_with_partial", "agent-1": "cancelled_with_partial", "plan-1": "done"}
        (stopped, planned) = agents.results("main")
        assert stopped[1]
        assert planned == ("Planned.", False)


async def test_an_urgent_line_skips_only_in_its_target() -> None:
    async with family() as agents:
        add = ["plan_add_task", {"task": "x"}]
        await agents.begin([starts("plan", [WAIT, add]), starts("agent", [WAIT, add])])
        agents.send("!use B", to="plan-1")
        await agents.finish()
        assert agents.results("plan-1") == [("plan-1 waited", False), (SKIPPED, True)]
        assert [is_error for _, is_error in agents.results("agent-1")] == [False, False]
        assert [t.text for t in agents.session.chain.plan.tasks] == ["x"]


async def test_a_now_line_cuts_its_target_and_below() -> None:
    async with family() as agents:
        deep = starts("agent", [WAIT, starts("explore", [WAIT])], answer="Went on.")
        await agents.begin([deep, starts("plan", [WAIT], answer="Planned.")])
        agents.send("!!use B", to="agent-1")
        await agents.quiet()
        assert agents.at_work == ["main", "agent-1", "plan-1"] or agents.at_work == ["main", "plan-1"]
        result = await agents.finish()
        assert result.status == "done"
        assert {e.name: e.status for e in agents.session.of(events.AgentEnded)} == {
            "explore-1": "interrupted",
            "agent-1": "done",
            "plan-1": "done",
        }
        assert agents.results("agent-1") == [(INTERRUPTED, True), (INTERRUPTED, True)]
        (cut,) = agents.interruptions("agent-1")
        assert cut.point == "N"
        assert not any("interrupted the run" in text for text in agents.texts("agent-1")), "the run went on"
        assert agents.results("main") == [("Went on.", False), ("Planned.", False)]


async def test_a_stop_as_a_child_starts() -> None:
    async with family() as agents:
        at(agents.session, events.AgentStarted, lambda: agents.session.chain.submit("stop"))
        await agents.begin([starts("explore", [WAIT])])
        await agents.session.chain.wait_idle()
        assert agents.session.result.status == "cancelled"
        assert len(agents.session.model.requests) == 1
        await works_again(agents)


async def test_no_child_begins_after_a_stop() -> None:
    async with family() as agents:
        at(agents.session, events.ToolCall, lambda: agents.session.chain.submit("stop"), name="explore")
        await agents.begin([starts("explore", [WAIT])])
        await agents.session.chain.wait_idle()
        assert agents.session.of(events.AgentStarted) == []
        assert agents.results("main") == [("explore-1 was not started: the user stopped the run.", True)]


@pytest.mark.parametrize("end", ["stop", "interrupt"])
async def test_stopping_the_tree_returns_lines_of_children(end: str) -> None:
    async with family() as agents:
        await agents.begin([starts("agent", [starts("explore", [WAIT])])])
        for text, to in (("first", ""), ("second", "main"), ("third", "")):
            agents.send(text, to)
        await silent(
            agents, agents.session.interrupt if end == "interrupt" else lambda: agents.session.chain.submit("stop")
        )
        assert [agents.session.state(id) for id in ("L2", "L3", "L4")] == ["returned"] * 3
        assert agents.session.chain.lines.waiting == ()


async def test_a_time_limit_reaches_the_whole_tree(autojump_clock: trio.testing.MockClock) -> None:
    async with family(use=settings(agents=True, timeout_s=5)) as agents:
        assert agents.session.chain.submit(work([starts("agent", [starts("explore", [WAIT])])])).what == "started"
        await agents.session.chain.wait_idle()
        assert agents.session.result.status == "limit_reached"
        assert [e.status for e in agents.session.of(events.AgentEnded)] == ["limit_reached"] * 2
        assert agents.results("agent-1") == [(INTERRUPTED, True)]


async def test_a_budget_is_of_the_whole_tree() -> None:
    # A call uses 11: the child's second reaches 33.
    async with family(use=settings(agents=True, budget_tokens=30)) as agents:
        await agents.begin([starts("explore", [WAIT], [WAIT])])
        await agents.finish()
        assert agents.session.result.status == "limit_reached"
        assert agents.session.result.usage.total_tokens == 33
        ((text, is_error),) = agents.results("main")
        assert is_error
        assert "explore-1 ended: limit_reached" in text
        assert [e.status for e in agents.session.of(events.AgentEnded)] == ["limit_reached"]


async def test_no_retry_starts_beyond_the_budget(autojump_clock: trio.testing.MockClock) -> None:
    """An agent pauses before its next attempt, and another uses up the budget meanwhile."""
    broken, failed = work(answer="Broken."), False

    async def fail(request: Request) -> None:
        nonlocal failed
        if request.messages[0].text == broken and not failed:
            failed = True
            raise ModelError("the service is unwell", retryable=True, retry_after=5)

    async with family(model=Obedient(on_reply=fail), use=settings(agents=True, budget_tokens=30)) as agents:
        both = [["explore", {"task": broken}], starts("plan", [["plan_list", {}]])]
        assert agents.session.chain.submit(work(both)).what == "started"
        await agents.session.chain.wait_idle()
        assert agents.session.result.usage.total_tokens == 33
        ended = {e.name: e.status for e in agents.session.of(events.AgentEnded)}
        assert ended == {"explore-1": "limit_reached", "plan-1": "done"}
        assert agents.session.result.status == "limit_reached"


async def test_calls_skipped_by_children_are_counted() -> None:
    async with family() as agents:
        await agents.begin([starts("agent", [WAIT, ["plan_add_task", {"task": "x"}]])])
        agents.session.chain.submit("stop")
        result = await agents.finish()
        assert "[1 done, 1 skipped]" in result.result
