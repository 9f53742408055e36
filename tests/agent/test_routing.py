"""Which agent a line goes to (SPEC section 10), also if its agent ends before the delivery. L1 is the task."""

import json

import pytest
from support.agents import WAIT, ObedientModel, ask, open_agents, start, task_of
from support.disks import FullDisk
from support.sessions import INTERRUPTED, SKIPPED, call_at_event, make_settings

from chain import events
from chain.config.load import Settings
from chain.errors import UserError


async def test_agents_that_answer_questions_get_no_lines() -> None:
    async with open_agents() as agents:
        await agents.start_run([start("agent")], [ask("agent-1", [start("explore", [WAIT])])])
        assert agents.active == ["main", "agent-1", "explore-1"]
        assert agents.send("use B") == "main"
        assert agents.send("use C", to="explore-1") == "explore-1", "an address overrides"
        await agents.finish_run()


ASK = ["ask_user_question", {"question": "Which?", "options": ["a", "b"]}]
ONE_ITERATION = make_settings(agents=True, kinds='{"explore": {"max_iterations": 1}}')
"""Settings with explorers that cannot read a line, because their first iteration is their last."""

PRECEDENCE = {
    "explore before plan and agent": (["agent", "explore", "plan"], "explore-1"),
    "plan before agent": (["plan", "agent"], "plan-1"),
    "of several explorers the one started last": (["explore", "plan", "explore", "agent"], "explore-2"),
    "a kind of the user's own counts as an agent": (["reviewer", "plan", "reviewer"], "plan-1"),
    "of agents and own kinds the one started last": (["agent", "reviewer"], "reviewer-1"),
}


@pytest.mark.parametrize(("kinds", "target"), PRECEDENCE.values(), ids=PRECEDENCE)
async def test_kinds_have_precedence(kinds: list[str], target: str) -> None:
    own = '{"reviewer": {"description": "Reviews."}}'
    async with open_agents(settings=make_settings(agents=True, kinds=own)) as agents:
        await agents.start_run([start(kind, [WAIT]) for kind in kinds])
        assert len(agents.active) == len(["main", *kinds])
        assert agents.session.chain.lines.target() == target
        assert agents.send("use B") == target
        await agents.finish_run()


async def test_the_youngest_sibling_precedes_deeper_agents() -> None:
    async with open_agents() as agents:
        with_descendants = start("agent", [start("agent", [start("plan", [WAIT])])])
        await agents.start_run([with_descendants, start("agent", [WAIT])])
        # The sibling is agent-2 or agent-3, because it starts about when the child of agent-1 does.
        (younger,) = {view.name for view in agents.session.chain.agents if view.parent == "main"} - {"agent-1"}
        assert agents.send("use B") == younger
        agents.waiters.release(younger)
        await agents.wait_blocked()
        assert agents.send("use C") == "plan-1"
        await agents.finish_run()


async def test_a_refused_agent_gets_no_lines() -> None:
    async with open_agents(settings=make_settings(agents=True, max_running=1)) as agents:
        await agents.start_run([start("plan", [WAIT]), start("explore", [WAIT])])  # the explorer is refused
        assert agents.active == ["main", "plan-1"]
        assert agents.send("use B") == "plan-1"
        await agents.finish_run()


async def test_lines_after_a_childs_end_reach_main() -> None:
    async with open_agents() as agents:
        targets_at_the_end: list[str] = []
        call_at_event(agents.session, events.AgentEnded, lambda: targets_at_the_end.append(agents.send("use B")))
        await agents.start_run([start("explore", answer="Found.")], [WAIT])
        assert targets_at_the_end == ["main"]
        assert agents.send("use C") == "main"
        await agents.finish_run()


async def test_each_line_goes_to_the_agent_then_active() -> None:
    async with open_agents() as agents:
        await agents.start_run([start("explore", [WAIT], [WAIT]), start("plan", [WAIT])], [WAIT])
        assert [agents.send("use A"), agents.send("use B")] == ["explore-1"] * 2
        agents.waiters.release("explore-1")
        await agents.wait_blocked()
        assert agents.send("use C") == "plan-1"
        await agents.finish_run()
        assert [i.ids for i in agents.interruptions("explore-1")] == [("L2", "L3")]
        assert [i.ids for i in agents.interruptions("plan-1")] == [("L4",)]
        assert {r.id: (r.state, r.agent) for r in agents.session.chain.lines.receipts} == {
            "L1": ("delivered", "main"),
            "L2": ("delivered", "explore-1"),
            "L3": ("delivered", "explore-1"),
            "L4": ("delivered", "plan-1"),
        }


async def test_records_name_parents_and_targets() -> None:
    async with open_agents() as agents:
        await agents.start_run([start("agent", [start("explore", [WAIT])])])
        agents.send("look closer")
        await agents.finish_run()
        rows = agents.session.records
        calls = {c.name: c.id for c in agents.session.of(events.ToolCall)}
        started = [(r["name"], r["agent"], r["parent_id"]) for r in rows if r["type"] == "agent_started"]
        assert started == [("agent-1", "main", calls["agent"]), ("explore-1", "agent-1", calls["explore"])]
        parent_ids = {(r["agent"], r["parent_id"]) for r in rows if r["type"] == "message"}
        assert parent_ids == {("main", "root"), ("agent-1", calls["agent"]), ("explore-1", calls["explore"])}
        (interjection,) = [r for r in rows if r["type"] == "message" and r["is_interjection"]]
        assert (interjection["agent"], interjection["line_ids"], interjection["point"]) == ("explore-1", ["L2"], "D")
        ended = [(r["name"], r["status"], r["parent_id"]) for r in rows if r["type"] == "agent_ended"]
        assert ended == [("explore-1", "done", calls["explore"]), ("agent-1", "done", calls["agent"])]


async def test_todo_lines_and_follow_ups_go_to_main() -> None:
    async with open_agents() as agents:
        await agents.start_run([start("plan", [WAIT])])
        assert agents.send("todo: add check the SKU") == "main"
        assert agents.send("then: now the prices") == "main"
        assert agents.send("todo: add check the prices", to="plan-1") == "plan-1"
        await agents.finish_run()
        await agents.session.chain.wait_idle()
        assert sorted(t.text for t in agents.session.chain.plan.tasks) == ["check the SKU", "check the prices"]
        _, follow_up = agents.session.of(events.RunStarted)
        assert follow_up.query == "now the prices"


async def test_a_line_to_an_unknown_agent_is_refused() -> None:
    async with open_agents() as agents:
        await agents.start_run([start("explore", [WAIT])])
        chain = agents.session.chain
        answer = chain.submit("use B", to="explore-7")
        assert answer.what == "refused"
        assert all(name in answer.message for name in ("explore-7", "main", "explore-1"))
        with pytest.raises(UserError):
            chain.lines.target(to="explore-7")
        assert chain.lines.target(to="EXPLORE-1") == "explore-1"
        (refusal,) = agents.session.of(events.LineRefused)
        assert refusal.reason == answer.message
        await agents.finish_run()
        assert chain.submit("use B", to="explore-1").what == "refused", "a finished agent reads no lines"


async def test_lines_of_finished_agents_move_up() -> None:
    async with open_agents(settings=ONE_ITERATION) as agents:
        await agents.start_run([start("explore", [WAIT])], answer="All.")
        to = {"first": "explore-1", "second": "main", "third": "explore-1", "todo: add x": "explore-1", "last": "main"}
        for text, agent in to.items():
            agents.send(text, to=agent)
        await agents.finish_run()
        (interruption,) = agents.interruptions("main")
        assert interruption.ids == ("L2", "L3", "L4", "L6"), "in the order in which they were sent"
        assert [(e.id, e.target_agent, e.waiting) for e in agents.session.of(events.LineQueued)] == [
            ("L2", "explore-1", 1),
            ("L3", "main", 1),
            ("L4", "explore-1", 2),
            ("L5", "explore-1", 3),
            ("L6", "main", 2),
            ("L2", "main", 1),  # moved up
            ("L4", "main", 3),  # moved up
        ]
        assert agents.session.state("L5") == "handled", "the todo line"
        assert {r.id: r.agent for r in agents.session.chain.lines.receipts if r.state == "delivered"}["L2"] == "main"
        assert agents.results("main") == [("Step 1.\n\n[explore-1 stopped: max_iterations]", False)]


async def test_a_moved_urgent_line_stays_urgent() -> None:
    async with open_agents(settings=ONE_ITERATION) as agents:
        await agents.start_run([start("explore", [WAIT]), ["plan_add_task", {"task": "x"}]])
        agents.send("!use B")
        agents.waiters.release("explore-1")
        await agents.finish_run()
        _, plan_result = agents.results("main")
        assert plan_result == (SKIPPED, True)
        (interruption,) = agents.interruptions("main")
        assert (interruption.ids, interruption.point) == (("L2",), "C")


@pytest.mark.parametrize("line", ["!use B", "!!use B"], ids=["urgent", "now"])
async def test_a_moved_line_withdraws_its_new_agents_question(line: str) -> None:
    async with open_agents(settings=ONE_ITERATION) as agents:
        with agents.session.chain.answering():
            await agents.start_run([start("explore", [WAIT]), ASK])
            agents.send(line, to="explore-1")
            agents.waiters.release("explore-1")
            await agents.wait_blocked()
            assert agents.session.chain.questions.open_id is None
            await agents.finish_run()


async def test_moved_guidance_that_was_used_stays() -> None:
    async with open_agents(settings=ONE_ITERATION) as agents:
        await agents.start_run([start("explore", [WAIT]), start("plan", [WAIT])])
        agents.send("focus on tests", to="explore-1")
        agents.waiters.release("explore-1")
        await agents.wait_blocked()
        assert agents.waiters.adjustments["explore-1"] == ["tests"]
        assert agents.session.chain.lines.last_waiting() is None
        agents.session.interrupt()
        await agents.session.chain.wait_idle()
        assert agents.session.state("L2") == "handled"


async def test_a_moved_now_line_cancels_the_parents_tools() -> None:
    async with open_agents(settings=ONE_ITERATION) as agents:
        await agents.start_run([start("explore", [WAIT]), start("plan", [WAIT])], answer="All.")
        agents.send("!!use B")
        await agents.wait_blocked()
        await agents.finish_run()
        (interruption,) = agents.interruptions("main")
        assert (interruption.ids, interruption.point) == (("L2",), "N")
        (explorers_text, _), plan_result = agents.results("main")
        assert "[explore-1 stopped: max_iterations]" in explorers_text
        assert plan_result == (INTERRUPTED, True)


async def test_only_moved_lines_may_exceed_the_inbox() -> None:
    settings = make_settings(agents=True, inbox_size=2, kinds='{"explore": {"max_iterations": 1}}')
    async with open_agents(settings=settings) as agents:
        await agents.start_run([start("explore", [WAIT]), start("plan", [WAIT])])
        for text, to in (("a", "explore-1"), ("b", "main"), ("c", "explore-1"), ("d", "main")):
            agents.send(text, to)
        agents.waiters.release("explore-1")
        await agents.wait_blocked()
        waiting = [(line.id, line.agent) for line in agents.session.chain.lines.waiting]
        assert waiting == [("L2", "main"), ("L3", "main"), ("L4", "main"), ("L5", "main")]
        assert agents.session.chain.submit("e", to="main").what == "refused"
        assert agents.send("f", to="plan-1") == "plan-1"
        await agents.finish_run()
        assert [i.ids for i in agents.interruptions("main")] == [("L2", "L3", "L4", "L5")]


async def test_an_undeliverable_line_moves_to_the_parent() -> None:
    class DiskFullUntilChildEnds(FullDisk):
        def append(self, data: bytes) -> None:
            super().append(data)
            if b'"agent_ended"' in data:
                self.full = False

    disk = DiskFullUntilChildEnds()
    async with open_agents(file=disk) as agents:
        await agents.start_run([start("explore", [WAIT])])
        agents.send("use B" + "x" * 600)
        disk.room = 700  # enough to record the end of the child, but not a message with this line
        await agents.finish_run()
        assert [(i.ids, i.point) for i in agents.interruptions("main")] == [(("L2",), "D")]


async def test_an_executed_todo_is_not_repeated_by_parents() -> None:
    disk = FullDisk()
    async with open_agents(file=disk) as agents:
        await agents.start_run([start("explore", [WAIT])])
        agents.send(f"todo: add {'x' * 400}", to="explore-1")
        disk.room = 700  # enough to record the change of the plan, but not the message, which has the text twice
        await agents.finish_run()
        assert agents.session.state("L2") == "handled"
        assert len(agents.session.chain.plan.tasks) == 1
        assert agents.interruptions("main") == []
        assert agents.session.result.status == "done"


PROMPTS = {
    "explore.yaml": """
messages: [{role: system, content: You are an explorer.}]
interruption_prompt: explore_lines.yaml
""",
    "explore_lines.yaml": """
messages: [{role: user, content: "FOR THE EXPLORER (${agent}, ${query}): ${message}"}]
rules: [{match: '^hurry', action: urgent}, {match: '^enough', action: stop}]
""",
}


def settings_with_prompts() -> Settings:
    kinds = {"explore": {"prompt": "explore.yaml"}}
    return make_settings(agents=True, kinds=json.dumps(kinds), files=json.dumps(PROMPTS))


async def test_the_targets_handler_prompt_applies() -> None:
    async with open_agents(settings=settings_with_prompts()) as agents:
        await agents.start_run([start("explore", [WAIT]), start("plan", [WAIT])])
        agents.send("hurry up")
        agents.send("hurry up", to="plan-1")
        await agents.finish_run()
        urgencies = {e.target_agent: e.urgency for e in agents.session.of(events.LineQueued)}
        assert urgencies == {"explore-1": "urgent", "plan-1": "next"}
        task = task_of([WAIT])
        assert agents.texts("explore-1") == [task, f"FOR THE EXPLORER (explore-1, {task}): hurry up"]
        assert agents.texts("plan-1") == [task, "USER INTERRUPTION: hurry up"]
        sources = {e.agent: e.prompt_source.partition(":")[0] for e in agents.session.of(events.UserInterruption)}
        assert sources == {"explore-1": "yaml", "plan-1": "default"}


async def test_a_stop_rule_of_a_child_stops_all() -> None:
    async with open_agents(settings=settings_with_prompts()) as agents:
        await agents.start_run([start("explore", [WAIT]), start("plan", [WAIT])])
        assert agents.session.chain.submit("enough of that").what == "stopping"
        result = await agents.finish_run()
        assert result.status == "cancelled_with_partial"
        statuses = {e.name: e.status for e in agents.session.of(events.AgentEnded)}
        assert statuses == {"explore-1": "cancelled_with_partial", "plan-1": "cancelled_with_partial"}


async def test_the_chain_lists_its_agents() -> None:
    async with open_agents() as agents:
        await agents.start_run([start("explore")], [start("agent", [start("plan", [WAIT])])])
        main, agent, plan, explore = agents.session.chain.agents
        assert [(view.name, view.parent, view.state) for view in (main, agent, plan, explore)] == [
            ("main", "", "executing"),
            ("agent-1", "main", "executing"),
            ("plan-1", "agent-1", "executing"),
            ("explore-1", "main", "finished"),
        ]
        assert (main.iteration, explore.task) == (2, task_of())
        call_tokens = ObedientModel().usage.total_tokens
        assert main.tokens == (2 + 1) * call_tokens + agent.tokens, "its own, those of explore-1 and of agent-1"
        assert agent.tokens == (1 + 1) * call_tokens, "its own and those of plan-1"
        assert agents.session.chain.status().startswith("iteration 2, tools, 2 agents below; 0 lines wait")
        agents.send("use B")
        _, _, plan, _ = agents.session.chain.agents
        assert plan.waiting == 1
        await agents.finish_run()
        assert [view.state for view in agents.session.chain.agents] == ["finished"] * 4
