"""Child agents: their conversation and tools, their limits, their questions, and asking finished agents again."""

import json
from functools import partial

import pytest
import trio
from support.agents import WAIT, Call, ObedientModel, ask, open_agents, start, task_of
from support.disks import FullDisk
from support.sessions import INTERRUPTED, call_at_event, make_settings, open_session

from chain import events
from chain.errors import ConfigError
from chain.model import Request
from chain.tools.tool import ToolContext, tool

FILES = json.dumps({"reviewer.yaml": "messages: [{role: system, content: You review.}]"})
REVIEWER = {
    "reviewer": {"description": "Reviews.", "prompt": "reviewer.yaml", "tools": ["plan_list"], "max_iterations": 2}
}
ASK = ["ask_user_question", {"question": "Which?", "options": ["a", "b"]}]


def tool_names(request: Request) -> set[str]:
    return {tool.name for tool in request.tools}


EXPLORER_TOOLS = {"plan_list", "ask_user_question", "wait"}
PLANNER_TOOLS = EXPLORER_TOOLS | {
    *("plan_add_task", "plan_mark_done", "plan_mark_failed", "plan_set_tasks", "plan_clear")
}
TOOLS = {"explore": EXPLORER_TOOLS, "plan": PLANNER_TOOLS}
"""The tools of a kind. Children of the kind ``agent`` have all tools of the main agent."""


@pytest.mark.parametrize("kind", ["explore", "plan", "agent"])
async def test_a_child_has_its_own_conversation_and_tools(kind: str) -> None:
    async with open_agents() as agents:
        await agents.start_run([start(kind, answer="Found.")])
        await agents.finish_run()
        before, child, after = agents.session.model.requests
        assert [m.text for m in child.messages] == [task_of(answer="Found.")]
        assert [m.role for m in after.messages] == ["user", "assistant", "user"]
        assert child.system != before.system
        assert tool_names(child) == TOOLS.get(kind, tool_names(before))


async def test_a_configured_kind_has_its_own_settings() -> None:
    settings = make_settings(agents=True, kinds=json.dumps(REVIEWER), files=FILES)
    async with open_agents(settings=settings) as agents:
        await agents.start_run([start("reviewer", [["plan_list", {}]], [["plan_list", {}]], answer="Not this.")])
        await agents.finish_run()
        main, reviewer, *_ = agents.session.model.requests
        assert (reviewer.system, tool_names(reviewer)) == ("You review.", {"plan_list"})
        ((result, _),) = agents.results("main")
        assert "[reviewer-1 stopped: max_iterations]" in result
        assert {tool.name: tool.description for tool in main.tools}["reviewer"] == "Reviews."


BAD_KINDS = {
    "the name of a tool": ('{"read_file": {"description": "x"}}', "read_file is the name of a tool"),
    "the name of a group of tools": ('{"shell": {"description": "x"}}', "shell is the name of a tool"),
    "the name of a tool of the program": ('{"wait": {"description": "x"}}', "wait is the name of a tool"),
    "agent_ask": ('{"agent_ask": {"description": "x"}}', "agent_ask is the name of a tool"),
    "an unknown tool": ('{"explore": {"tools": ["plan_lst"]}}', "did you mean plan_list"),
    "no prompt file": ('{"explore": {"prompt": "nowhere.yaml"}}', "nowhere.yaml"),
}


@pytest.mark.parametrize(("kinds", "message"), BAD_KINDS.values(), ids=BAD_KINDS)
async def test_an_invalid_kind_is_a_configuration_error(kinds: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        async with open_agents(settings=make_settings(agents=True, kinds=kinds)):
            pass
    assert message in str(raised.value)
    assert "config.yaml:" in str(raised.value), "the file and the line are named"


async def test_agents_run_concurrently() -> None:
    async with open_agents() as agents:
        answers = ["one", "two", "three"]
        await agents.start_run([start("explore", [WAIT], answer=answer) for answer in answers])
        assert agents.active == ["main", "explore-1", "explore-2", "explore-3"]
        order = ["explore-3", "explore-1", "explore-2"]
        for name in order:
            agents.waiters.release(name)
            await agents.wait_blocked()
        await agents.finish_run()
        assert [text for text, _ in agents.results("main")] == answers
        assert [e.name for e in agents.session.of(events.AgentEnded)] == order


async def test_more_agents_than_max_running_are_refused() -> None:
    async with open_agents(settings=make_settings(agents=True, max_running=2)) as agents:
        parent = start("agent", [start("explore", [WAIT])])
        await agents.start_run([parent, start("plan", [WAIT]), start("plan", [WAIT])])
        await agents.finish_run()
        refused = [text for name in ("main", "agent-1") for text, is_error in agents.results(name) if is_error]
        assert len(refused) == 2
        assert all("The limit of 2 active agents is reached" in text for text in refused)
        assert agents.session.result.status == "done"


async def test_agents_deeper_than_max_depth_are_refused() -> None:
    async with open_agents(settings=make_settings(agents=True, max_depth=2)) as agents:
        await agents.start_run([start("agent", [start("agent", [start("explore")], answer="Deep.")])])
        await agents.finish_run()
        ((text, is_error),) = agents.results("agent-2")
        assert is_error
        assert "2 levels deep" in text
        assert agents.results("agent-1") == [("Deep.", False)]


async def test_a_finished_agent_can_be_asked() -> None:
    async with open_agents() as agents:
        await agents.start_run([start("explore", [WAIT], answer="Found.")], [ask("explore-1", answer="As I said.")])
        await agents.finish_run()
        assert [text for text, _ in agents.results("main")] == ["Found.", "As I said."]
        # Two requests of the explorer lie between the first two of the main agent.
        _, _, _, _, question, _ = agents.session.model.requests
        assert [m.role for m in question.messages] == ["user", "assistant", "user", "assistant", "user"]
        calls = {c.name: c.id for c in agents.session.of(events.ToolCall) if c.agent == "main"}
        started = [(e.name, e.kind, e.parent_id) for e in agents.session.of(events.AgentStarted)]
        assert started == [("explore-1", "explore", calls["explore"]), ("explore-1", "explore", calls["agent_ask"])]


@pytest.mark.parametrize("as_it_starts", [False, True], ids=["while it waits", "as it starts to wait"])
async def test_a_stop_ends_waiting_for_a_busy_agent(as_it_starts: bool) -> None:
    async with open_agents() as agents:
        stop = partial(agents.session.chain.submit, "stop", to="agent-1")
        if as_it_starts:
            call_at_event(agents.session, events.ToolCall, stop, agent="agent-1", name="agent_ask")
        await agents.start_run(
            [start("explore", answer="Found.")],
            [ask("explore-1", [WAIT], answer="First."), start("agent", [ask("explore-1", answer="Second.")])],
            [ask("explore-1", answer="Third.")],
        )
        if not as_it_starts:
            assert stop().what == "stopping"
            await agents.wait_blocked()
        assert sorted(agents.active) == ["explore-1", "main"]
        ((text, is_error),) = agents.results("agent-1")
        assert is_error
        assert "the user stopped" in text
        await agents.finish_run()
        assert [text for text, is_error in agents.results("main") if not is_error] == ["Found.", "First.", "Third."]


async def test_a_now_line_ends_waiting_for_an_agent() -> None:
    """The line comes as the busy agent ends, so the question of the waiting agent must not start any more."""
    async with open_agents() as agents:
        send_now_line = partial(agents.send, "!!use B", to="agent-1")
        call_at_event(agents.session, events.ToolResult, send_now_line, agent="main", name="agent_ask")
        waiting = start("agent", [ask("explore-1", answer="Second.")], answer="Done.")
        await agents.start_run([start("explore")], [ask("explore-1", [WAIT], answer="First."), waiting])
        await agents.finish_run()
        assert sorted(e.name for e in agents.session.of(events.AgentStarted)) == ["agent-1", "explore-1", "explore-1"]
        assert agents.results("agent-1") == [(INTERRUPTED, True)]


async def test_a_refusal_returns_lines_of_unanswered_runs() -> None:
    """A refusal withdraws everything since the last answer, so also the line of the interrupted run."""
    async with open_agents() as agents:
        call_at_event(agents.session, events.UserInterruption, agents.session.interrupt)
        await agents.start_run([start("explore", [WAIT])])
        agents.send("use B")
        await agents.finish_run()
        assert agents.session.state("L2") == "delivered", "L1 is the task"
        await agents.start_run([ask("explore-1", answer="No.", stop_reason="refusal")])
        await agents.finish_run()
        assert [e.status for e in agents.session.of(events.AgentEnded)] == ["interrupted", "refused"]
        assert agents.session.state("L2") == "returned"


async def test_unrecorded_calls_get_their_real_results() -> None:
    disk = FullDisk()
    async with open_agents(file=disk) as agents:
        await agents.start_run([start("explore", [WAIT])])
        disk.full = True
        agents.session.interrupt()
        await agents.session.chain.wait_idle()
        disk.full = False
        await agents.start_run([ask("explore-1", answer="I was at it.")])
        await agents.finish_run()
        assert agents.results("explore-1") == [(INTERRUPTED, True)]


async def test_agents_that_ask_each_other_end() -> None:
    async with open_agents() as agents:
        questions = [ask("agent-1", [WAIT], [ask("agent-2")]), ask("agent-2", [WAIT], [ask("agent-1")])]
        await agents.start_run([start("agent"), start("agent")], questions)
        result = await agents.finish_run()
        assert result.status == "done"
        errors = [text for name in ("agent-1", "agent-2") for text, is_error in agents.results(name) if is_error]
        assert errors
        assert all("is answering another question" in text for text in errors)


REFUSED_CALLS = {
    "an unknown agent": (ask("explore-9"), "explore-1"),
    "the main agent": (ask("main"), "still working"),
    "an active agent": (ask("plan-1"), "still working"),
    "a blank question": (["agent_ask", {"agent": "explore-1", "question": " "}], "The question is empty."),
    "a blank task": (["explore", {"task": " "}], "The task is empty"),
}


@pytest.mark.parametrize(("call", "message"), REFUSED_CALLS.values(), ids=REFUSED_CALLS)
async def test_a_call_for_no_possible_agent_is_refused(call: Call, message: str) -> None:
    async with open_agents() as agents:
        await agents.start_run([start("explore")], [start("plan", [WAIT]), call])
        await agents.finish_run()
        _explored, _planned, (text, is_error) = agents.results("main")
        assert is_error
        assert message in text


async def test_the_least_recently_used_agent_is_removed() -> None:
    async with open_agents(settings=make_settings(agents=True, max_kept=2)) as agents:
        await agents.start_run(
            [start("explore")],
            [start("explore")],
            [ask("explore-1")],
            [start("explore")],  # removes explore-2
            [ask("explore-1", answer="Still there."), ask("explore-2")],
        )
        await agents.finish_run()
        assert [view.name for view in agents.session.chain.agents] == ["main", "explore-3", "explore-1"]
        *_, kept, (removed, is_error) = agents.results("main")
        assert kept == ("Still there.", False)
        assert is_error
        assert "explore-2" in removed


async def test_a_childs_question_blocks_no_other_agent() -> None:
    async with open_agents() as agents:
        with agents.session.chain.answering():
            await agents.start_run([start("explore", [ASK]), start("plan", [WAIT], answer="Planned.")])
            (question,) = agents.session.of(events.Question)
            assert question.agent == "explore-1"
            assert agents.session.chain.lines.target() == "explore-1", "the agent that asked"
            agents.waiters.release("plan-1")
            await agents.wait_blocked()
            assert agents.active == ["main", "explore-1"], "plan-1 has ended"
            assert agents.session.chain.answer("Q1", "b").what == "answered"
            await agents.finish_run()
        assert agents.results("explore-1") == [("The user answered: b", False)]


@pytest.mark.parametrize(
    ("line", "to", "open_question"),
    [
        pytest.param("!use B", "main", "Q1", id="an urgent line to an agent above"),
        pytest.param("!use B", "explore-1", None, id="an urgent line to the asking agent"),
        pytest.param("!!use B", "agent-1", None, id="a now line to an agent above"),
    ],
)
async def test_which_lines_withdraw_a_childs_question(line: str, to: str, open_question: str | None) -> None:
    async with open_agents() as agents:
        with agents.session.chain.answering():
            await agents.start_run([start("agent", [start("explore", [ASK])])])
            agents.send(line, to=to)
            assert agents.session.chain.questions.open_id == open_question
            agents.session.interrupt()
            await agents.session.chain.wait_idle()


async def test_a_stop_withdraws_waiting_questions_too() -> None:
    async with open_agents() as agents:
        with agents.session.chain.answering():
            await agents.start_run([start("explore", [ASK]), start("plan", [ASK])])
            agents.session.chain.submit("stop")
            await agents.session.chain.wait_idle()
        assert [question.id for question in agents.session.of(events.Question)] == ["Q1"]
        assert agents.session.result.status == "cancelled"


async def test_other_agents_get_plan_changes() -> None:
    async with open_agents() as agents:
        add = ["plan_add_task", {"task": "check the SKU"}]
        await agents.start_run([start("plan", [add])])
        await agents.finish_run()
        (change,) = agents.session.of(events.PlanChanged)
        assert (change.by, change.agent, change.iteration) == ("plan-1", "plan-1", 1)
        _, _, second_of_planner, second_of_main = agents.session.model.requests
        assert second_of_planner.tail == (), "the planner has read the change in the result of its call"
        assert "check the SKU" in "".join(second_of_main.tail)


async def test_a_question_pauses_the_deadlines_above(autojump_clock: trio.testing.MockClock) -> None:
    async with open_agents(settings=make_settings(agents=True, timeout_s=5)) as agents:
        with agents.session.chain.answering():
            assert agents.session.chain.submit(task_of([start("agent", [start("explore", [ASK])])])).what == "started"
            await trio.sleep(100)  # far beyond the time limit of the run
            agents.session.chain.answer("Q1", "a")
            await agents.session.chain.wait_idle()
        assert agents.session.result.status == "done"


async def test_a_question_pauses_its_callers_deadline(autojump_clock: trio.testing.MockClock) -> None:
    @tool(kind="delegate", timeout_s=10)
    async def team(ctx: ToolContext, task: str) -> str:
        """Delegate the task, then sleep."""
        answer = await ctx.delegating.start("agent", task, ctx.call_id)
        await trio.sleep(6)
        return answer

    async with open_session(ObedientModel(), tools=[team], settings=make_settings(agents=True)) as session:
        with session.chain.answering():
            session.chain.submit(task_of([["team", {"task": task_of([start("explore", [ASK])])}]]))
            await trio.sleep(100)  # far beyond the time limit of the tool
            session.chain.answer("Q1", "a")
            await session.chain.wait_idle()
        [result] = [e for e in session.of(events.ToolResult) if e.name == "team"]
        assert not result.is_error, "only the sleep used time"


async def test_a_timed_out_question_lets_the_next_open(autojump_clock: trio.testing.MockClock) -> None:
    @tool(kind="delegate", timeout_s=10)
    async def team(ctx: ToolContext, task: str) -> str:
        """Delegate the task for a call that does not exist, so that questions do not pause the deadline."""
        return await ctx.delegating.start("agent", task, "made-up")

    async with open_session(ObedientModel(), tools=[team], settings=make_settings(agents=True)) as session:
        with session.chain.answering():
            session.chain.submit(task_of([["team", {"task": task_of([ASK])}], start("explore", [ASK])]))
            await trio.sleep(5)
            assert session.chain.questions.open_id == "Q1"
            await trio.sleep(10)  # beyond the time limit of the tool
            assert session.chain.answer("Q2", "a").what == "answered"
            await session.chain.wait_idle()
        ended = [(e.name, e.status) for e in session.of(events.AgentEnded)]
        assert ended == [("agent-1", "interrupted"), ("explore-1", "done")]
        result = next(e.text for e in session.of(events.ToolResult) if e.name == "team")
        assert result == "team was stopped after 10 s, its time limit; it may have had effects."


async def test_skipped_calls_of_finished_children_do_not_count() -> None:
    async with open_agents() as agents:
        add = ["plan_add_task", {"task": "check the SKU"}]
        await agents.start_run([start("agent", [WAIT, add])], [WAIT])
        agents.send("!use B", to="agent-1")
        agents.waiters.release("agent-1")
        await agents.wait_blocked()
        agents.session.chain.submit("stop")
        result = await agents.finish_run()
        assert "[2 done, 0 skipped]" in result.result, "the main agent's calls of agent-1 and of wait"


async def test_an_allowed_call_does_not_wait_for_questions() -> None:
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
    async with open_agents(tools=[change, sign], settings=make_settings(agents=True, allow="sign")) as agents:

        def results() -> list[str]:
            return [e.text for e in agents.session.of(events.ToolResult) if e.name in ("change", "sign")]

        with agents.session.chain.answering():
            await agents.start_run([start("agent", [call]) for call in calls])
            assert results() == ["signed"], "allowed by the configuration"
            agents.session.chain.answer("Q1", "always")
            await agents.wait_blocked()
            assert results() == ["signed", "changed", "changed"], "the open choice blocks neither change"
            agents.session.chain.answer("Q4", "1")
            await agents.finish_run()
        answers = [(e.id, e.by) for e in agents.session.of(events.Answer)]
        # Q1 and Q3 are the questions about ``change``, Q2 is the one about ``sign``, and Q4 is the choice.
        assert answers == [("Q2", "config"), ("Q1", "user"), ("Q3", "config"), ("Q4", "user")]


async def test_an_asked_agent_uses_the_current_model() -> None:
    async with open_agents() as agents:
        await agents.start_run([start("explore")])
        await agents.session.chain.wait_idle()
        models: list[str] = []

        async def note_other(request: Request) -> None:
            models.append("other")

        agents.session.switch_model(ObedientModel(name="other", on_reply=note_other))
        await agents.start_run([ask("explore-1")])
        await agents.finish_run()
        assert agents.session.chain.init.model == "other"
        assert models == ["other"] * 3, "two requests of the main agent, and one of the explorer"


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), KeyboardInterrupt("no"), SystemExit("no")], ids=repr)
@pytest.mark.parametrize("is_grouped", [False, True], ids=["alone", "in a group"])
async def test_an_exception_of_a_model_fails_its_run(error: BaseException, is_grouped: bool) -> None:
    failing_answers: list[str] = []

    async def fail(request: Request) -> None:
        if json.loads(request.messages[0].text)["answer"] in failing_answers:
            raise BaseExceptionGroup("in a nursery", [error]) if is_grouped else error

    async with open_agents(model=ObedientModel(on_reply=fail)) as agents:
        message = f"the model obedient failed: {type(error).__name__}: no"
        failing_answers.append("Found.")
        await agents.start_run([start("agent", answer="Found.")])
        await agents.finish_run()
        assert agents.results("main") == [(f"[agent-1 ended: error] {message}", True)]
        assert agents.session.result.status == "done"
        failing_answers.append("The answer.")
        await agents.start_run()
        assert (agents.session.result.status, agents.session.result.result) == ("error", message)
        failing_answers.clear()
        await agents.start_run()
        assert agents.session.result.status == "done"
