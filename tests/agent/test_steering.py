"""Lines that steer a run without stopping it: where they are delivered, and who receives what. L1 is the query."""

import pytest
from support.checks import checked_session
from support.gates import SLOW_ANSWER, THREE_ROUNDS, THREE_TOOLS, Gates, advance, finish_run, start_run, started_gates
from support.sessions import SKIPPED, call_at_event, make_settings, open_session
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events

RESUME = "Your reply was shown to the user."

TOUR = """
rules:
  - {when: {step: 1}, text: Touring., tools: [{name: tour, input: {places: 3}}]}
  - {text: The answer.}
"""


async def test_lines_during_an_answer_arrive_at_b(mock_clock: MockClock) -> None:
    async with checked_session(SLOW_ANSWER) as session:
        session.chain.submit("Do the task")
        await advance(mock_clock)
        assert [e.text for e in session.of(events.TextDelta)] == ["The whole "]
        session.chain.submit("shorter")
        for _ in range(3):
            await advance(mock_clock)
        await session.chain.wait_idle()
        [interruption] = session.of(events.UserInterruption)
        # The line is sent after 10 s, and the answer ends after 30 s.
        assert (interruption.point, interruption.iteration, interruption.waited_s) == ("B", 1, 20)
        waits = {r["type"]: r["waited_s"] for r in session.records if r.get("point") == "B"}
        assert waits == {"message": 20, "receipt": 20}
        assert session.result.replies == ("The whole answer.", "Noted.")
        assert session.sent() == "user: Do the task\nassistant: The whole answer.\nuser: USER INTERRUPTION: shorter"


async def test_a_line_is_queued_then_delivered() -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        await start_run(session, gates, "a", "shorter")
        assert [(a.id, a.line.text) for a in session.chain.lines.waiting] == [("L2", "shorter")]
        assert (session.state("L1"), session.state("L2")) == ("delivered", "queued")
        assert session.chain.status().startswith("iteration 1, tools; 1 line waits")
        await finish_run(session, gates)
        assert session.chain.status().startswith("nothing is running; 0 lines wait")
        of_the_line = [e for e in session.events if "L2" in (getattr(e, "id", ""), *getattr(e, "ids", ()))]
        queued, interruption, receipt = of_the_line
        assert (queued.type, interruption.type, receipt.type) == ("line_queued", "user_interruption", "receipt")
        source = (interruption.target_agent, interruption.parent_id, interruption.prompt_source)
        assert source == ("main", "root", "default")
        assert (receipt.state, receipt.agent, receipt.iteration, receipt.point) == ("delivered", "main", 1, "D")
        messages = [r for r in session.records if r["type"] == "message" and r["message"]["role"] == "user"]
        assert [(r["is_interjection"], r["line_ids"], r["point"]) for r in messages] == [
            (False, ["L1"], "start"),
            (False, [], None),
            (True, ["L2"], "D"),
        ]


@pytest.mark.parametrize("line", ["shorter", "!shorter", "why?", "todo: add x", "focus on x", "context: x"])
async def test_an_interruption_leaves_no_trace_in_later_runs(line: str) -> None:
    gates = Gates()
    settings = make_settings(handler="messages: [{role: system, content: Be brief.}]\nconfig: {max_tokens: 500}")
    async with checked_session(THREE_TOOLS, tools=gates.tools, settings=settings) as session:
        await start_run(session, gates, "a", line)
        await finish_run(session, gates)
        assert session.chain.lines.waiting == ()
        later: list[events.Event] = []
        session.chain.listen(later.append)
        assert (await session.run("Do another task")).status == "done"
        *_, first, last = session.model.requests
        assert (first.tail, first.overrides.max_tokens) == (last.tail, last.overrides.max_tokens) == ((), None)
        tool_results = [event.text for event in later if isinstance(event, events.ToolResult)]
        assert tool_results == ["a is done", "b is done", "c is done"]
        assert not {event.type for event in later} & {"user_interruption", "line_queued", "notice", "plan_changed"}


async def test_an_urgent_line_skips_unstarted_tools() -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        await start_run(session, gates, "a", "!shorter")
        gates.open("b", "c")
        await wait_all_tasks_blocked()
        assert session.of(events.ToolResult, events.UserInterruption) == [], "the running tool finishes"
        await finish_run(session, gates)
        assert started_gates(session) == ["a"]
        [interruption] = session.of(events.UserInterruption)
        assert (interruption.point, interruption.ids) == ("C", ("L2",))
        assert interruption.tools_skipped == ("gate", "gate")
        _, *skipped = session.of(events.ToolResult)
        assert [(e.is_error, e.seconds, e.input) for e in skipped] == [(True, 0, {"at": "b"}), (True, 0, {"at": "c"})]
        *_, tool_results, message = session.model.requests[1].messages
        sent = [(r.text, r.is_error) for r in tool_results.results]
        assert sent == [("a is done", False), (SKIPPED, True), (SKIPPED, True)]
        assert message.text == "USER INTERRUPTION: shorter"


async def test_an_urgent_line_delivers_the_whole_queue() -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        lines = ("one", "then: the next", "todo: add two", "!three", "context: four", "!five")
        await start_run(session, gates, "a", *lines)
        session.chain.submit("six?")
        await finish_run(session, gates)
        [interruption] = session.of(events.UserInterruption)
        assert interruption.point == "C"
        assert interruption.ids == ("L2", "L4", "L5", "L6", "L7", "L8"), "all but the follow-up"
        *_, message = session.model.requests[1].messages
        assert message.text.split("\n\n") == [
            "USER INTERRUPTION: one",
            "USER INTERRUPTION: todo: add two (Done: task 1 added: two)",
            "USER INTERRUPTION: three",
            "USER INTERRUPTION: [USER ADDED] four",
            "USER INTERRUPTION: five",
            "USER INTERRUPTION: six?",
        ]
        assert [e.query for e in session.of(events.RunStarted)] == ["Do the task", "the next"]


async def test_an_urgent_line_at_the_limit_is_returned() -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools, settings=make_settings(max_iterations=1)) as session:
        await start_run(session, gates, "a", "!shorter", "!todo: add x")
        result = await finish_run(session, gates, max_iterations=1)
        assert [e.text for e in session.of(events.ToolResult)] == ["a is done", SKIPPED, SKIPPED]
        assert (result.status, result.result) == ("max_iterations", "Looking.")
        assert (session.state("L2"), session.state("L3")) == ("returned", "handled")
        assert session.of(events.UserInterruption) == []


async def test_a_safe_point_reports_a_stop() -> None:
    gates = Gates("place 1")
    async with open_session(TOUR, tools=gates.tools) as session:
        await start_run(session, gates, "place 2", "skip Amazon")  # place 1 is open
        session.chain.submit("stop")
        result = await finish_run(session, gates)
        assert gates.adjustments == [("skip_source", "Amazon")]
        assert result.partial_results == ("[1 visited, 2 skipped]",)


@pytest.mark.parametrize(
    ("status", "second_line"),
    # Except after an interrupt, the tool reaches another safe point and receives the second line too.
    [("cancelled_with_partial", "handled"), ("interrupted", "returned"), ("max_iterations", "handled")],
)
async def test_used_guidance_ends_handled_unless_delivered(status: str, second_line: str) -> None:
    gates = Gates("place 1")
    async with open_session(TOUR, tools=gates.tools, settings=make_settings(max_iterations=1)) as session:
        call_at_event(session, events.ToolCall, lambda: session.chain.submit("skip Amazon"))
        await start_run(session, gates, "place 2", "skip the Wiki")
        assert gates.adjustments == [("skip_source", "Amazon")]
        if status == "cancelled_with_partial":
            session.chain.submit("stop")
        if status == "interrupted":
            session.chain.interrupt()
        result = await finish_run(session, gates, max_iterations=1)
        assert result.status == status
        assert (session.state("L2"), session.state("L3")) == ("handled", second_line)


async def test_unused_guidance_is_returned_at_the_limit() -> None:
    gates = Gates(is_open=True)
    async with checked_session(TOUR, tools=gates.tools, settings=make_settings(max_iterations=1)) as session:
        call_at_event(session, events.ToolResult, lambda: session.chain.submit("ignore prices"))
        assert (await session.run("Do the task")).status == "max_iterations"
        assert session.state("L2") == "returned"


async def test_leaving_settles_used_guidance() -> None:
    gates = Gates("place 1")
    async with open_session(TOUR, tools=gates.tools, interactive=True) as session:
        call_at_event(session, events.ToolCall, lambda: session.chain.submit("skip Amazon"))
        await start_run(session, gates, "place 2", "skip the Wiki")
        session.chain.runs.leave()
        await session.chain.wait_idle()
        assert session.state("L2") == "handled", "no other process uses it again"
        assert session.state("L3") == "queued"


# Calls a tool, talks, is asked to continue, and does the same again.
TALK = """
rules:
  - {when: {step: 1}, tools: [{name: gate, input: {at: a}}]}
  - {when: {step: 3}, tools: [{name: gate, input: {at: b}}]}
  - {text: 'Reply ${turn}.'}
"""


async def test_each_delivery_resumes_the_task_once() -> None:
    gates = Gates()
    async with open_session(TALK, tools=gates.tools) as session:
        await start_run(session, gates, "a", "how is it going?")
        gates.open("a")
        await gates.wait_reached("b")
        assert session.chain.submit("and now?").what == "queued"
        result = await finish_run(session, gates)
        assert result.replies == ("Reply 2.", "Reply 4.", "Reply 5.")
        assert session.sent().count(RESUME) == 2
        assert (result.status, result.result) == ("done", "Reply 5.")


async def test_a_reply_with_tool_calls_needs_no_resume() -> None:
    gates = Gates()
    model = THREE_ROUNDS.replace("rules:", "rules:\n  - {when: {interruption: late}, text: Noted.}")
    async with open_session(model, tools=gates.tools) as session:
        call_at_event(session, events.Reply, lambda: session.chain.submit("context: it is late"), tool_calls=0)
        await start_run(session, gates, "a", "why?")
        result = await finish_run(session, gates)
        assert RESUME not in session.sent()
        assert (result.result, result.replies) == ("The answer.", ("The answer.", "Noted."))


async def test_no_iteration_left_to_resume_is_max_iterations() -> None:
    gates = Gates()
    model = TALK.replace("step: 3", "step: 9")  # a step that the run does not reach
    async with open_session(model, tools=gates.tools, settings=make_settings(max_iterations=2)) as session:
        await start_run(session, gates, "a", "why?")
        result = await finish_run(session, gates, max_iterations=2)
        assert (result.status, result.result, result.iterations) == ("max_iterations", "Reply 2.", 2)
