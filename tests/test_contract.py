"""The contract of lines, the loop and endings: rows of the tables of SPEC sections 3, 4 and 7 in whole sessions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

import pytest
from support import FullDisk, Session, at, check_invariants, open_session, settings
from support.gates import THREE_TOOLS, Gates, begin, finish, tick
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.events import Status
from chain.lines.parse import MAX_LINE
from chain.session import event_json

ANSWER = "rules: [{text: The answer.}]"
LOOK = """
rules:
  - {when: {turn: 1}, text: Looking., tools: [{name: gate, input: {at: a}}]}
  - {text: The answer.}
"""


def receipt(session: Session, id: str) -> events.Receipt:
    return next(r for r in session.chain.lines.receipts if r.id == id)


# -------------------------------------------------------------------------------------------------- states of a line


async def test_a_line_that_was_delivered_says_where_and_how_long_it_waited(mock_clock: MockClock) -> None:
    gates = Gates()
    async with open_session(LOOK, tools=gates.tools) as session:
        await begin(session, gates, "a", "use B")
        await tick(mock_clock, 3.25)
        await finish(session, gates)
        found = receipt(session, "L2")
        assert (found.state, found.agent, found.iteration, found.point) == ("delivered", "main", 1, "D")
        assert found.waited_s == 3.25
        assert session.of(events.UserInterruption)[0].waited_s == 3.25
        [record] = [r for r in session.records if r["type"] == "receipt" and r["id"] == "L2"]
        assert [record[k] for k in ("state", "agent", "iteration", "point", "waited_s")] == [
            "delivered",
            "main",
            1,
            "D",
            3.25,
        ]


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x" * (MAX_LINE + 1), "the limit is 100,000"),
        ("todo: complete x", "write it as todo: complete <N>"),
        ("then:", "write what comes next"),
        ("!", "write the message after the !"),
        ("use D", "No space left"),
    ],
    ids=["over-long", "malformed", "without its text", "urgent without a text", "not writable"],
)
async def test_a_line_that_cannot_be_accepted_is_refused(text: str, reason: str, active: bool) -> None:
    gates, disk = Gates(), FullDisk()
    async with open_session(LOOK, tools=gates.tools, file=disk) as session:
        if active:
            await begin(session, gates, "a")
        disk.full = text == "use D"
        lines = [r for r in session.records if r["type"] == "line"]
        answer = session.chain.submit(text)
        assert answer.what == "refused"
        assert reason in answer.message
        [refused] = session.of(events.LineRefused)
        assert (refused.text, refused.reason) == (text[:1_000], answer.message)
        assert (session.chain.lines.receipts[-1].text, session.chain.lines.receipts[-1].state) == (
            text[:1_000],
            "refused",
        )
        assert [r for r in session.records if r["type"] == "line"] == lines, "it was never accepted"
        disk.full = False
        gates.let("a")
        await session.chain.wait_idle()
        assert session.chain.is_running is False
        if not active:
            assert session.of(events.RunStarted) == []
        else:
            check_invariants(session)


# -------------------------------------------------------------------------------------------------- what a line can say


@pytest.mark.parametrize(("line", "state"), [("todo: complete 1", "DONE"), ("todo: list", "PENDING")])
async def test_a_plan_command_is_carried_out_at_the_next_safe_point(line: str, state: str) -> None:
    gates = Gates()
    async with open_session(LOOK, tools=gates.tools) as session:
        session.chain.plan.add("one", "user")
        await begin(session, gates, "a", line)
        assert [t.state for t in session.chain.plan.tasks] == ["PENDING"]
        await finish(session, gates)
        assert [t.state for t in session.chain.plan.tasks] == [state]
        is_news = bool(session.model.requests[1].tail[1:])
        assert is_news == (state == "DONE"), "the model is told of a plan that others changed"


@pytest.mark.parametrize("active", [False, True])
async def test_a_command_never_enters_the_channel(active: bool) -> None:
    gates = Gates()
    async with open_session(LOOK, tools=gates.tools) as session:
        if active:
            await begin(session, gates, "a")
        count = len(session.chain.lines.receipts)
        for line in ("/help", "/no such command", "/drop L2"):
            assert (session.chain.submit(line).what, session.chain.submit(line).message) == ("local", line)
        assert (len(session.chain.lines.receipts), session.chain.lines.waiting) == (count, ())
        gates.let("a")
        await session.chain.wait_idle()
        assert session.of(events.LineQueued, events.LineRefused) == []


@pytest.mark.parametrize("active", [False, True])
async def test_blank_lines_do_nothing(active: bool) -> None:
    gates = Gates()
    async with open_session(LOOK, tools=gates.tools) as session:
        if active:
            await begin(session, gates, "a")
        before = (len(session.records), len(session.events))
        for line in ("", " ", "\n", "\t \n"):
            answer = session.chain.submit(line)
            assert (answer.what, answer.message) == ("nothing", "")
        await wait_all_tasks_blocked()
        assert (len(session.records), len(session.events)) == before
        gates.let("a")
        await session.chain.wait_idle()
        assert len(session.of(events.RunStarted)) == active


# ------------------------------------------------------------------------------------------------- with no run active


@pytest.mark.parametrize("line", ["status", "STATUS"])
async def test_status_with_no_run_needs_no_model(line: str) -> None:
    async with open_session(ANSWER) as session:
        answer = session.chain.submit(line)
        assert (answer.what, session.state("L1")) == ("handled", "handled")
        assert answer.message == "nothing is running; 0 lines wait; plan 0/0; 0 tokens used"
        await session.chain.wait_idle()
        assert session.model.requests == []


async def test_a_stop_with_no_run_says_so_and_is_no_line() -> None:
    async with open_session(ANSWER) as session:
        count = len(session.records)
        for line in ("stop", "Never mind.", "!cancel"):
            answer = session.chain.submit(line)
            assert (answer.what, answer.message) == ("nothing", "Nothing is running.")
        assert (len(session.records), session.chain.lines.receipts, session.events) == (count, (), [])


@pytest.mark.parametrize(
    ("line", "query"),
    [
        ("do the task", "do the task"),
        ("!do the task", "do the task"),
        ("what is it?", "what is it?"),
        ("focus on prices", "focus on prices"),
        ("then: do the next", "do the next"),
        (" stop", "stop"),
        (" todo: add x", "todo: add x"),
        ("todo: buy milk", "todo: buy milk"),
        ("stop using grep", "stop using grep"),
    ],
)
async def test_everything_else_starts_a_run(line: str, query: str) -> None:
    async with open_session(ANSWER) as session:
        assert session.chain.submit(line).what == "started"
        await session.chain.wait_idle()
        assert session.of(events.RunStarted)[0].query == query
        assert session.sent() == f"user: {query}"
        assert (session.result.status, session.state("L1")) == ("done", "delivered")
        check_invariants(session)


@pytest.mark.parametrize("query", ["stop", "todo: add x", "!now", "/help", "then: x", "context: x", "status", " x "])
async def test_a_query_that_is_an_argument_is_not_parsed(query: str) -> None:
    async with open_session(ANSWER) as session:
        assert session.chain.start(query).what == "started"
        await session.chain.wait_idle()
        assert session.sent() == f"user: {query.strip()}"
        assert session.chain.plan.tasks == ()
        check_invariants(session)


# ------------------------------------------------------------------------------------------------------ the safe points


async def test_lines_of_the_first_step_enter_at_a_after_the_query() -> None:
    async with open_session(ANSWER) as session:
        session.chain.submit("Do the task")
        session.chain.submit("use B")
        session.chain.submit("then: the next")
        session.chain.submit("!and C")
        await session.chain.wait_idle()
        [entered] = session.of(events.UserInterruption)
        assert (entered.point, entered.iteration, entered.ids, entered.remaining) == ("A", 0, ("L2", "L4"), 20)
        assert session.sent(0) == ("user: Do the task\nuser: USER INTERRUPTION: use B\n\nUSER INTERRUPTION: and C")
        assert len(session.model.requests) == 2, "one for each run"
        check_invariants(session)


@pytest.mark.parametrize("kind", [events.ToolResult, events.TextDelta])
async def test_no_line_is_delivered_where_the_budget_lets_no_call_answer_it(kind: type[events.Event]) -> None:
    model = """
rules:
  - {when: {user: ^look}, tools: [{name: gate, input: {at: a}}], usage: {input_tokens: 60, output_tokens: 60}}
  - {text: The answer., usage: {input_tokens: 60, output_tokens: 60}}
"""
    async with open_session(model, tools=Gates("a").tools, use=settings(budget_tokens=100)) as session:
        at(session, kind, lambda: session.chain.submit("use B"))
        result = await session.run("look" if kind is events.ToolResult else "answer")
        assert len(session.model.requests) == 1
        assert result.status == "limit_reached"
        assert session.state("L2") == "returned"
        check_invariants(session)


async def test_the_result_at_the_limit_is_what_the_model_said_last() -> None:
    model = """
rules:
  - {when: {step: 2}, text: So far so good., tools: [{name: gate, input: {at: b}}]}
  - {tools: [{name: gate, input: {at: a}}]}
"""
    async with open_session(model, tools=Gates("a", "b").tools, use=settings(max_iterations=3)) as session:
        ended = await session.run("Do the task")
        assert (ended.status, ended.iterations, ended.result) == ("max_iterations", 3, "So far so good.")


# -------------------------------------------------------------------------------------------------- tools, stop reasons


async def test_the_journal_notes_the_start_and_the_end_of_each_tool() -> None:
    gates = Gates("a")
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        await begin(session, gates, "b")
        session.chain.interrupt()
        await finish(session, gates)
        ids = [e.id for e in session.of(events.ToolResult)]
        noted = [(r["type"], r["id"]) for r in session.records if r["type"].startswith("tool_")]
        assert noted == [
            ("tool_started", ids[0]),
            ("tool_finished", ids[0]),
            ("tool_started", ids[1]),
            ("tool_finished", ids[1]),
        ]
        ends = [r["is_error"] for r in session.records if r["type"] == "tool_finished"]
        assert ends == [False, True]


async def test_a_refusal_takes_back_all_since_the_last_reply_without_calls() -> None:
    gates = Gates("b")
    model = """
rules:
  - {when: {interruption: bad}, text: No., stop_reason: refusal}
  - {when: {user: look, step: 1}, text: Looking., tools: [{name: gate, input: {at: a}}]}
  - {text: The answer.}
"""
    async with open_session(model, tools=gates.tools) as session:
        await session.run("Do the task")
        assert session.chain.submit("look").what == "started"
        await gates.reached("a")
        session.chain.submit("something bad")
        session.chain.submit("todo: add x")
        result = await finish(session, gates)
        assert (result.status, result.exit_code) == ("refused", 1)
        assert [session.state(f"L{n}") for n in range(1, 5)] == ["delivered", "returned", "returned", "delivered"]
        [withdrawn] = [r for r in session.records if r["type"] == "withdrawn"]
        assert (withdrawn["messages"], withdrawn["reason"]) == (4, "refused")
        await session.run("Do another task")
        assert session.sent() == "user: Do the task\nassistant: The answer.\nuser: Do another task"
        check_invariants(session)


async def test_only_one_empty_reply_in_a_run_is_asked_to_continue() -> None:
    gates = Gates("a")
    model = """
rules:
  - {text: ' ', times: 1}
  - {when: {tool: gate}, text: ' '}
  - {tools: [{name: gate, input: {at: a}}]}
"""
    async with open_session(model, tools=gates.tools) as session:
        result = await session.run("Do the task")
        assert (result.status, result.iterations) == ("empty", 3)
        assert session.sent() == "user: Do the task\nuser: Please continue.\nassistant: ['gate']\nuser: a is done"
        check_invariants(session)


# ------------------------------------------------------------------------------------------------------------- endings


@dataclass(frozen=True)
class Ending:
    """How a run comes to a status.

    ``model``, ``use``: under which rules and settings. ``when``, ``n``: lines come at the n-th event of this kind, and
    then the user does ``act``.
    """

    code: int
    model: str = LOOK
    when: type[events.Event] = events.ToolCall
    n: int = 1
    act: Callable[[Session], object] = lambda session: None
    use: dict[str, Any] = field(default_factory=dict)

    @property
    def most(self) -> int:
        iterations: int = self.use.get("max_iterations", 20)
        return iterations


def stop(session: Session) -> object:
    return session.chain.submit("stop")


def interrupt(session: Session) -> object:
    return session.chain.interrupt()


def replying(reason: str) -> str:
    return f"rules: [{{when: {{turn: 1}}, text: So far., stop_reason: {reason}}}, {{text: The answer.}}]"


ENDINGS: dict[Status, Ending] = {
    "done": Ending(0, ANSWER, events.TextDelta),
    "cancelled": Ending(0, ANSWER, events.TextDelta, act=stop),
    "cancelled_with_partial": Ending(0, act=stop),
    "cancelled_during_synthesis": Ending(0, when=events.TextDelta, n=2, act=stop),
    "interrupted": Ending(130, act=interrupt),
    "max_iterations": Ending(4, use={"max_iterations": 1}),
    "limit_reached": Ending(4, LOOK.replace("at: a", "at: never"), use={"timeout_s": 30}),
    "truncated": Ending(1, replying("max_tokens"), events.TextDelta),
    "empty": Ending(1, "rules: [{text: ' '}]", events.IterationStarted, n=2),
    "refused": Ending(1, replying("refusal"), events.TextDelta),
    "context_full": Ending(1, replying("model_context_window_exceeded"), events.TextDelta),
    "error": Ending(1, "rules: [{text: So far., error: {message: away, after: 3}}]", events.TextDelta),
}


def test_every_status_has_an_ending() -> None:
    assert set(ENDINGS) == set(get_args(Status))


async def play(session: Session, ending: Ending, *lines: str) -> events.Result:
    """Bring a run to its ending, with lines that come as late as they can; the result of that run."""

    def come() -> None:
        for line in lines:
            assert session.chain.submit(line).what == "queued"
        ending.act(session)

    at(session, ending.when, come, ending.n)
    await session.run("Do the task")
    check_invariants(session, max_iterations=ending.most)
    first: events.Result = session.of(events.Result)[0]
    return first


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("interactive", [False, True], ids=["headless", "interactive"])
@pytest.mark.parametrize("follows", [False, True], ids=["alone", "with a follow-up"])
@pytest.mark.parametrize("status", ENDINGS)
async def test_what_becomes_of_lines_that_wait(
    status: Status, follows: bool, interactive: bool, autojump_clock: MockClock
) -> None:
    ending = ENDINGS[status]
    lines = ["use B", "then: the next", "then: the last"] if follows else ["use B"]
    if status in ("truncated", "empty"):
        lines[0] = "then: use B"  # any other line goes on from there
    use = settings(**ending.use)
    async with open_session(ending.model, tools=Gates("a").tools, use=use, interactive=interactive) as session:
        result = await play(session, ending, *lines)
        assert result.status == status
        assert result.exit_code == (ending.code or (0 if status == "done" else 3))
        stays = status == "done" or (status == "max_iterations" and (follows or interactive))
        became = {r.text: r.state for r in session.chain.lines.receipts if r.text in lines}
        assert became == dict.fromkeys(lines, "delivered" if stays else "returned")
        queries = [e.query for e in session.of(events.RunStarted)][1:]
        if not stays:
            assert queries == []
            reasons = {r.reason for r in session.chain.lines.receipts if r.text in lines}
            assert reasons == {status}
        else:
            assert queries == (["the next", "the last"] if follows else [""] if status == "max_iterations" else [])
            points = [e.point for e in session.of(events.UserInterruption)]
            assert points == (["B"] if status == "done" else ["A"])


@pytest.mark.parametrize("max_iterations", [1, 2, 3])
async def test_a_line_that_waits_goes_on_from_a_reply_that_max_tokens_cut(
    max_iterations: int, autojump_clock: MockClock
) -> None:
    ending = ENDINGS["truncated"]
    async with open_session(ending.model, use=settings(max_iterations=max_iterations)) as session:
        at(session, ending.when, lambda: session.chain.submit("use B"))
        result = await session.run("Do the task")
        check_invariants(session, max_iterations=max_iterations)
        if max_iterations == 1:
            assert (result.status, session.state("L2")) == ("max_iterations", "returned")
            return
        assert (result.status, result.result, result.replies) == ("done", "The answer.", ("So far.", "The answer."))
        assert [e.point for e in session.of(events.UserInterruption)] == ["B"]


async def test_after_an_aside_a_reply_that_max_tokens_cut_ends_the_run(autojump_clock: MockClock) -> None:
    gates = Gates("a")
    model = """
rules:
  - {when: {interruption: why}, text: Becau, stop_reason: max_tokens}
  - {when: {user: task, step: 1}, tools: [{name: gate, input: {at: a}}]}
  - {text: The answer.}
"""
    async with open_session(model, tools=gates.tools) as session:
        at(session, events.ToolCall, lambda: session.chain.submit("why?"))
        gates.let("a")
        result = await session.run("Do the task")
        assert (result.status, result.result) == ("truncated", "Becau")
        check_invariants(session)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("status", ENDINGS)
async def test_each_ending_has_its_exit_code_and_only_what_the_user_ended_is_marked_as_such(
    status: Status, autojump_clock: MockClock
) -> None:
    ending = ENDINGS[status]
    async with open_session(ending.model, tools=Gates("a").tools, use=settings(**ending.use)) as session:
        result = await play(session, ending)
        found = (result.termination_reason, result.partial, result.phase_reached, result.partial_results)
        expected: dict[str, tuple[Any, ...]] = {
            "cancelled": ("user_cancelled", True, "answering", ()),
            "cancelled_with_partial": ("user_cancelled", True, "tools", ("a is done",)),
            "cancelled_during_synthesis": ("user_cancelled", True, "answering", ("a is done",)),
            "interrupted": ("user_interrupted", True, "tools", ()),
        }
        assert (result.status, found) == (status, expected.get(status, (None, False, None, ())))
        told = event_json.to_json(result)
        assert [told[k] for k in ("termination_reason", "partial", "phase_reached")] == list(found[:3])
        assert told["partial_results"] == list(found[3])
        assert result.exit_code == session.chain.runs.exit_code() == ending.code
        assert session.chain.runs.exit_code(terminated=True) == 143
        session.chain.lines.mark_unsent("use C", "its moment did not come")
        assert session.chain.runs.exit_code() == (ending.code or 3)


async def test_of_several_runs_the_largest_problem_is_the_exit_code() -> None:
    gates = Gates("a")
    model = """
rules:
  - {when: {user: ^loop, tool: gate}, text: On., tools: [{name: gate, input: {at: a}}]}
  - {when: {user: ^loop}, text: On., tools: [{name: gate, input: {at: a}}]}
  - {when: {user: ^fail}, text: x, error: {message: away}}
  - {when: {user: ^look, step: 1}, tools: [{name: gate, input: {at: b}}]}
  - {text: The answer.}
"""
    codes = []
    async with open_session(model, tools=gates.tools, use=settings(max_iterations=2)) as session:
        for query, act in (("hello", None), ("look", stop), ("loop", None), ("fail", None), ("look", interrupt)):
            session.chain.submit(query)
            if act is not None:
                await gates.reached("b")
                session.chain.submit("use B")
                act(session)
                gates.let("b")
            await session.chain.wait_idle()
            codes.append(session.result.exit_code)
        await session.run("hello")
        assert codes == [0, 3, 4, 1, 130]
        assert session.result.exit_code == 130
        assert session.chain.runs.exit_code(terminated=True) == 143
        check_invariants(session, max_iterations=2)
