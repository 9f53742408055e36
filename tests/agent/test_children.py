"""Agents that agents start: their parts, their limits, and the finished agents that are stored to be asked again."""

from __future__ import annotations

import json
from functools import partial

import pytest
import trio
from support.agents import WAIT, Call, Family, Obedient, asks, family, starts, work
from support.disks import FullDisk
from support.sessions import INTERRUPTED, at, open_session, settings

from chain import events
from chain.errors import ConfigError
from chain.model import Request
from chain.tools.tool import ToolContext, tool

FILES = json.dumps({"reviewer.yaml": "messages: [{role: system, content: You review.}]"})
REVIEWER = {
    "reviewer": {"description": "Reviews.", "prompt": "reviewer.yaml", "tools": ["plan_list"], "max_iterations": 2}
}


ASK = ["ask_user_question", {"question": "Which?", "options": ["a", "b"]}]


def systems(agents: Family) -> list[str]:
    return [request.system for request in agents.session.model.requests]


def tools_of(agents: Family, n: int) -> set[str]:
    return {tool.name for tool in agents.session.model.requests[n].tools}


TOOLS = {
    "explore": {"plan_list", "ask_user_question", "wait"},
    "plan": {"plan_list", "ask_user_question", "wait", "plan_add_task", "plan_mark_done", "plan_mark_failed",
             "plan_set_tasks", "plan_clear"},
}  # fmt: skip


@pytest.mark.parametrize("kind", ["explore", "plan", "agent"])
async def test_a_child_has_its_own_conversation_and_tools(kind: str) -> None:
    async with family() as agents:
        await agents.begin([starts(kind, answer="Found.")])
        await agents.finish()
        main, child, again = agents.session.model.requests
        assert [m.text for m in child.messages] == [work(answer="Found.")]
        assert len(again.messages) == 3
        assert child.system != main.system
        expected = TOOLS.get(kind, {tool.name for tool in main.tools})
        assert tools_of(agents, 1) == expected


async def test_a_kind_of_the_users_own() -> None:
    use = settings(agents=True, kinds=json.dumps(REVIEWER), files=FILES)
    async with family(use=use) as agents:
        await agents.begin([starts("reviewer", [["plan_list", {}]], [["plan_list", {}]], answer="Not this.")])
        await agents.finish()
        assert systems(agents)[1] == "You review."
        assert tools_of(agents, 1) == {"plan_list"}
        assert "[reviewer-1 stopped: max_iterations]" in agents.results("main")[0][0]
        described = {tool.name: tool.description for tool in agents.session.model.requests[0].tools}
        assert described["reviewer"] == "Reviews."


BAD_KINDS = {
    "a tool of ours": ('{"read_file": {"description": "x"}}', "read_file is the name of a tool"),
    "a group": ('{"shell": {"description": "x"}}', "shell is the name of a tool"),
    "the program's own": ('{"wait": {"description": "x"}}', "wait is the name of a tool"),
    "agent_ask": ('{"agent_ask": {"description": "x"}}', "agent_ask is the name of a tool"),
    "an unknown tool": ('{"explore": {"tools": ["plan_lst"]}}', "did you mean plan_list"),
    "no prompt file": ('{"explore": {"prompt": "nowhere.yaml"}}', "nowhere.yaml"),
}


@pytest.mark.parametrize(("kinds", "says"), BAD_KINDS.values(), ids=BAD_KINDS)
async def test_an_invalid_kind_is_a_configuration_error(kinds: str, says: str) -> None:
    with pytest.raises((ConfigError, ExceptionGroup)) as raised:
        async with family(use=settings(agents=True, kinds=kinds)):
            pass
    error = raised.value.exceptions[0] if isinstance(raised.value, ExceptionGroup) else raised.value
    assert isinstance(error, ConfigError)
    assert says in str(error)
    assert "config.yaml:" in str(error), "with the file and the line"


async def test_agents_run_concurrently() -> None:
    async with family() as agents:
        names = ["one", "two", "three"]
        await agents.begin([starts("explore", [WAIT], answer=name) for name in names])
        assert agents.at_work == ["main", "explore-1", "explore-2", "explore-3"]
        for name in ("explore-3", "explore-1", "explore-2"):
            agents.waiters.let_go(name)
            await agents.quiet()
        await agents.finish()
        assert [text for text, _ in agents.results("main")] == names
        assert [e.name for e in agents.session.of(events.AgentEnded)] == ["explore-3", "explore-1", "explore-2"]


async def test_more_agents_than_max_running_are_refused() -> None:
    async with family(use=settings(agents=True, max_running=2)) as agents:
        await agents.begin(
            [starts("agent", [starts("explore", [WAIT])]), starts("plan", [WAIT]), starts("plan", [WAIT])]
        )
        await agents.finish()
        refused = [text for name in ("main", "agent-1") for text, is_error in agents.results(name) if is_error]
        assert len(refused) == 2
        assert all("The limit of 2 active agents is reached" in text for text in refused)
        assert agents.session.result.status == "done"


async def test_agents_deeper_than_max_depth_are_refused() -> None:
    async with family(use=settings(agents=True, max_depth=2)) as agents:
        await agents.begin([starts("agent", [starts("agent", [starts("explore")], answer="Deep.")])])
        await agents.finish()
        ((text, is_error),) = agents.results("agent-2")
        assert is_error
        assert "2 levels deep" in text
        assert agents.results("agent-1") == [("Deep.", False)]


async def test_a_finished_agent_can_be_asked() -> None:
    async with family() as agents:
        await agents.begin([starts("explore", [WAIT], answer="Found.")], [asks("explore-1", answer="As I said.")])
        await agents.finish()
        assert [text for text, _ in agents.results("main")] == ["Found.", "As I said."]
        asked = agents.session.model.requests[4]
        assert [m.role for m in asked.messages] == ["user", "assistant", "user", "assistant", "user"]
        calls = {c.name: c.id for c in agents.session.of(events.ToolCall) if c.agent == "main"}
        started = [(e.name, e.kind, e.parent_id) for e in agents.session.of(events.AgentStarted)]
        assert started == [("explore-1", "explore", calls["explore"]), ("explore-1", "explore", calls["agent_ask"])]


@pytest.mark.parametrize("is_at_once", [False, True])
async def test_a_stop_ends_waiting_for_a_busy_agent(is_at_once: bool) -> None:
    async with family() as agents:
        stop = partial(agents.session.chain.submit, "stop", to="agent-1")
        if is_at_once:
            at(agents.session, events.ToolCall, stop, agent="agent-1", name="agent_ask")
        await agents.begin(
            [starts("explore", answer="Found.")],
            [asks("explore-1", [WAIT], answer="First."), starts("agent", [asks("explore-1", answer="Second.")])],
            [asks("explore-1", answer="Third.")],
        )
        if not is_at_once:
            assert stop().what == "stopping"
            await agents.quiet()
        assert sorted(agents.at_work) == ["explore-1", "main"]
        ((text, is_error),) = agents.results("agent-1")
        assert (is_error, "the user stopped" in text) == (True, True)
        await agents.finish()
        assert [text for text, is_error in agents.results("main") if not is_error] == ["Found.", "First.", "Third."]


async def test_a_now_line_as_a_busy_agent_ends() -> None:
    async with family() as agents:
        now = partial(agents.send, "!!use B", to="agent-1")
        at(agents.session, events.ToolResult, now, agent="main", name="agent_ask")
        asking = starts("agent", [asks("explore-1", answer="Second.")], answer="Done.")
        await agents.begin([starts("explore")], [asks("explore-1", [WAIT], answer="First."), asking])
        await agents.finish()
        assert sorted(e.name for e in agents.session.of(events.AgentStarted)) == ["agent-1", "explore-1", "explore-1"]
        assert agents.results("agent-1") == [(INTERRUPTED, True)]


async def test_a_refusal_returns_lines_of_unanswered_runs() -> None:
    """A withdrawal reaches back to the last answer, and an interrupted agent has given none."""
    async with family() as agents:
        at(agents.session, events.UserInterruption, agents.session.interrupt)
        await agents.begin([starts("explore", [WAIT])])
        agents.send("use B")
        await agents.finish()
        assert agents.session.state("L2") == "delivered"
        await agents.begin([asks("explore-1", answer="No.", stop_reason="refusal")])
        await agents.finish()
        assert [e.status for e in agents.session.of(events.AgentEnded)] == ["interrupted", "refused"]
        assert agents.session.state("L2") == "returned"


async def test_unrecorded_calls_get_their_real_results() -> None:
    disk = FullDisk()
    async with family(file=disk) as agents:
        await agents.begin([starts("explore", [WAIT])])
        disk.full = True
        agents.session.interrupt()
        await agents.session.chain.wait_idle()
        disk.full = False
        await agents.begin([asks("explore-1", answer="I was at it.")])
        await agents.finish()
        assert agents.results("explore-1") == [(INTERRUPTED, True)]


async def test_agents_that_ask_each_other_end() -> None:
    async with family() as agents:
        both = [asks("agent-1", [WAIT], [asks("agent-2")]), asks("agent-2", [WAIT], [asks("agent-1")])]
        await agents.begin([starts("agent"), starts("agent")], both)
        result = await agents.finish()
        assert result.status == "done"
        errors = [text for name in ("agent-1", "agent-2") for text, is_error in agents.results(name) if is_error]
        assert errors
        assert all("is answering another question" in text for text in errors)


REFUSED = {
    "an unknown agent": (asks("explore-9"), "explore-1"),
    "the main agent": (asks("main"), "still working"),
    "an active agent": (asks("plan-1"), "still working"),
    "a blank question": (["agent_ask", {"agent": "explore-1", "question": " "}], "The question is empty."),
    "a blank task": (["explore", {"task": " "}], "The task is empty"),
}


@pytest.mark.parametrize(("call", "says"), REFUSED.values(), ids=REFUSED)
async def test_calls_that_no_agent_can_take(call: Call, says: str) -> None:
    async with family() as agents:
        await agents.begin([starts("explore")], [starts("plan", [WAIT]), call])
        await agents.finish()
        text, is_error = agents.results("main")[2]
        assert (is_error, says in text) == (True, True)


async def test_the_least_recently_used_agent_is_removed() -> None:
    async with family(use=settings(agents=True, max_kept=2)) as agents:
        await agents.begin(
            [starts("explore", answer="1")],
            [starts("explore", answer="2")],
            [asks("explore-1", answer="1 again")],
            [starts("explore", answer="3")],
            [asks("explore-1", answer="1 still"), asks("explore-2")],
        )
        await agents.finish()
        assert [view.name for view in agents.session.chain.agents] == ["main", "explore-3", "explore-1"]
        *_, one, two = agents.results("main")
        assert one == ("1 still", False)
        assert two[1]
        assert "explore-2" in two[0]


async def test_a_childs_question_blocks_no_other_agent() -> None:
    async with family() as agents:
        with agents.session.chain.answering():
            await agents.begin([starts("explore", [ASK]), starts("plan", [WAIT], answer="Planned.")])
            (question,) = agents.session.of(events.Question)
            assert question.agent == "explore-1"
            assert agents.session.chain.lines.target() == "explore-1", "the agent that asked"
            agents.waiters.let_go("plan-1")
            await agents.quiet()
            assert agents.at_work == ["main", "explore-1"], "its sibling has gone on"
            assert agents.session.chain.answer("Q1", "b").what == "answered"
            await agents.finish()
        assert agents.results("explore-1") == [("The user answered: b", False)]


@pytest.mark.parametrize(
    ("line", "to", "is_open"), [("!use B", "main", True), ("!use B", "", False), ("!!use B", "agent-1", False)]
)
async def test_which_lines_withdraw_a_childs_question(line: str, to: str, is_open: bool) -> None:
    async with family() as agents:
        with agents.session.chain.answering():
            await agents.begin([starts("agent", [starts("explore", [ASK])])])
            agents.send(line, to=to)
            assert (agents.session.chain.questions.open_id == "Q1") is is_open
            agents.session.interrupt()
            await agents.session.chain.wait_idle()


async def test_a_stop_withdraws_waiting_questions_too() -> None:
    async with family() as agents:
        with agents.session.chain.answering():
            await agents.begin([starts("explore", [ASK]), starts("plan", [ASK])])
            agents.session.chain.submit("stop")
            await agents.session.chain.wait_idle()
        assert [question.id for question in agents.session.of(events.Question)] == ["Q1"]
        assert agents.session.result.status == "cancelled"


async def test_other_agents_get_plan_changes() -> None:
    async with family() as agents:
        add = ["plan_add_task", {"task": "check the SKU"}]
        await agents.begin([starts("plan", [add])])
        await agents.finish()
        (changed,) = agents.session.of(events.PlanChanged)
        assert (changed.by, changed.agent, changed.iteration) == ("plan-1", "plan-1", 1)
        assert "check the SKU" in "".join(agents.session.model.requests[-1].tail)
        assert agents.session.model.requests[2].tail == (), "its own model has read it in the result"


async def test_a_childs_question_pauses_all_deadlines_above_it(autojump_clock: trio.testing.MockClock) -> None:
    async with family(use=settings(agents=True, timeout_s=5)) as agents:
        with agents.session.chain.answering():
            assert agents.session.chain.submit(work([starts("agent", [starts("explore", [ASK])])])).what == "started"
            await trio.sleep(100)
            agents.session.chain.answer("Q1", "a")
            await agents.session.chain.wait_idle()
        assert agents.session.result.status == "done"


async def test_a_question_pauses_its_callers_deadline(
    autojump_clock: trio.testing.MockClock,
) -> None:
    @tool(kind="delegate", timeout_s=10)
    async def team(ctx: ToolContext, task: str) -> str:
        """Let an agent do it, and rest."""
        answer = await ctx.delegating.start("agent", task, ctx.call_id)
        await trio.sleep(6)
        return answer

    async with open_session(Obedient(), tools=[team], use=settings(agents=True)) as session:
        with session.chain.answering():
            session.chain.submit(work([["team", {"task": work([starts("explore", [ASK])])}]]))
            await trio.sleep(100)
            session.chain.answer("Q1", "a")
            await session.chain.wait_idle()
        [result] = [e for e in session.of(events.ToolResult) if e.name == "team"]
        assert not result.is_error, "of its ten seconds it had used none"


async def test_a_timed_out_question_lets_the_next_open(
    autojump_clock: trio.testing.MockClock,
) -> None:
    @tool(kind="delegate", timeout_s=10)
    async def team(ctx: ToolContext, task: str) -> str:
        """Let an agent do it whose questions do not stop the time."""
        return await ctx.delegating.start("agent", task, "made-up")

    async with open_session(Obedient(), tools=[team], use=settings(agents=True)) as session:
        with session.chain.answering():
            session.chain.submit(work([["team", {"task": work([ASK])}], starts("explore", [ASK])]))
            await trio.sleep(5)
            assert session.chain.questions.open_id == "Q1"
            await trio.sleep(10)
            assert session.chain.answer("Q2", "a").what == "answered"
            await session.chain.wait_idle()
        ended = [(e.name, e.status) for e in session.of(events.AgentEnded)]
        assert ended == [("agent-1", "interrupted"), ("explore-1", "done")]
        result = next(e.text for e in session.of(events.ToolResult) if e.name == "team")
        assert result == "team was stopped after 10 s, its time limit; it may have had effects."


async def test_skipped_calls_of_finished_children_do_not_count() -> None:
    async with family() as agents:
        add = ["plan_add_task", {"task": "check the SKU"}]
        await agents.begin([starts("agent", [WAIT, add])], [WAIT])
        agents.send("!use B", to="agent-1")
        agents.waiters.let_go("agent-1")
        await agents.quiet()
        agents.session.chain.submit("stop")
        assert "[2 done, 0 skipped]" in (await agents.finish()).result


async def test_an_allowed_call_waits_for_no_question() -> None:
    @tool(needs_approval=True)
    async def change(ctx: ToolContext) -> str:
        """Change something."""
        return "changed"

    @tool(needs_approval=True)
    async def sign(ctx: ToolContext) -> str:
        """Sign something."""
        return "signed"

    choose = ["ask_user_question", {"question": "Which?", "options": ["a"]}]
    calls = [["change", {}], choose, ["change", {}], ["sign", {}]]
    async with family(tools=[change, sign], use=settings(agents=True, allow="sign")) as agents:

        def ended() -> list[str]:
            return [e.text for e in agents.session.of(events.ToolResult) if e.name in ("change", "sign")]

        with agents.session.chain.answering():
            await agents.begin([starts("agent", [call]) for call in calls])
            assert ended() == ["signed"], "it is allowed by the configuration"
            agents.session.chain.answer("Q1", "a")
            await agents.quiet()
            assert ended() == ["signed", "changed", "changed"], "the open choice blocks none of them"
            agents.session.chain.answer("Q4", "1")
            await agents.finish()
        answers = [(e.id, e.by) for e in agents.session.of(events.Answer)]
        assert answers == [("Q2", "config"), ("Q1", "user"), ("Q3", "config"), ("Q4", "user")]


async def test_an_asked_agent_uses_the_current_model() -> None:
    async with family() as agents:
        await agents.begin([starts("explore")])
        await agents.session.chain.wait_idle()
        other = Obedient(name="other")
        agents.session.ask(other)
        asked = [len(agents.session.model.requests)]
        await agents.begin([asks("explore-1")])
        await agents.finish()
        assert agents.session.chain.init.model == "other"
        assert agents.session.models[0].requests[asked[0] :] == agents.session.model.requests[asked[0] :]
        assert other.calls == 1
        assert len(agents.session.model.requests) == asked[0] + 3


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), KeyboardInterrupt("no"), SystemExit("no")], ids=repr)
@pytest.mark.parametrize("in_group", [False, True])
async def test_an_exception_of_a_model_fails_its_run(error: BaseException, in_group: bool) -> None:
    failing: list[str] = []

    async def fail(request: Request) -> None:
        if json.loads(request.messages[0].text)["answer"] in failing:
            raise BaseExceptionGroup("in a nursery", [error]) if in_group else error

    async with family(model=Obedient(on_reply=fail)) as agents:
        said = f"the model obedient failed: {type(error).__name__}: no"
        failing.append("Found.")
        await agents.begin([starts("agent", answer="Found.")])
        await agents.finish()
        assert agents.results("main") == [(f"[agent-1 ended: error] {said}", True)]
        assert agents.session.result.status == "done"
        failing.append("The answer.")
        await agents.begin()
        assert (agents.session.result.status, agents.session.result.result) == ("error", said)
        failing.clear()
        await agents.begin()
        assert agents.session.result.status == "done"
