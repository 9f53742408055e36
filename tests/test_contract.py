"""The tables of lines, safe points and endings of the specification (sections 3, 4 and 7), in whole sessions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

import pytest
from support import FullDisk, Session, at, check_invariants, open_session, settings
from support.gates import Gates, begin, finish
from trio.testing import MockClock

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


# Lines


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
async def test_an_unacceptable_line_is_refused(text: str, reason: str, active: bool) -> None:
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
        receipt = session.chain.lines.receipts[-1]
        assert (receipt.text, receipt.state) == (text[:1_000], "refused")
        assert [r for r in session.records if r["type"] == "line"] == lines, "the line was never accepted"
        disk.full = False
        gates.let("a")
        await session.chain.wait_idle()
        assert len(session.of(events.RunStarted)) == active


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize(
    ("line", "what", "message"),
    [
        *((line, "local", line) for line in ("/help", "/unknown", "/drop L2")),
        *((line, "nothing", "") for line in " \n"),
    ],
)
async def test_commands_and_blank_lines_are_never_accepted(line: str, what: str, message: str, active: bool) -> None:
    gates = Gates()
    async with open_session(LOOK, tools=gates.tools) as session:
        if active:
            await begin(session, gates, "a")
        before = (len(session.records), len(session.events), session.chain.lines.receipts)
        answer = session.chain.submit(line)
        assert (answer.what, answer.message) == (what, message)
        assert (len(session.records), len(session.events), session.chain.lines.receipts) == before
        gates.let("a")


@pytest.mark.parametrize(
    ("line", "query"),
    [
        ("!do the task", "do the task"),
        ("what is it?", "what is it?"),
        ("then: do the next", "do the next"),
        (" stop", "stop"),
        ("todo: buy milk", "todo: buy milk"),
        ("stop using grep", "stop using grep"),
    ],
)
async def test_most_lines_start_a_run(line: str, query: str) -> None:
    async with open_session(ANSWER) as session:
        assert session.chain.submit(line).what == "started"
        await session.chain.wait_idle()
        assert session.chain.start(line).what == "started"  # an argument is not parsed
        await session.chain.wait_idle()
        assert [run.query for run in session.of(events.RunStarted)] == [query, line.strip()]
        assert session.sent() == f"user: {query}\nassistant: The answer.\nuser: {line.strip()}"
        assert (session.result.status, session.state("L1")) == ("done", "delivered")
        check_invariants(session)


# Safe points


async def test_early_lines_enter_at_a(autojump_clock: MockClock) -> None:
    async with open_session(ANSWER) as session:
        for line in ("Do the task", "use B", "then: the next", "!and C"):
            session.chain.submit(line)
        await session.chain.wait_idle()
        [entered] = session.of(events.UserInterruption)
        assert (entered.point, entered.iteration, entered.ids, entered.remaining) == ("A", 0, ("L2", "L4"), 20)
        assert session.sent(0) == "user: Do the task\nuser: USER INTERRUPTION: use B\n\nUSER INTERRUPTION: and C"
        assert len(session.model.requests) == 2, "one for each run"
        check_invariants(session)


@pytest.mark.parametrize("kind", [events.ToolResult, events.TextDelta])
async def test_an_exhausted_budget_delivers_no_line(kind: type[events.Event]) -> None:
    usage = "usage: {input_tokens: 60, output_tokens: 60}"
    model = f"""
rules:
  - {{when: {{user: ^look}}, tools: [{{name: gate, input: {{at: a}}}}], {usage}}}
  - {{text: The answer., {usage}}}
"""
    async with open_session(model, tools=Gates("a").tools, use=settings(budget_tokens=100)) as session:
        at(session, kind, lambda: session.chain.submit("use B"))
        result = await session.run("look" if kind is events.ToolResult else "answer")
        assert len(session.model.requests) == 1
        assert (result.status, session.state("L2")) == ("limit_reached", "returned")
        check_invariants(session)


async def test_a_refusal_withdraws_back_to_the_last_answer() -> None:
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
        assert (await finish(session, gates)).status == "refused"
        assert [session.state(f"L{n}") for n in range(1, 5)] == ["delivered", "returned", "returned", "delivered"]
        [withdrawn] = [r for r in session.records if r["type"] == "withdrawn"]
        assert (withdrawn["messages"], withdrawn["reason"]) == (4, "refused")


# Endings


@dataclass(frozen=True)
class Ending:
    """How a run comes to a status.

    ``model`` and ``use`` are its rules and settings. Lines are sent at the ``n``-th event of kind ``when``, and
    then the user does ``act``.
    """

    code: int
    model: str = LOOK
    when: type[events.Event] = events.ToolCall
    n: int = 1
    act: Callable[[Session], object] = lambda session: None
    use: dict[str, Any] = field(default_factory=dict)


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
FOUND: dict[str, tuple[Any, ...]] = {
    "cancelled": ("user_cancelled", True, "answering", ()),
    "cancelled_with_partial": ("user_cancelled", True, "tools", ("a is done",)),
    "cancelled_during_synthesis": ("user_cancelled", True, "answering", ("a is done",)),
    "interrupted": ("user_interrupted", True, "tools", ()),
}
"""What the result of a run says that the user ended."""


def test_every_status_has_an_ending() -> None:
    assert set(ENDINGS) == set(get_args(Status))


async def play(session: Session, ending: Ending, *lines: str) -> events.Result:
    """Bring a run to its ending, and send lines as late as possible. Return the result of that run."""

    def send() -> None:
        for line in lines:
            assert session.chain.submit(line).what == "queued"
        ending.act(session)

    at(session, ending.when, send, ending.n)
    await session.run("Do the task")
    check_invariants(session, max_iterations=ending.use.get("max_iterations", 20))
    first: events.Result = session.of(events.Result)[0]
    return first


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("interactive", [False, True], ids=["headless", "interactive"])
@pytest.mark.parametrize("follows", [False, True], ids=["alone", "with a follow-up"])
@pytest.mark.parametrize("status", ENDINGS)
async def test_what_becomes_of_waiting_lines(
    status: Status, follows: bool, interactive: bool, autojump_clock: MockClock
) -> None:
    ending = ENDINGS[status]
    lines = ["use B", "then: the next", "then: the last"] if follows else ["use B"]
    if status in ("truncated", "empty"):
        lines[0] = "then: use B"  # any other line continues the run
    use = settings(**ending.use)
    async with open_session(ending.model, tools=Gates("a").tools, use=use, interactive=interactive) as session:
        result = await play(session, ending, *lines)
        assert result.status == status
        assert result.exit_code == (ending.code or (0 if status == "done" else 3))
        stays = status == "done" or (status == "max_iterations" and (follows or interactive))
        receipts = [r for r in session.chain.lines.receipts if r.text in lines]
        assert {r.text: r.state for r in receipts} == dict.fromkeys(lines, "delivered" if stays else "returned")
        queries = [e.query for e in session.of(events.RunStarted)][1:]
        if not stays:
            assert (queries, {r.reason for r in receipts}) == ([], {status})
        else:
            assert queries == (["the next", "the last"] if follows else [""] if status == "max_iterations" else [])
            points = [e.point for e in session.of(events.UserInterruption)]
            assert points == (["B"] if status == "done" else ["A"])


@pytest.mark.parametrize("status", ENDINGS)
async def test_each_ending_has_its_exit_code(status: Status, autojump_clock: MockClock) -> None:
    ending = ENDINGS[status]
    async with open_session(ending.model, tools=Gates("a").tools, use=settings(**ending.use)) as session:
        result = await play(session, ending)
        found = (result.termination_reason, result.partial, result.phase_reached, result.partial_results)
        assert (result.status, found) == (status, FOUND.get(status, (None, False, None, ())))
        assert status != "max_iterations" or result.result == "Looking.", "the last text of the model"
        as_json = event_json.to_json(result)
        assert [as_json[k] for k in ("termination_reason", "partial", "phase_reached")] == list(found[:3])
        assert as_json["partial_results"] == list(found[3])
        assert result.exit_code == session.chain.runs.exit_code() == ending.code
        assert session.chain.runs.exit_code(terminated=True) == 143
        session.chain.lines.mark_unsent("use C", "its moment did not come")
        assert session.chain.runs.exit_code() == (ending.code or 3)


@pytest.mark.parametrize("max_iterations", [1, 2])
async def test_a_waiting_line_continues_a_truncated_run(max_iterations: int, autojump_clock: MockClock) -> None:
    async with open_session(replying("max_tokens"), use=settings(max_iterations=max_iterations)) as session:
        at(session, events.TextDelta, lambda: session.chain.submit("use B"))
        result = await session.run("Do the task")
        check_invariants(session, max_iterations=max_iterations)
        if max_iterations == 1:
            assert (result.status, session.state("L2")) == ("max_iterations", "returned")
            return
        assert (result.status, result.result, result.replies) == ("done", "The answer.", ("So far.", "The answer."))
        assert [e.point for e in session.of(events.UserInterruption)] == ["B"]


async def test_a_truncated_aside_ends_the_run(autojump_clock: MockClock) -> None:
    model = """
rules:
  - {when: {interruption: why}, text: Becau, stop_reason: max_tokens}
  - {when: {user: task, step: 1}, tools: [{name: gate, input: {at: a}}]}
  - {text: The answer.}
"""
    async with open_session(model, tools=Gates("a").tools) as session:
        at(session, events.ToolCall, lambda: session.chain.submit("why?"))
        result = await session.run("Do the task")
        assert (result.status, result.result) == ("truncated", "Becau")
        check_invariants(session)
