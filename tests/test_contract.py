"""The tables of lines, safe points and endings of the specification (sections 3, 4 and 7), in whole sessions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

import pytest
from support.checks import check_invariants
from support.disks import FullDisk
from support.gates import Gates, finish_run, start_run
from support.sessions import Session, call_at_event, make_settings, open_session
from trio.testing import MockClock

from chain import events
from chain.events import Point, Status
from chain.lines.parse import MAX_LINE
from chain.session import event_json

MAX_ITERATIONS = 20
"""The default of ``make_settings``."""
ANSWER = "rules: [{text: The answer.}]"
LOOK = """
rules:
  - {when: {turn: 1}, text: Looking., tools: [{name: gate, input: {at: a}}]}
  - {text: The answer.}
"""
IDLE_AND_ACTIVE = pytest.mark.parametrize("is_active", [False, True], ids=["idle", "active"])


# Lines


@IDLE_AND_ACTIVE
@pytest.mark.parametrize(
    ("text", "reason", "is_full"),
    [
        pytest.param("x" * (MAX_LINE + 1), "the limit is 100,000", False, id="too long"),
        pytest.param("todo: complete x", "write it as todo: complete <N>", False, id="malformed"),
        pytest.param("then:", "write what comes next", False, id="follow-up without a text"),
        pytest.param("!", "write the message after the !", False, id="urgent without a text"),
        pytest.param("use the other file", "No space left", True, id="full disk"),
    ],
)
async def test_an_unacceptable_line_is_refused(text: str, reason: str, is_full: bool, is_active: bool) -> None:
    gates, disk = Gates(), FullDisk()
    async with open_session(LOOK, tools=gates.tools, file=disk) as session:
        if is_active:
            await start_run(session, gates, "a")
        disk.full = is_full
        recorded = [r for r in session.records if r["type"] == "line"]
        answer = session.chain.submit(text)
        assert answer.what == "refused"
        assert reason in answer.message
        shown_text = text[:1_000]  # enough to recognise the line
        [refused] = session.of(events.LineRefused)
        assert (refused.text, refused.reason) == (shown_text, answer.message)
        *_, receipt = session.chain.lines.receipts
        assert (receipt.text, receipt.state) == (shown_text, "refused")
        assert [r for r in session.records if r["type"] == "line"] == recorded, "the line was never accepted"
        disk.full = False
        gates.open("a")
        await session.chain.wait_idle()
        assert len(session.of(events.RunStarted)) == int(is_active), "the line starts no run"


@IDLE_AND_ACTIVE
@pytest.mark.parametrize(
    ("line", "disposition", "message"),
    [
        ("/help", "local", "/help"),
        ("/unknown", "local", "/unknown"),
        ("/drop L2", "local", "/drop L2"),
        (" ", "nothing", ""),
        ("\n", "nothing", ""),
    ],
)
async def test_commands_and_blank_lines_are_never_accepted(
    line: str, disposition: str, message: str, is_active: bool
) -> None:
    gates = Gates()
    async with open_session(LOOK, tools=gates.tools) as session:
        if is_active:
            await start_run(session, gates, "a")
        before = (len(session.records), len(session.events), session.chain.lines.receipts)
        answer = session.chain.submit(line)
        assert (answer.what, answer.message) == (disposition, message)
        assert (len(session.records), len(session.events), session.chain.lines.receipts) == before
        gates.open("a")


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
        [run] = session.of(events.RunStarted)
        assert run.query == query
        assert session.sent() == f"user: {query}"
        assert (session.result.status, session.state("L1")) == ("done", "delivered")
        check_invariants(session)


async def test_a_query_argument_is_not_parsed() -> None:
    async with open_session(ANSWER) as session:
        assert session.chain.start(" then: do the next").what == "started"
        await session.chain.wait_idle()
        assert session.sent() == "user: then: do the next"


# Safe points


async def test_early_lines_enter_before_the_first_call(autojump_clock: MockClock) -> None:
    async with open_session(ANSWER) as session:
        for line in ("Do the task", "use the other file", "then: the next", "!and be quick"):
            session.chain.submit(line)
        await session.chain.wait_idle()
        [delivery] = session.of(events.UserInterruption)
        assert (delivery.point, delivery.iteration) == (Point.BEFORE_FIRST_CALL, 0)
        assert delivery.ids == ("L2", "L4"), "all but the first query and the follow-up"
        assert delivery.remaining == MAX_ITERATIONS
        assert session.sent(0) == (
            "user: Do the task\nuser: USER INTERRUPTION: use the other file\n\nUSER INTERRUPTION: and be quick"
        )
        assert len(session.model.requests) == 2, "one for each run"
        check_invariants(session)


@pytest.mark.parametrize(
    ("query", "moment"),
    [("look", events.ToolResult), ("answer", events.TextDelta)],
    ids=["after tools", "after a reply"],
)
async def test_an_exhausted_budget_delivers_no_line(query: str, moment: type[events.Event]) -> None:
    usage = "usage: {input_tokens: 60, output_tokens: 60}"
    model = f"""
rules:
  - {{when: {{user: ^look}}, tools: [{{name: gate, input: {{at: a}}}}], {usage}}}
  - {{text: The answer., {usage}}}
"""
    async with open_session(model, tools=Gates("a").tools, settings=make_settings(budget_tokens=100)) as session:
        call_at_event(session, moment, lambda: session.chain.submit("use the other file"))
        result = await session.run(query)
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
        await gates.wait_reached("a")
        session.chain.submit("something bad")
        session.chain.submit("todo: add x")
        assert (await finish_run(session, gates)).status == "refused"
        assert {r.text: r.state for r in session.chain.lines.receipts} == {
            "Do the task": "delivered",
            "look": "returned",
            "something bad": "returned",
            "todo: add x": "delivered",
        }
        [withdrawn] = [r for r in session.records if r["type"] == "withdrawn"]
        assert withdrawn["reason"] == "refused"
        assert withdrawn["messages"] == 4, "query, reply, result and interruption"


# Endings


@dataclass(frozen=True)
class Ending:
    """A way to end a run: its exit code, the model's rules, and the settings.

    Lines are sent at the ``nth`` event of the kind ``moment``. Then the user does ``act``.
    """

    exit_code: int
    model: str = LOOK
    moment: type[events.Event] = events.ToolCall
    nth: int = 1
    act: Callable[[Session], object] = lambda session: None
    settings: dict[str, Any] = field(default_factory=dict)


def stop(session: Session) -> object:
    return session.chain.submit("stop")


def interrupt(session: Session) -> object:
    return session.chain.interrupt()


def replies_with(reason: str) -> str:
    """Return rules whose first reply has this stop reason."""
    return f"rules: [{{when: {{turn: 1}}, text: So far., stop_reason: {reason}}}, {{text: The answer.}}]"


LINES_RETURNED, TERMINATED = 3, 143
"""Exit codes. A code of the ending itself, other than 0, precedes that of returned or unsent lines."""
ENDINGS: dict[Status, Ending] = {
    "done": Ending(0, ANSWER, events.TextDelta),
    "cancelled": Ending(0, ANSWER, events.TextDelta, act=stop),
    "cancelled_with_partial": Ending(0, act=stop),
    "cancelled_during_synthesis": Ending(0, moment=events.TextDelta, nth=2, act=stop),
    "interrupted": Ending(130, act=interrupt),
    "max_iterations": Ending(4, settings={"max_iterations": 1}),
    "limit_reached": Ending(4, LOOK.replace("at: a", "at: gate that stays closed"), settings={"timeout_s": 30}),
    "truncated": Ending(1, replies_with("max_tokens"), events.TextDelta),
    "empty": Ending(1, "rules: [{text: ' '}]", events.IterationStarted, nth=2),
    "refused": Ending(1, replies_with("refusal"), events.TextDelta),
    "context_full": Ending(1, replies_with("model_context_window_exceeded"), events.TextDelta),
    "error": Ending(1, "rules: [{text: So far., error: {message: away, after: 3}}]", events.TextDelta),
}
USER_ENDINGS: dict[str, tuple[Any, ...]] = {
    # The termination reason, whether the result is partial, the phase, and the partial results.
    "cancelled": ("user_cancelled", True, "answering", ()),
    "cancelled_with_partial": ("user_cancelled", True, "tools", ("a is done",)),
    "cancelled_during_synthesis": ("user_cancelled", True, "answering", ("a is done",)),
    "interrupted": ("user_interrupted", True, "tools", ()),
}


def test_every_status_has_an_ending() -> None:
    assert set(ENDINGS) == set(get_args(Status))


async def play(session: Session, ending: Ending, *lines: str) -> events.Result:
    """Bring a run to its ending, and send lines as late as possible. Return the result of that run."""

    def send() -> None:
        for line in lines:
            assert session.chain.submit(line).what == "queued"
        ending.act(session)

    call_at_event(session, ending.moment, send, ending.nth)
    await session.run("Do the task")
    check_invariants(session, max_iterations=ending.settings.get("max_iterations", MAX_ITERATIONS))
    first: events.Result
    first, *_ = session.of(events.Result)
    return first


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("interactive", [False, True], ids=["headless", "interactive"])
@pytest.mark.parametrize("has_follow_ups", [False, True], ids=["alone", "with follow-ups"])
@pytest.mark.parametrize("status", ENDINGS)
async def test_waiting_lines_are_delivered_or_returned(
    status: Status, has_follow_ups: bool, interactive: bool, autojump_clock: MockClock
) -> None:
    ending = ENDINGS[status]
    # Any other line than a follow-up would continue a run whose reply is truncated or empty.
    line = "then: use the other file" if status in ("truncated", "empty") else "use the other file"
    lines = [line, "then: the next", "then: the last"] if has_follow_ups else [line]
    settings = make_settings(**ending.settings)
    async with open_session(
        ending.model, tools=Gates("a").tools, settings=settings, interactive=interactive
    ) as session:
        result = await play(session, ending, *lines)
        assert result.status == status
        assert result.exit_code == (ending.exit_code or (0 if status == "done" else LINES_RETURNED))
        # At the iteration limit, a run that accepts more lines is followed by another one.
        are_delivered = status == "done" or (status == "max_iterations" and (has_follow_ups or interactive))
        receipts = [r for r in session.chain.lines.receipts if r.text in lines]
        assert {r.text: r.state for r in receipts} == dict.fromkeys(lines, "delivered" if are_delivered else "returned")
        _, *later_queries = [run.query for run in session.of(events.RunStarted)]
        points = [delivery.point for delivery in session.of(events.UserInterruption)]
        if not are_delivered:
            assert (later_queries, {r.reason for r in receipts}) == ([], {status})
        elif status == "done":
            assert later_queries == (["the next", "the last"] if has_follow_ups else [])
            assert points == [Point.AFTER_REPLY]
        else:
            assert later_queries == (["the next", "the last"] if has_follow_ups else [""])
            assert points == [Point.BEFORE_FIRST_CALL]


@pytest.mark.parametrize("status", ENDINGS)
async def test_each_ending_has_its_result_and_exit_code(status: Status, autojump_clock: MockClock) -> None:
    ending = ENDINGS[status]
    async with open_session(ending.model, tools=Gates("a").tools, settings=make_settings(**ending.settings)) as session:
        result = await play(session, ending)
        assert result.status == status
        reason, partial, phase, partial_results = USER_ENDINGS.get(status, (None, False, None, ()))
        assert (result.termination_reason, result.partial, result.phase_reached) == (reason, partial, phase)
        assert result.partial_results == partial_results
        as_json = event_json.to_json(result)
        names = ("termination_reason", "partial", "phase_reached", "partial_results")
        assert {name: as_json[name] for name in names} == dict(
            zip(names, (reason, partial, phase, list(partial_results)), strict=True)
        )
        exit_code = session.chain.runs.exit_code
        assert result.exit_code == exit_code() == ending.exit_code
        assert exit_code(terminated=True) == TERMINATED
        session.chain.lines.mark_unsent("one more", "its moment did not come")
        assert exit_code() == (ending.exit_code or LINES_RETURNED)


async def test_the_last_iteration_gives_the_last_text(autojump_clock: MockClock) -> None:
    async with open_session(LOOK, tools=Gates("a").tools, settings=make_settings(max_iterations=1)) as session:
        result = await session.run("Do the task")
        assert (result.status, result.result) == ("max_iterations", "Looking.")


async def test_a_waiting_line_continues_a_truncated_run(autojump_clock: MockClock) -> None:
    async with open_session(replies_with("max_tokens"), settings=make_settings(max_iterations=2)) as session:
        call_at_event(session, events.TextDelta, lambda: session.chain.submit("use the other file"))
        result = await session.run("Do the task")
        assert (result.status, result.result, result.replies) == ("done", "The answer.", ("So far.", "The answer."))
        [delivery] = session.of(events.UserInterruption)
        assert delivery.point is Point.AFTER_REPLY
        check_invariants(session, max_iterations=2)


async def test_a_line_after_the_last_iteration_is_returned(autojump_clock: MockClock) -> None:
    async with open_session(replies_with("max_tokens"), settings=make_settings(max_iterations=1)) as session:
        call_at_event(session, events.TextDelta, lambda: session.chain.submit("use the other file"))
        result = await session.run("Do the task")
        assert (result.status, session.state("L2")) == ("max_iterations", "returned")
        check_invariants(session, max_iterations=1)


async def test_a_truncated_aside_ends_the_run(autojump_clock: MockClock) -> None:
    model = """
rules:
  - {when: {interruption: why}, text: Becau, stop_reason: max_tokens}
  - {when: {user: task, step: 1}, tools: [{name: gate, input: {at: a}}]}
  - {text: The answer.}
"""
    async with open_session(model, tools=Gates("a").tools) as session:
        call_at_event(session, events.ToolCall, lambda: session.chain.submit("why?"))
        result = await session.run("Do the task")
        assert (result.status, result.result) == ("truncated", "Becau")
        check_invariants(session)
