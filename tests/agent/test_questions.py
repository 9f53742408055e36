"""Questions: who is asked, what answers, and what becomes of the call."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import pytest
import trio
from support import SKIPPED, FullDisk, MemoryFile, Session, at, check_invariants, open_session, settings
from support.gates import Gates, results
from support.models import ASKING_TOOLS
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.errors import ToolError
from chain.plan import Plan
from chain.text.escalations import Escalation
from chain.tools.ask import ask_user_question
from chain.tools.tool import Preview, ToolContext, tool

CHANGE = "{name: change_file, input: {path: a}}"
OTHER = "{name: change_file, input: {path: b}}"
DANGER = "{name: danger, input: {}}"
LOOK = "{name: look, input: {at: x}}"
OWN = "{name: change_file, input: {path: own}}"
LATE = "{name: change_file, input: {path: late}}"
DIG = "{name: dig, input: {hosts: 2}}"
CHOICE = "{name: ask_user_question, input: {question: Which?, options: [left, right]}}"
NOBODY_ALLOWS = "danger needs approval, and no one is available to approve it; allow it with --allow danger."
NO_USER_TO_CHOOSE = "Nobody can be asked; decide, and say what you assumed."


def asking(*calls: str) -> str:
    first = f"{{when: {{step: 1}}, tools: [{', '.join(calls)}]}}"
    return f"rules: [{{when: {{interruption: .}}, text: Noted.}}, {first}, {{text: The answer.}}]"


@asynccontextmanager
async def asked(
    *calls: str, allow: str = "", file: MemoryFile | None = None, interactive: bool = False, timeout_s: float = 1800
) -> AsyncIterator[Session]:
    """A session whose model asks for these calls, and somebody who can answer."""
    use = settings(allow=allow, timeout_s=timeout_s)
    tools = [*ASKING_TOOLS, *Gates(is_open=True).tools]
    async with open_session(asking(*calls), tools=tools, use=use, file=file, interactive=interactive) as session:
        with session.chain.answering():
            session.chain.submit("Do the task")
            await wait_all_tasks_blocked()
            yield session
            await session.chain.wait_idle()
    check_invariants(session)


def told(session: Session) -> list[tuple[str, str, str]]:
    """What became of each question."""
    return [(e.id, e.decision, e.by) for e in session.of(events.Answer)]


async def answer(session: Session, *texts: str) -> None:
    """Answer the open questions, one after the other."""
    for text in texts:
        id = session.chain.questions.open_id
        assert id is not None
        assert session.chain.answer(id, text).what == "answered"
        await wait_all_tasks_blocked()


def started(session: Session) -> list[str]:
    return [r["name"] for r in session.records if r["type"] == "tool_started"]


# -------------------------------------------------------------------------------------------------------- approvals

DECISIONS = [
    ("y", "allowed", "a is changed"),
    ("YES ", "allowed", "a is changed"),
    ("n", "refused", "The user refused this."),
    ("not before noon", "refused", "The user refused this: not before noon"),
    ("todo: add x", "refused", "The user refused this: todo: add x"),
]


@pytest.mark.parametrize(("text", "decision", "result"), DECISIONS)
async def test_an_approval_is_answered(text: str, decision: str, result: str, autojump_clock: MockClock) -> None:
    async with asked(CHANGE) as session:
        [question] = session.of(events.Question)
        assert (question.id, question.kind, question.text) == ("Q1", "approval", "Allow change_file: a")
        assert (question.preview, question.name, question.options) == ("change a", "change_file", ())
        assert not session.of(events.ToolCall)
        await answer(session, text)
        await session.chain.wait_idle()
        assert told(session) == [("Q1", decision, "user")]
        assert results(session) == [result]
        assert started(session) == (["change_file"] if decision == "allowed" else [])
        assert len(session.of(events.ToolCall)) == len(started(session))


async def test_always_allows_what_is_alike_and_asks_for_the_rest(autojump_clock: MockClock) -> None:
    async with asked(CHANGE, CHANGE, OTHER, OTHER, DANGER) as session:
        await answer(session, "a")
        # For the path a "always" is the tool: b needs no asking either.
        await answer(session, "n")
        await session.chain.wait_idle()
        by = [("user", "allowed"), *[("config", "allowed")] * 3, ("user", "refused")]
        assert [(who, what) for _, what, who in told(session)] == by


async def test_always_may_be_this_one_alone(autojump_clock: MockClock) -> None:
    async with asked(OTHER, OTHER, CHANGE) as session:
        await answer(session, "a", "y")
        await session.chain.wait_idle()
        assert [who for _, _, who in told(session)] == ["user", "config", "user"]
        # Also where nobody was asked it is known that the user has said "always".
        assert [answer.is_for_always for answer in session.of(events.Answer)] == [True, True, False]


async def test_what_has_to_be_named_is_asked_about_each_time(autojump_clock: MockClock) -> None:
    async with asked(OWN, OWN, CHANGE, allow="change_file") as session:
        assert session.of(events.Question)[0].text == "Allow change_file: own (asked each time)"
        await answer(session, "a", "y")
        await session.chain.wait_idle()
        assert [who for _, _, who in told(session)] == ["user", "user", "config"]
        assert not any(answer.is_for_always for answer in session.of(events.Answer))
    async with asked(OWN, CHANGE) as session:
        await answer(session, "a", "n")  # and "always" is no word about the rest
        await session.chain.wait_idle()
        assert [what for _, what, _ in told(session)] == ["allowed", "refused"]


async def test_what_the_configuration_allows_is_told_and_not_asked(autojump_clock: MockClock) -> None:
    async with asked(CHANGE, DANGER, allow="change_file(a*)") as session:
        await answer(session, "y")
        await session.chain.wait_idle()
        assert told(session) == [("Q1", "allowed", "config"), ("Q2", "allowed", "user")]


async def _in_a_sandbox(ctx: ToolContext, command: str) -> Preview:
    offered: tuple[Escalation, ...] = ("outside",) if command == "no network" else ("network", "outside")
    return Preview(f"$ {command}", command, command, "subject", escalations=offered)


@tool(needs_approval=True, preview=_in_a_sandbox, kind="execute")
async def command(ctx: ToolContext, command: str) -> str:
    """Return what was allowed."""
    assert ctx.verdict is not None
    return f"{command}: {ctx.verdict.escalation}, {'once' if ctx.verdict.is_once else 'always'}"


COMMAND, NO_NETWORK = "{name: command, input: {command: run}}", "{name: command, input: {command: no network}}"


@asynccontextmanager
async def sandboxed(*calls: str, is_answered: bool = True, allow: str = "") -> AsyncIterator[Session]:
    async with open_session(asking(*calls), tools=[command, *ASKING_TOOLS], use=settings(allow=allow)) as session:
        with session.chain.answering() if is_answered else nullcontext():
            session.chain.submit("Do the task")
            await wait_all_tasks_blocked()
            yield session
            await session.chain.wait_idle()
    check_invariants(session)


@pytest.mark.parametrize(
    ("text", "escalation", "result"),
    [
        ("y", None, "run: None, once"),
        ("w", "network", "run: network, once"),
        ("With network", "network", "run: network, once"),
        ("o", "outside", "run: outside, once"),
        ("a", None, "run: None, always"),
        ("outside", None, "The user refused this: outside"),
    ],
)
async def test_an_answer_may_lift_something_of_the_sandbox_for_one_call(
    text: str, escalation: Escalation | None, result: str
) -> None:
    async with sandboxed(COMMAND) as session:
        assert session.of(events.Question)[0].escalations == ("network", "outside")
        await answer(session, text)
        await session.chain.wait_idle()
        assert results(session) == [result]
        assert [event.escalation for event in session.of(events.Answer)] == [escalation]
        [record] = [r for r in session.records if r["type"] == "answer"]
        assert record.get("escalation") == escalation


async def test_always_keeps_no_escalation(autojump_clock: MockClock) -> None:
    async with sandboxed(COMMAND, COMMAND, COMMAND) as session:
        await answer(session, "w", "a")
        await session.chain.wait_idle()
        assert results(session) == ["run: network, once", "run: None, always", "run: None, always"]


@pytest.mark.parametrize(("call", "text"), [(NO_NETWORK, "w"), (CHANGE, "w"), (CHANGE, "o")])
async def test_an_escalation_that_is_not_offered_is_no_answer(call: str, text: str) -> None:
    async with sandboxed(call) as session:
        refused = session.chain.answer("Q1", text)
        assert (refused.what, refused.message) == (
            "refused",
            f"{text} does not apply to Q1: no sandbox restricts that here",
        )
        assert session.chain.questions.open_id == "Q1"
        await answer(session, "n")


@pytest.mark.parametrize("allow", ["", "command"])
async def test_where_nobody_is_asked_nothing_is_escalated(allow: str) -> None:
    async with sandboxed(COMMAND, is_answered=False, allow=allow) as session:
        await session.chain.wait_idle()
        assert [event.escalation for event in session.of(events.Answer)] == [None]
        if allow:
            assert results(session) == ["run: None, always"]


@pytest.mark.parametrize("text", ["w", "o"])
async def test_read_only_accepts_no_escalation(text: str) -> None:
    async with sandboxed(COMMAND) as session:
        session.chain.use_mode("read only")
        assert session.chain.answer("Q1", text).what == "refused"
        await answer(session, "n")


@pytest.mark.parametrize("path", ["none", "bad"])
async def test_nothing_is_asked_where_nothing_needs_approval_or_the_call_would_fail(path: str) -> None:
    async with asked(f"{{name: change_file, input: {{path: {path}}}}}") as session:
        await session.chain.wait_idle()
        assert not session.of(events.Question)
        assert results(session) == (["none is changed"] if path == "none" else ["it would fail"])


async def test_a_tool_without_a_preview_shows_its_input(autojump_clock: MockClock) -> None:
    async with asked("{name: danger, input: {seconds: 2}}") as session:
        [question] = session.of(events.Question)
        assert question.text == "Allow danger?"
        assert question.preview == '{\n  "seconds": 2\n}'
        await answer(session, "n")


async def test_what_has_changed_since_it_was_shown_is_not_run() -> None:
    content = "one"

    async def shown(ctx: ToolContext) -> Preview:
        return Preview(content, "f", content)

    @tool(needs_approval=True, preview=shown)
    async def replace(ctx: ToolContext) -> str:
        """Replace it."""
        raise AssertionError

    async with open_session(asking("{name: replace, input: {}}"), tools=[replace]) as session:
        with session.chain.answering():
            session.chain.submit("Do the task")
            await wait_all_tasks_blocked()
            content = "two"
            await answer(session, "y")
            await session.chain.wait_idle()
        assert results(session) == ["replace was not run: what it would do has changed since the user was asked."]
        assert started(session) == []
        check_invariants(session)


@pytest.mark.parametrize(("allow", "times"), [("replace", 1), ("", 2)])
async def test_only_after_a_person_has_decided_a_call_is_looked_at_again(allow: str, times: int) -> None:
    seen = 0

    async def shown(ctx: ToolContext) -> Preview:
        nonlocal seen
        seen += 1
        return Preview("one", "f", "one")

    @tool(needs_approval=True, preview=shown)
    async def replace(ctx: ToolContext) -> str:
        """Replace it."""
        return "done"

    scenario = asking("{name: replace, input: {}}")
    async with open_session(scenario, tools=[replace], use=settings(allow=allow)) as session:
        with session.chain.answering():
            session.chain.submit("Do the task")
            await wait_all_tasks_blocked()
            if not allow:
                await answer(session, "y")
            await session.chain.wait_idle()
        assert (seen, results(session)) == (times, ["done"])


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
async def test_a_preview_never_ends_a_run(error: BaseException) -> None:
    async def broken(ctx: ToolContext) -> Preview:
        raise error

    @tool(needs_approval=True, preview=broken)
    async def replace(ctx: ToolContext) -> str:
        """Replace it."""
        return ""

    async with open_session(asking("{name: replace, input: {}}"), tools=[replace]) as session:
        result = await session.run("Do the task")
        assert result.status == "done"
        assert results(session)[0].startswith(f"replace failed: {type(error).__name__}")


# ---------------------------------------------------------------------------------------------------------- choices

CHOSEN = [
    ("1", "left"),
    ("2", "right"),
    ("RIGHT", "right"),
    ("3", "3"),
    ("0", "0"),
    ("neither", "neither"),
    ("/left", "/left"),
    ("y", "y"),
    ("\ud800", "?"),
]


@pytest.mark.parametrize(("text", "chosen"), CHOSEN)
async def test_a_choice_is_a_number_an_option_or_another_text(text: str, chosen: str) -> None:
    async with asked(CHOICE) as session:
        [question] = session.of(events.Question)
        assert (question.kind, question.text, question.options) == ("choice", "Which?", ("left", "right"))
        assert list(session.chain.questions.asked.latest) == [question]
        await answer(session, text)
        await session.chain.wait_idle()
        assert results(session) == [f"The user answered: {chosen}"]
        [event] = session.of(events.Answer)
        assert (event.text, event.decision) == (chosen, "answered")


WRONG = [
    ("", ["a"], "The question is empty."),
    ("Q?", [], "Give 1 to 5 options"),
    ("Q?", list("abcdef"), "Give 1 to 5 options"),
    ("Q?", ["a", " "], "none of them empty"),
    ("Q?", ["a", "A"], "Two of the options are the same."),
    ("Q?" * 4000, ["a"], "are longer than 4,000 characters"),
]


@pytest.mark.parametrize(("question", "options", "why"), WRONG)
async def test_a_question_that_nobody_could_answer_is_not_asked(question: str, options: list[str], why: str) -> None:
    context = ToolContext(settings().file.parent, Plan(), "t1", None, print)  # type: ignore[union-attr,arg-type]
    with pytest.raises(ToolError, match=why):
        await ask_user_question.run(context, {"question": question, "options": options})


# --------------------------------------------------------------------------------------------------- who is there


async def test_without_anybody_approvals_are_refused_and_choices_left_to_the_model() -> None:
    async with open_session(asking(DANGER, CHOICE), tools=ASKING_TOOLS) as session:
        await session.run("Do the task")
        assert results(session) == [NOBODY_ALLOWS, NO_USER_TO_CHOOSE]
        assert told(session) == [("Q1", "refused", "nobody"), ("Q2", "refused", "nobody")]
        check_invariants(session)


async def _command(ctx: ToolContext, command: str) -> Preview:
    return Preview(command, command, command, always="subject")


@tool(needs_approval=True, preview=_command)
async def run_it(ctx: ToolContext, command: str) -> str:
    """Run a command."""
    return command


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("make", "allow it with --allow 'run_it(make)'"),
        ("make it's", "no pattern can name it, and plain run_it would allow every call"),
    ],
)
async def test_no_allowance_is_suggested_that_is_broader_than_the_call(command: str, hint: str) -> None:
    calls = asking(f"{{name: run_it, input: {{command: {command}}}}}")
    async with open_session(calls, tools=[run_it]) as session:
        await session.run("Do the task")
        assert results(session) == [f"run_it needs approval, and no one is available to approve it; {hint}."]


async def test_when_the_last_who_could_answer_goes_what_is_open_and_what_waits_is_decided(
    autojump_clock: MockClock,
) -> None:
    async with open_session(asking(CHOICE, CHOICE, DANGER), tools=ASKING_TOOLS) as session:
        one, other = session.chain.answering(), session.chain.answering()
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        one.close()
        one.close()
        await wait_all_tasks_blocked()
        assert session.chain.questions.open_id == "Q1"
        other.close()
        await session.chain.wait_idle()
        assert results(session) == [NO_USER_TO_CHOOSE, NO_USER_TO_CHOOSE, NOBODY_ALLOWS]
        check_invariants(session)


async def test_questions_queue_and_the_first_answer_counts(autojump_clock: MockClock) -> None:
    async with asked(CHOICE, CHOICE) as session:
        chain = session.chain
        assert [e.id for e in session.of(events.Question)] == ["Q1"]
        assert chain.answer("Q2", "left").message == "there is no question Q2"
        assert chain.answer("Q1", " ").message == "Q1 waits for an answer"
        assert chain.answer("Q1", "x" * 100_001).message == "an answer has at most 100,000 characters"
        assert chain.answer("Q1", "1").what == "answered"
        late = chain.answer("Q1", "2", origin="json")
        assert (late.what, late.message) == ("refused", "Q1 is no longer open")
        refused = session.of(events.LineRefused)[-1]
        assert (refused.id, refused.text, refused.kind, refused.origin) == ("Q1", "2", "answer", "json")
        await answer(session, "2")
        await chain.wait_idle()
        assert results(session) == ["The user answered: left", "The user answered: right"]
        # An answer is no line: it has no receipt, and a refused one counts for nothing.
        assert [r.state for r in chain.lines.receipts] == ["delivered"]
        assert chain.runs.exit_code() == 0


# ------------------------------------------------------------------------------------------------------------ clocks


async def test_clocks_stand_still_while_the_user_thinks(mock_clock: MockClock) -> None:
    dig = "{name: dig, input: {hosts: 1}}"
    async with asked(dig, DANGER, timeout_s=4) as session:
        for _ in range(2):
            mock_clock.jump(1e5)
            await wait_all_tasks_blocked()
            await answer(session, "y")
            mock_clock.jump(0.6)
            await wait_all_tasks_blocked()
        await session.chain.wait_idle()
        assert session.result.status == "done"
        assert results(session) == ["hosts: ['allowed']", "it is done"]


async def test_the_time_that_was_left_goes_on_after_the_answer(mock_clock: MockClock) -> None:
    async with asked(
        DANGER, "{name: slow, input: {}}", "{name: danger, input: {seconds: 100}}", timeout_s=30
    ) as session:
        mock_clock.jump(1e5)
        await wait_all_tasks_blocked()
        await answer(session, "y")
        mock_clock.jump(29)
        await wait_all_tasks_blocked()
        await answer(session, "y")
        assert session.chain.is_running
        mock_clock.jump(2)
        await session.chain.wait_idle()
        assert session.result.status == "limit_reached"


# ---------------------------------------------------------------------------------------------------- what withdraws

WITHDRAWS = {
    "stop": ("cancelled", [SKIPPED, SKIPPED]),
    "!use the other one": ("done", [SKIPPED, SKIPPED]),
    "!!use the other one": ("done", [SKIPPED, SKIPPED]),
    "": ("interrupted", [SKIPPED, SKIPPED]),
}


@pytest.mark.parametrize("line", WITHDRAWS)
async def test_stops_urgent_lines_and_interrupts_withdraw_an_approval(line: str, autojump_clock: MockClock) -> None:
    async with asked(DANGER, CHANGE) as session:
        if line:
            session.chain.submit(line)
        else:
            session.chain.interrupt()
        assert session.chain.questions.open_id is None
        assert session.chain.answer("Q1", "y").message == "Q1 is no longer open"
        await session.chain.wait_idle()
        status, stubs = WITHDRAWS[line]
        assert session.result.status == status
        assert told(session) == [("Q1", "withdrawn", "user")]
        assert started(session) == []
        assert [e.text for e in session.of(events.ToolResult)] == stubs


@pytest.mark.parametrize("line", ["use the other one", "todo: add x", "why?", "focus on x"])
async def test_other_lines_leave_the_question_open(line: str, autojump_clock: MockClock) -> None:
    async with asked(DANGER) as session:
        assert session.chain.submit(line).what == "queued"
        await wait_all_tasks_blocked()
        assert session.chain.questions.open_id == "Q1"
        await answer(session, "y")
        await session.chain.wait_idle()
        assert started(session) == ["danger"]


async def test_a_line_in_the_step_in_which_a_question_goes_withdraws_it_no_second_time() -> None:
    async with asked(CHOICE) as session:
        at(session, events.Answer, lambda: session.chain.submit("!go left"))
        session.chain.interrupt()
        await session.chain.wait_idle()
        assert told(session) == [("Q1", "withdrawn", "user")]


@pytest.mark.parametrize("line", ["stop", "!go left"])
async def test_a_choice_that_was_withdrawn_says_so_to_the_model(line: str) -> None:
    async with asked(CHOICE) as session:
        session.chain.submit(line)
        await session.chain.wait_idle()
        [result] = session.of(events.ToolResult)
        assert result.is_error
        assert result.text.startswith("The question was withdrawn")


async def test_an_interrupt_between_the_answer_and_the_start_keeps_the_call_from_starting() -> None:
    file = MemoryFile()
    async with asked(CHANGE, file=file) as session:
        file.hold()
        assert session.chain.answer("Q1", "y").what == "answered"
        await wait_all_tasks_blocked()
        assert started(session) == []
        assert told(session) == []
        session.interrupt()
        file.release()
        await session.chain.wait_idle()
        assert told(session) == [("Q1", "allowed", "user")]
        assert started(session) == []


@pytest.mark.parametrize("line", ["stop", "!no"])
async def test_so_does_a_line(line: str) -> None:
    file = MemoryFile()
    async with asked(CHANGE, file=file) as session:
        file.hold()
        session.chain.answer("Q1", "y")
        session.chain.submit(line)
        file.release()
        await session.chain.wait_idle()
        assert started(session) == []


@pytest.mark.parametrize("line", ["stop", "!no"])
@pytest.mark.parametrize("call", [LATE, DIG])
async def test_nothing_is_asked_after_a_line_that_came_before_the_question(
    line: str, call: str, mock_clock: MockClock
) -> None:
    """While what would be done is found out, or while a tool works that will ask."""
    async with open_session(asking(call, DANGER), tools=ASKING_TOOLS) as session:
        with session.chain.answering():
            session.chain.submit("Do the task")
            await wait_all_tasks_blocked()
            if call == DIG:  # the first host is asked about at once, the second after a while
                await answer(session, "y")
                mock_clock.jump(0.6)
                await wait_all_tasks_blocked()
            session.chain.submit(line)
            mock_clock.autojump_threshold = 0
            await session.chain.wait_idle()
        assert len(session.of(events.Question)) == (1 if call == DIG else 0)
        assert [e.name for e in session.of(events.ToolCall)] == (["dig"] if call == DIG else [])
        check_invariants(session)


async def test_a_call_that_asks_stands_alone_though_it_only_reads(autojump_clock: MockClock) -> None:
    async with asked(LOOK, "{name: peek, input: {}}", LOOK) as session:
        await trio.sleep(5)
        assert started(session) == ["look"]
        await answer(session, "y")
        await session.chain.wait_idle()
        assert started(session) == ["look", "peek", "look"]


async def test_a_preview_has_a_time_limit(autojump_clock: MockClock) -> None:
    async def shown(ctx: ToolContext) -> Preview:
        await trio.sleep_forever()
        raise AssertionError

    @tool(needs_approval=True, preview=shown)
    async def replace(ctx: ToolContext) -> str:
        """Replace it."""
        return ""

    async with open_session(asking("{name: replace, input: {}}"), tools=[replace]) as session:
        await session.run("Do the task")
        assert results(session) == ["replace was not run: its preview took longer than 60 s."]
        check_invariants(session)


async def test_an_asker_that_is_cancelled_asks_no_more() -> None:
    """By whatever cancelled it: here it is the host of the whole chain."""
    file = MemoryFile()
    with trio.CancelScope() as scope:
        async with open_session(asking(CHOICE), tools=ASKING_TOOLS, file=file) as session:
            answerer = session.chain.answering()
            session.chain.submit("Do the task")
            await wait_all_tasks_blocked()
            assert session.chain.questions.open_id == "Q1"
            scope.cancel()
            await trio.lowlevel.checkpoint()
    answerer.close()
    assert [(r["decision"], r["by"]) for r in session.records if r["type"] == "answer"] == [("withdrawn", "user")]


# --------------------------------------------------------------------------------------------------- on a full disk


async def test_an_answer_that_cannot_be_written_is_refused_and_the_question_stays() -> None:
    file = FullDisk()
    async with open_session(asking(CHANGE), tools=ASKING_TOOLS, file=file) as session:
        with session.chain.answering():
            session.chain.submit("Do the task")
            await wait_all_tasks_blocked()
            file.room = 0
            refused = session.chain.answer("Q1", "y")
            assert refused.what == "refused"
            assert "No space left" in refused.message
            assert session.chain.questions.open_id == "Q1"
            file.room = math.inf
            await answer(session, "y")
            await session.chain.wait_idle()
    assert results(session) == ["a is changed"]
    check_invariants(session)


async def test_a_disk_that_fails_ends_the_run_that_asks() -> None:
    file = FullDisk()
    async with open_session(asking(CHOICE), tools=ASKING_TOOLS, file=file) as session:
        with session.chain.answering():
            session.chain.submit("Do the task")
            await wait_all_tasks_blocked()
            assert session.chain.questions.open_id == "Q1"
            file.broken = True
            session.chain.submit("a line that has to come to the disk")
            await session.chain.wait_idle()
            assert session.chain.questions.open_id is None
            assert session.result.status == "error"
            assert told(session) == [("Q1", "withdrawn", "user")]


@pytest.mark.parametrize("what", ["the question", "the answer of nobody", "stop"])
async def test_a_full_disk_ends_the_run_and_keeps_nobody_from_stopping(what: str) -> None:
    file = FullDisk()
    async with open_session(asking(CHOICE, CHOICE), tools=ASKING_TOOLS, file=file) as session:
        answerer = session.chain.answering()
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        file.room = 0
        match what:
            case "stop":
                session.chain.submit("stop")
            case "the question":
                session.chain.interrupt()
            case _:
                answerer.close()
        await session.chain.wait_idle()
        assert session.chain.questions.open_id is None
        assert session.result.status in ("error", "cancelled", "interrupted")
        file.room = math.inf
        answerer.close()
        result = await session.run("Again")
        assert result.status == "done"
